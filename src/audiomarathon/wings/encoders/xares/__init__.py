"""X-ARES: a benchmark of audio encoders on tasks of speech, environment and music."""

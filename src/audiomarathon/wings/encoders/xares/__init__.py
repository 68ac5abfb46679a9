"""X-ARES: a benchmark of audio encoders, which are probed on tasks of speech, environment and music."""

"""X-ARES: audio encoders, probed on tasks of speech, environment and music."""

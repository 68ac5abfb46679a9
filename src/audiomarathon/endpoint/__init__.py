"""Models behind an OpenAI-compatible chat endpoint."""

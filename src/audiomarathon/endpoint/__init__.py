"""The client of models behind an OpenAI-compatible chat endpoint."""

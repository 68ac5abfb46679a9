"""Decode clips exactly, or raise an error. Make control audio, which has no content: room tone or noise."""

"""Decode clips exactly, or refuse them. Make control audio, which has no content: room tone or noise."""

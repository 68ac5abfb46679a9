"""Decode clips exactly, or refuse them; and make control audio without content."""

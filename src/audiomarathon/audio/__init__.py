"""Clips as samples: decoded exactly, or refused; and audio that says nothing."""

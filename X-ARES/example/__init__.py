"""Encoders that X-ARES ships as examples."""

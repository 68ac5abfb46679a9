"""The wing of captured attention: its pictures and commands; the capture itself is part of the engine."""

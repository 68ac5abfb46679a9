"""Build the task `tau` from TAU Urban Acoustic Scenes. Run it without arguments to see what it needs."""

from audiomarathon.cli.segment import door

door("tau")

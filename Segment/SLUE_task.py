"""Build the task `slue` from SLUE-VoxPopuli. Run it without arguments to see what it needs."""

from audiomarathon.cli.segment import door

door("slue")

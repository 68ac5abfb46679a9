"""Build the task `vox` from VoxCeleb 1 or 2. Run it without arguments to see what it needs."""

from audiomarathon.cli.segment import door

door("vox")

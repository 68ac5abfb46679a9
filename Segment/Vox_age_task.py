"""Build the task `vox_age` from VoxCeleb 1 or 2 and a table of ages. Run it without arguments to see what it needs."""

from audiomarathon.cli.segment import door

door("vox_age")

"""VoxCeleb 1 or 2 -> the task `vox`. Without arguments it says what it needs."""

from audiomarathon.cli.segment import door

door("vox")

"""VoxCeleb 1 or 2 and a table of ages -> the task `vox_age`. Without arguments it says what it needs."""

from audiomarathon.cli.segment import door

door("vox_age")

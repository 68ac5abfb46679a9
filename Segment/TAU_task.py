"""TAU Urban Acoustic Scenes -> the task `tau`. Without arguments it says what it needs."""

from audiomarathon.cli.segment import door

door("tau")

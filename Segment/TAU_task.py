"""TAU Urban Acoustic Scenes -> the task `tau`. Without arguments it says what it needs."""

from audiomarathon.segment.command import door

door("tau")

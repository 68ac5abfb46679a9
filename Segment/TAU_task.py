"""TAU Urban Acoustic Scenes -> the task `tau`. Without arguments it says what it needs."""

from audiomarathon.corpora.door import door

door("tau")

"""Cut long recordings into clips, at silences. Run it without arguments to see what it needs."""

from audiomarathon.cli.segment import cut_door

cut_door()

"""Long recordings -> clips, cut at silences. Without arguments it says what it needs."""

from audiomarathon.cli.segment import cut_door

cut_door()

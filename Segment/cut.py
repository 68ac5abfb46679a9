"""Long recordings -> clips, cut at silences. Without arguments it says what it needs."""

from audiomarathon.segment.cutting import door

door()

"""Long recordings -> clips, cut at silences. Without arguments it says what it needs."""

from audiomarathon.data.cutting import door

door()

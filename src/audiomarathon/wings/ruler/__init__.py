"""The ruler: words and bells planted at known seconds of up to an hour of audio; questions with exact answers."""

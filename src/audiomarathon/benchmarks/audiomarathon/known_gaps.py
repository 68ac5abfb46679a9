"""Names of clips that the public data's metadata names, but that are missing in the public data.

Issue 3 of the official repository lists them. The authors removed those of VESUS because people could not tell their
emotion. A row whose clip is missing and listed here is left out and counted; any other missing clip is an error.
"""

from __future__ import annotations

SLUE = frozenset({"mixed_concatenated_audio_0061"})
VESUS = frozenset(
    f"person_{person}_{emotion}_{part}"
    for person, emotion in ((2, "fearful"), (3, "angry"), (6, "angry"), (6, "fearful"))
    for part in ("sentences_001", "sentences_002", "words_phrases_001")
)
VOX = frozenset({"id02577_segment_8", "id02685_segment_1"})  # the clips of vox and vox_age are the same

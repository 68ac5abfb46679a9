"""Synthetic JASCO data for trials (the mini benchmark): four clips, each a household sound and then a few words."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import soundfile

from audiomarathon.embedded import synthesis, world
from audiomarathon.files import write_bytes, write_text
from audiomarathon.wings.jasco.speech import SPEECH_FILE
from audiomarathon.wings.jasco.task import COLUMNS, METADATA

_RATE, _SECONDS, _SPEECH = 16_000, 8.0, (4.0, 5.5)
_CLIPS = (("Dog", "stone"), ("Water", "garden"), ("Dishes", "kettle"), ("Alarm", "engine"))  # sound, a spoken word


def write(root: Path) -> None:
    """Write synthetic JASCO data for trials into a data root: `jasco/v0.csv`, its four clips, and `speech.csv`."""
    labels = {label.cue: label for label in world.EVENTS}
    table, spoken = io.StringIO(), io.StringIO()
    rows, spans = csv.writer(table), csv.writer(spoken)
    rows.writerow(["audio_id", *COLUMNS.values()])
    spans.writerow(["id", "start", "end"])
    for number, (sound, word) in enumerate(_CLIPS, 1):
        rng = world.stream(42, "benchmark", 101, number)
        heard = synthesis.needle("desed", [(labels[sound], 0.5)], rng, _SECONDS, _RATE).samples
        said = synthesis.speech([(word, _SPEECH[0]), ("window", _SPEECH[0] + 0.8)], rng, _SECONDS, _RATE).samples
        stream = io.BytesIO()
        soundfile.write(stream, (heard + said) / 2, _RATE, format="WAV")
        write_bytes(root / "jasco" / f"{number}.wav", stream.getvalue())
        texts = {
            "audio_sound": sound,
            "spoken_text": f"{word} window",
            "audio_only_target": f"They are near a {sound.lower()}.",
            "speech_only_target": f"They talk about a {word} and a window.",
            "tgt_text": f"They take the {word} to the window because of the {sound.lower()}.",
            "target_keywords": f"{word}, {sound.lower()}",
        }
        rows.writerow([number, *(texts[name] for name in COLUMNS)])
        spans.writerow([number, *_SPEECH])
    write_text(root / "jasco" / METADATA, table.getvalue())
    write_text(root / "jasco" / SPEECH_FILE, spoken.getvalue())

"""Write a small encoder task in X-ARES' format: which of ten scenes is a synthetic clip from?"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import soundfile

from audiomarathon.embedded import world
from audiomarathon.embedded.synthesis import texture
from audiomarathon.files import write_bytes, write_text

NAME = "sounds"
_RATE = 16_000
_TASK = """from xares.task import TaskConfig


def {name}_config(encoder) -> TaskConfig:
    return TaskConfig(
        name="{name}",
        formal_name="Synthetic scenes",
        encoder=encoder,
        k_fold_splits=[1, 2, 3, 4, 5],
        label_processor=lambda x: {labels}.index(x["label"]),
        output_dim={classes},
    )
"""


def write_task(root: Path, *, clips: int = 6, seconds: tuple[float, float] = (0.1, 0.2)) -> Path:
    """Write the task's clips as tars into `<root>/sounds`, and its task file into `root`; return the task file.

    Parameters
    ----------
    clips
        Number of clips of each of the ten scenes in each of the five folds.
    seconds
        Length of the shortest and of the longest clip.
    """
    labels = world.labels_of("tau")
    for fold in range(1, 6):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            for place, label in enumerate(labels):
                for number in range(clips):
                    rng = world.stream(0, "benchmark", 99, fold, place, number)
                    clip = texture("tau", label, rng, rng.uniform(*seconds), _RATE)
                    sound = io.BytesIO()
                    soundfile.write(sound, clip.samples, _RATE, format="FLAC")
                    key = f"{label.name.lower().replace(' ', '_')}_{fold}_{number}"
                    for suffix, content in (
                        ("flac", sound.getvalue()),
                        ("json", json.dumps({"label": label.name}).encode()),
                    ):
                        member = tarfile.TarInfo(f"{key}.{suffix}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))
        write_bytes(root / NAME / f"wds-audio-fold-{fold}-000000.tar", stream.getvalue())
    text = _TASK.format(name=NAME, labels=[label.name for label in labels], classes=len(labels))
    write_text(file := root / f"{NAME}_task.py", text)
    return file

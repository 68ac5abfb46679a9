"""Write real recordings of speech as TOML tasks: `python scripts/real/speech.py OUT`.

The recordings are Asterisk's voice prompts (Debian packages, CC-BY-SA-3.0, one voice a language) and, in English, five
sentences of a LibriVox reading from this repository. Prompts are joined in sorted order, each used once, to clips that
fit into one window of 30 s of Whisper's encoder; with `--long`, to clips of 90–300 s. The script writes the task's TOML
file, its rows and its clips into OUT; a row's `prompts` has the start and end of each prompt in seconds.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from audiomarathon.audio.decode import decode
from audiomarathon.errors import AudioMarathonError, DataError
from audiomarathon.files import write_bytes, write_lines, writing

HERE = Path(__file__).parent
LIBRIVOX = HERE.parent.parent / "tests" / "data" / "speech"
SHARE = Path("/usr/share")
GAP_S = 0.25
RATE = 16_000
SHORT_S, LONG_S, WINDOW_S = 28.0, 90.0, 30.0
FEWEST_WORDS = 5

#: {language: (folder of its voice, letters of its texts)}.
VOICES: Mapping[str, tuple[str, str]] = {
    "en": ("en_US_f_Allison", "a-z"),
    "es": ("es_MX_f_Allison", "a-záéíñóúü"),
    "fr": ("fr_CA_f_June", "a-zàâæçèéêëîïôœùûü"),
    "it": ("it_IT_m_Carlo", "a-zàèéìîòóù"),
    "ru": ("ru_RU_f_IvrvoiceRU", "а-яё"),
}
#: {language: {prompt whose recording does not say its text: the difference}}.
WRONG: Mapping[str, Mapping[str, str]] = {
    "es": {"vm-record-prepend": "begins with a sentence about another key"},
    "it": {
        "beeperr": "the text describes a beep",
        "confbridge-join": "the text describes a beep",
        "confbridge-leave": "the text describes a beep",
        "confbridge-only-one": "says: c'è attualmente solo un altro partecipante",
        "please-try-call-later": "says: per piacere riprova ancora la tua chiamata più tardi",
    },
}


def packages(language: str) -> str:
    """Return the names of the Debian packages with a language's prompts and their texts."""
    return f"asterisk-core-sounds-{language}-wav asterisk-core-sounds-{language}"


@functools.cache
def prompts(language: str = "en", fewest: int = FEWEST_WORDS) -> Mapping[Path, str]:
    """Return {recording: its text} of Asterisk's prompts of at least `fewest` words, sorted; {} without recordings.

    Left out are texts with digits, keys or remarks on the sound, which differ from the spoken words; texts in which a
    question mark replaces a lost letter; second takes; and the recordings in `WRONG`.
    """
    voice, letters = VOICES[language]
    sounds = SHARE / "asterisk" / "sounds"
    places = (sounds / voice, sounds / language, Path("/var/lib/asterisk/sounds") / language)
    texts = SHARE / "doc" / f"asterisk-core-sounds-{language}" / f"core-sounds-{language}.txt"
    folder = next((place for place in places if any(place.glob("*.wav"))), None)
    file = next((file for file in (Path(f"{texts}.gz"), texts) if file.is_file()), None)
    if folder is None or file is None:
        return {}
    content = file.read_bytes()
    lines = (gzip.decompress(content) if file.suffix == ".gz" else content).decode("utf-8-sig").splitlines()
    by_file, said = {}, set()
    for name, _, text in sorted(line.partition(": ") for line in lines if not line.startswith(";")):
        place, words = folder / f"{name}.wav", tuple(re.findall(r"[^\W_](?:[^\W_]|')*", text.upper()))
        clean = re.fullmatch(rf"[{letters} ,.'’!?¿¡;-]+", text, re.IGNORECASE) and not re.search(r"\? *[a-zà-ÿ]", text)
        usable = clean and len(words) >= fewest and name not in WRONG.get(language, ())
        if usable and words not in said and place.is_file():
            by_file[place] = text
            said.add(words)
    return by_file


def sentences() -> dict[Path, str]:
    """Return {recording: its text} of the sentences of the LibriVox reading; the texts were published with them."""
    lines = (LIBRIVOX / "transcripts.tsv").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("\t") for line in lines)
    return {LIBRIVOX / f"{name}.ogg": text for name, text in pairs}


def joined(paths: Sequence[Path], sampling_rate: int) -> np.ndarray:
    """Join recordings, with a gap between them; return float32 mono samples."""
    gap = np.zeros(round(GAP_S * sampling_rate), np.float32)
    parts = [part for path in paths for part in (decode(path, sampling_rate), gap)]
    return np.concatenate(parts[:-1])


def joined_seconds(paths: Sequence[Path]) -> float:
    """Return the expected length in seconds of the recordings joined with gaps, from their headers."""
    return sum(soundfile.info(path).duration for path in paths) + GAP_S * (len(paths) - 1)


def windows(paths: Sequence[Path]) -> list[list[Path]]:
    """Group recordings into clips of up to 28 s; one of 28 to 30 s is a clip by itself, a longer one is left out."""
    clips: list[list[Path]] = []
    for path in paths:
        if clips and joined_seconds([*clips[-1], path]) <= SHORT_S:
            clips[-1].append(path)
        elif joined_seconds([path]) <= WINDOW_S:
            clips.append([path])
    return clips


def long_clips(paths: Sequence[Path]) -> list[list[Path]]:
    """Group recordings into clips of 90 s or a little more; a rest below 90 s is added to the last clip."""
    clips: list[list[Path]] = [[]]
    for path in paths:
        if clips[-1] and joined_seconds(clips[-1]) >= LONG_S:
            clips.append([])
        clips[-1].append(path)
    if len(clips) > 1 and joined_seconds(clips[-1]) < LONG_S:
        rest = clips.pop()
        clips[-1] += rest
    return clips


def row(name: str, audio: str, said: Mapping[Path, str], paths: Sequence[Path], source: str, cluster: str) -> Any:
    """Return a clip's row for the task's file. The transcript leaves out "..." in a text, which is not a word."""
    parts, start = [], 0.0
    for path in paths:
        end = start + joined_seconds([path])
        text = " ".join(re.sub(r"\.{2,}", " ", said[path]).split())
        parts.append({"name": path.stem, "start": round(start, 3), "end": round(end, 3), "text": text})
        start = end + GAP_S
    transcript = " ".join(part["text"] for part in parts)
    fields = {"id": name, "audio": audio, "transcript": transcript, "cluster": cluster, "source": source}
    return {**fields, "prompts": parts}


def task_name(language: str, *, long: bool) -> str:
    """Return the name of a task, which its file, its rows' file and its clips' folder share."""
    return "prompts" + f"_{language}" * (language != "en") + "_long" * long


def write(out: Path, language: str = "en", *, long: bool = False) -> Path:
    """Write a task's clips, rows and TOML file; return the TOML file.

    Raises
    ------
    DataError
        When the prompts are not installed and nothing in this repository takes their place.
    """
    name, said, spoken = task_name(language, long=long), prompts(language), sentences()
    if not said and (long or language != "en"):
        raise DataError(f"no prompts of Asterisk in '{language}' on this machine: apt-get install {packages(language)}")
    groups = [("asterisk", f"{name}-{number:02d}", paths)
              for number, paths in enumerate((long_clips if long else windows)(list(said)), 1)]  # fmt: skip
    if language == "en" and not long:
        groups += [("librivox", path.stem, [path]) for path in spoken]
    rows = []
    for source, clip, paths in groups:
        place = f"{name}/{clip}.flac"
        with writing(out / place):
            (out / place).parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(out / place, joined(paths, RATE), RATE)
        # Sentences of one reading depend on each other; clips of prompts share no recording.
        rows.append(row(clip, place, {**said, **spoken}, paths, source, clip if source == "asterisk" else "librivox"))
    write_lines(out / f"{name}.jsonl", rows)
    write_bytes(out / f"{name}.toml", (HERE / f"{name}.toml").read_bytes())
    return out / f"{name}.toml"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a task, and print its file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="data folder to write")
    parser.add_argument("--language", choices=sorted(VOICES), default="en", help="language of the prompts")
    parser.add_argument("--long", action="store_true", help="clips of 90 to 300 s instead of 28 s; English only")
    given = parser.parse_args(arguments)
    if given.long and given.language != "en":
        parser.error("--long has English prompts only; leave out --language")
    try:
        task = write(given.out, given.language, long=given.long)
    except (AudioMarathonError, soundfile.LibsndfileError) as error:  # libsndfile's names the file, as on a full disk
        print(f"error: {error}", file=sys.stderr)
        return 1
    if not prompts(given.language):
        print(f"only 5 sentences: no prompts of Asterisk here; for more: apt-get install {packages(given.language)}")
    print(task)
    return 0


if __name__ == "__main__":
    sys.exit(main())

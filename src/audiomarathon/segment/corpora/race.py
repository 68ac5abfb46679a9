"""RACE: passages and questions of English exams, which a speech synthesiser of the user's choice reads aloud."""

from __future__ import annotations

import json
import random
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from audiomarathon.benchmarks.audiomarathon.race import Race
from audiomarathon.benchmarks.rows import read_text
from audiomarathon.errors import AudioError, DataError
from audiomarathon.records import LETTERS
from audiomarathon.segment.corpus import Corpus, Group, Row, Source, below


class RaceCorpus(Corpus):
    """Turn each passage into one clip. Passages whose audio is too short or too long are left out."""

    task = "race"
    title = "RACE"
    layout = """\
  RACE/test/high/*.txt, RACE/test/middle/*.txt    JSON: article, questions, options (four each), answers, id
A speech synthesiser reads the passages: a command with {text} (a UTF-8 file) and {out} (the WAV it must write)."""
    example = 'RACE/test --tts "espeak-ng -w {out} -f {text}" -o data/RACE'
    seconds = (120.0, 252.0)
    spoken = True
    metadata_file = Race.metadata_file
    clip = "{name}.wav"
    tts: Annotated[str, typer.Option(help='Command, such as "espeak-ng -w {out} -f {text}".')]
    tts_seconds: Annotated[float, typer.Option(help="Time limit per passage, in seconds.")] = 600.0

    def __init__(self, raw: Sequence[Path], seed: int, **options: Any) -> None:
        super().__init__(raw, seed, **options)
        if "{out}" not in self.tts or "{text}" not in self.tts:
            raise DataError(f"--tts {self.tts!r}: expected a command with {{text}} and {{out}} in it")
        try:
            self._command("", "")
        except (ValueError, LookupError) as error:
            why = f"each quote needs a closing quote, and only text and out may be in braces ({error})"
            raise DataError(f"--tts {self.tts!r}: {why}") from None
        self.options = {"tts": self.tts}

    def groups(self) -> list[Group]:
        """Return one group per passage, each with a single source."""
        groups = []
        for root in self.roots:
            for path in below(root, [".txt"]):
                difficulty = path.parent.name
                if difficulty not in ("high", "middle"):
                    continue
                try:
                    passage = _passage(path)
                except (ValueError, LookupError, TypeError, AttributeError, RecursionError, DataError) as error:
                    self.left_out.append((self.name(path), f"is not a passage with questions ({error!r})"))
                    continue
                for number in passage["unusable"]:
                    self.left_out.append((f"{self.name(path)}#{number}", "does not have four options"))
                facts = {"article_id": passage["id"], "questions": passage["questions"]}
                groups.append(Group(f"{difficulty}/{path.stem}", [Source(path, self.name(path))], facts))
        if not groups and not self.left_out:
            self.the_one([], "high/*.txt or middle/*.txt")
        return groups

    def audio(self, source: Source, scratch: Path) -> Path:
        """Run the command that reads the passage aloud, and return the path of the audio file."""
        text, out = scratch / "passage.txt", scratch / "passage.wav"
        text.write_text(_passage(source.path)["article"] + "\n", encoding="utf-8")
        command = self._command(str(text), str(out))
        try:
            done = subprocess.run(command, check=False, capture_output=True, timeout=self.tts_seconds)
        except (FileNotFoundError, PermissionError) as error:
            raise DataError(f"--tts: {command[0]} cannot be run ({error.strerror}); is it installed?") from error
        except subprocess.TimeoutExpired:
            raise AudioError(source.path, f"was not read aloud within {self.tts_seconds:g} s (--tts-seconds)") from None
        if done.returncode or not out.is_file():
            words = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["nothing was written"]
            raise AudioError(source.path, f"{command[0]} ended with exit code {done.returncode}: {words[0]}")
        return out

    def _command(self, text: str, out: str) -> list[str]:
        return [word.format(text=text, out=out) for word in shlex.split(self.tts)]

    def rows(self, clip: Row, chance: random.Random) -> list[Row]:
        """Return a list of rows, one for each of the exam's questions on the passage."""
        del chance
        facts = clip["facts"]
        return [
            {"audio_path": clip["path"], **question, "article_id": facts["article_id"]}
            for question in facts["questions"]
        ]


def _passage(path: Path) -> dict[str, Any]:
    """Read a passage; return its `id`, `article`, `questions`, and `unusable` (positions of bad questions, from 0).

    Raises ValueError, KeyError, TypeError or AttributeError if the file is not a passage.
    """
    data = json.loads(read_text(path))
    questions, unusable = [], []
    triples = zip(data["questions"], data["options"], data["answers"], strict=True)
    for number, (question, texts, answer) in enumerate(triples):
        text, options = " ".join(question.split()), [" ".join(option.split()) for option in texts]
        if text and len(options) == 4 and all(options) and answer in tuple(LETTERS[:4]):
            questions.append({"question": text, "options": options, "answer": answer, "question_idx": number})
        else:
            unusable.append(number)
    if not questions or not data["article"].strip():
        raise ValueError("no article or no question")
    name = str(data.get("id", path.name))
    return {"id": name, "article": data["article"], "questions": questions, "unusable": unusable}

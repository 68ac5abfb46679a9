"""The folder of one run: its lock, its identity and its records, which survive a crash at any moment.

The identity is the set of facts that the records depend on, such as data, checkpoint and setting. `samples.jsonl` holds
the records, one per sample. Each record is a line that is appended, flushed and synced to the disk as
:class:`~audiomarathon.files.Appending` says. When the command is repeated, it reads the lines and continues. If a
sample has several lines, its last line counts, since failed samples are run again.
Only damaged lines are removed; they are moved to `samples.rejected`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from audiomarathon.compression.method import Method
from audiomarathon.errors import RecordError
from audiomarathon.files import (
    Appending,
    open_plain,
    read_plain,
    whole_lines,
    write_bytes,
    write_json,
    writing,
)
from audiomarathon.fingerprint import is_weak, same
from audiomarathon.judges.judgements import read_judgements
from audiomarathon.lock import hold_run
from audiomarathon.records import Corpus, Record
from audiomarathon.runs.record_line import from_line, to_line
from audiomarathon.text import counted

CORPUS_FILE = "corpus.json"
SCHEMA_VERSION = 2  # in version 1, records contained verdicts, and the identity contained the version
_NUMBER = int | float
_RUN_TYPES = (  # types of the fields of run.json
    dict.fromkeys(("task", "method", "model", "checkpoint", "checkpoint_name", "data_folder"), str)
    | dict.fromkeys(("identity", "settings", "control", "drops", "cost", "environment", "left_out"), dict)
    | {"stopping": dict}
    | dict.fromkeys(("samples", "sessions", "bad_rows"), list)
)
_SUMMARY_TYPES = (
    dict.fromkeys(("n", "expected", "errors", "score", "accuracy", "kv_bytes", "peak_memory_bytes"), _NUMBER)
    | dict.fromkeys(("audio_tokens", "kept_audio_tokens", "cost"), _NUMBER)
    | {"task": str, "headline": str, "timing": dict, "intervals": dict}
)
_IGNORED = {"schema_version"}  # fields of older identities that no longer distinguish runs
CODE = "code of "  # prefix of identity fields that older versions did not write


def identity_hash(identity: Mapping[str, Any]) -> str:
    """Return a short hash of a run's identity; the order of its fields does not matter."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, ensure_ascii=True).encode()).hexdigest()[:12]


class RunFolder:
    """The folder of one run: one task, one checkpoint, one setting.

    Use as a context manager: the folder is locked inside the block.

    Parameters
    ----------
    path
        The folder; created if missing.
    identity
        Facts that the records depend on (data, checkpoint, setting, …). They must equal those of the records that are
        already in the folder.
    fits
        Function that tells whether a record fits this task; a record that does not fit counts as damaged.
    texts
        The present transcripts of each sample's clips, if a text LLM reads them; else empty.

    Attributes
    ----------
    weak
        True if an older version, which fingerprinted the checkpoint or the code less strictly, wrote some records.
    appended
        Function that is called with each record after the record is stored; may be replaced.

    Raises
    ------
    RecordError
        On entering the block: another process uses the folder, it holds a run with another identity, or it cannot be
        written.
    """

    def __init__(
        self,
        path: Path,
        identity: Mapping[str, Any],
        fits: Callable[[Record], bool] = lambda _record: True,
        texts: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.path, self.samples_file, self._fits, self._texts = path, path / "samples.jsonl", fits, texts or {}
        self.identity = json.loads(json.dumps(identity))  # in the form read back from run.json: tuples become lists
        self.run: dict[str, Any] = {}
        self.records: dict[str, Record] = {}
        self.weak = False
        self.appended: Callable[[Record], None] = lambda _record: None
        self._lock: IO[bytes] | None = None
        self._file: Appending | None = None

    @property
    def reads(self) -> bool:
        """Whether the model is a text LLM, which reads transcripts of the clips."""
        return bool(self._texts)

    def __enter__(self) -> RunFolder:
        self._lock = hold_run(self.path)
        try:
            self._check_identity()
            with writing(self.samples_file):
                self.records = self._read_and_repair()
                self._file = Appending(self.samples_file)
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            if self._file is not None:  # closed already if `append` failed
                with writing(self.samples_file) if exc[0] is None else contextlib.suppress(OSError):
                    self._file.close()
        finally:
            if self._lock is not None:
                self._lock.close()

    def done(self, clips: Mapping[str, str] | None = None) -> set[str]:
        """Return the ids of samples that have a reply to the current clips.

        In a cascade (a text LLM that reads transcripts), the transcripts must be the current ones too.

        Parameters
        ----------
        clips
            Current hash of each sample's clips; a sample whose record has another hash is not done. With None, neither
            hashes nor transcripts are compared.
        """
        finished = {id_: record for id_, record in self.records.items() if record.answered}
        return {id_ for id_, record in finished.items() if clips is None or self._is_current(record, clips)}

    def _is_current(self, record: Record, clips: Mapping[str, str]) -> bool:
        """Tell whether the sample's clips and their transcripts are still those from which a stored record was made.

        `clips` has the current hash of each sample's clips.
        """
        same_texts = list(record.transcripts_read or ()) == list(self._texts.get(record.id, ()))
        return same(record.clips, clips.get(record.id)) and same_texts

    def append(self, record: Record) -> None:
        """Append a record to `samples.jsonl`, so that it survives a kill of this process.

        Raises
        ------
        RecordError
            The record is invalid, so reading it back would fail, or it cannot be written (such as on a full disk). A
            partial line is then removed, and all earlier records are kept.
        """
        assert self._file is not None, "append outside the with block"
        line = to_line(record)
        with writing(self.samples_file):
            size = self.samples_file.stat().st_size
        try:
            self._file.add(line)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.close()
            with contextlib.suppress(OSError):
                os.truncate(self.samples_file, size)
            safe = f"safe so far: {counted(len(self.records), 'record')}; make room and run the same command again"
            raise RecordError(f"{self.samples_file}: cannot be written: {error.strerror or error}; {safe}") from error
        self.records[record.id] = record
        self.appended(record)

    def write_run(self, content: Mapping[str, Any]) -> None:
        """Write `run.json`: the run's identity, and the further fields `content`."""
        hashed = identity_hash(self.identity)
        identity_fields = {"schema_version": SCHEMA_VERSION, "identity_hash": hashed, "identity": self.identity}
        weak = {"weak_fingerprint": True} if self.weak else {}
        self.run = {**identity_fields, **content, **identity_fields, **weak}
        write_json(self.path / "run.json", self.run)

    def write_corpus(self, references: Sequence[Sequence[str]]) -> None:
        """Write `corpus.json`: the reference texts of all the task's data, by which some scorers weight words."""
        corpus = Corpus(tuple(map(tuple, references)))
        write_json(self.path / CORPUS_FILE, {"hash": corpus.hash, "references": references})

    def peek(self) -> None:
        """Read the stored records into `records` without the `with` block: no lock, no repair, and no file is created.

        Raises
        ------
        RecordError
            The folder holds another run.
        """
        self._check_identity()
        if self.samples_file.exists():
            self.records = {id_: record for id_, record in _bare_records(self.path).items() if self._fits(record)}

    def _check_identity(self) -> None:
        if not self.samples_file.exists() or not self.samples_file.stat().st_size:
            return  # no records yet, so none can be mixed
        if not (self.path / "run.json").exists():
            advice = "name another RESULTS_DIR, or move that folder away"
            raise RecordError(f"{self.path}: holds records, but no run.json, so their run is unknown; {advice}")
        self.run = read_run(self.path)
        held = self.run.get("identity") or {}
        unwritten = {name for name in self.identity if name.startswith(CODE) and name not in held}
        self.weak = bool(self.run.get("weak_fingerprint") or is_weak(held.get("checkpoint")) or unwritten)
        fields = {*held, *self.identity} - unwritten - _IGNORED
        if names := sorted(k for k in fields if not same(held.get(k), self.identity.get(k))):
            there, now = (
                {name: "nothing" if identity.get(name) is None else repr(identity[name]) for name in names[:4]}
                for identity in (held, self.identity)
            )
            shown = "; ".join(f"{name}: {there[name]} there, {now[name]} now" for name in there)
            untimed = held.get("device") is None  # a run without times has the device None
            flag = f" ({'--no-timing' if untimed else '--timing'} continues it)" * (names == ["device"])
            raise RecordError(
                f"{self.path}: holds another run ({shown}); name another RESULTS_DIR{flag}, or move that folder away"
            )

    def _read_and_repair(self) -> dict[str, Record]:
        """Read `samples.jsonl`; return {sample's id: record}.

        Remove a last line that is incomplete, and move damaged lines to `samples.rejected`.
        """
        if not self.samples_file.exists():
            return {}
        with open_plain(self.samples_file, "r+b") as stream:
            records, rejected, whole = {}, dict[int, bytes](), 0
            for number, line in enumerate(whole_lines(stream)):
                whole += len(line)
                if (record := from_line(line)) is None or not self._fits(record):
                    rejected[number] = line
                else:
                    records[record.id] = record
            if stream.seek(0, os.SEEK_END) > whole:
                stream.truncate(whole)
            stream.seek(0)
            good = [line for at, line in enumerate(whole_lines(stream)) if at not in rejected] if rejected else []
        if rejected:
            self._set_aside([*rejected.values()])
            write_bytes(self.samples_file, b"".join(good), synced=True)
        return records

    def _set_aside(self, lines: Sequence[bytes]) -> None:
        with open_plain(self.path / "samples.rejected", "ab") as stream:
            stream.writelines(lines)
        unreadable = counted(len(lines), "unreadable line")
        warnings.warn(f"{self.path}: {unreadable} set aside in samples.rejected; these samples run again", stacklevel=2)


@dataclass(frozen=True)
class Job:
    """A method to evaluate, and the run folder for the records of its setting."""

    method: Method
    folder: RunFolder


def checkpoint_of(facts: Mapping[str, Any]) -> str:
    """Return the name of a run's checkpoint: its folder's name or, if it came from the hub, the repository's name.

    `facts` is the content of `run.json`.
    """
    if named := facts.get("checkpoint_name"):
        return str(named)
    path = Path(str(facts.get("checkpoint", "")))
    if path.parts[-2:] == ("embedded", "checkpoint"):  # ships with the package
        return "embedded"
    if path.parent.name == "snapshots":
        return path.parent.parent.name.removeprefix("models--").rpartition("--")[2]
    return path.name


def read_records(path: Path) -> dict[str, Record]:
    """Read a run's records, as {sample's id: record}, with the task's reference texts and the judges' answers.

    Change no file, since the run may be active. Skip an incomplete last line silently, and damaged lines with a
    warning. The reference texts come from `corpus.json`, if the run has one.

    Raises
    ------
    RecordError
        The file is missing or cannot be read.
    """
    return with_context(path, _bare_records(path))


def _bare_records(path: Path) -> dict[str, Record]:
    file = path / "samples.jsonl"
    records, odd = dict[str, Record](), 0
    try:
        with open_plain(file) as stream:
            for record in map(from_line, whole_lines(stream)):
                if record is None:
                    odd += 1
                else:
                    records[record.id] = record
    except OSError as error:
        raise RecordError(f"{file}: cannot be read: {error.strerror or error}") from error
    if odd:
        unreadable = counted(odd, "unreadable line")
        warnings.warn(f"{file}: {unreadable} left out; run the same command again for these samples", stacklevel=2)
    return records


def with_context(path: Path, records: Mapping[str, Record]) -> dict[str, Record]:
    """Return a run's records, as {sample's id: record}, with reference texts and judges' answers from its folder added.

    Reference texts come from `corpus.json`. Every record lists every judge, including judges that have not judged it.
    """
    if (file := path / CORPUS_FILE).exists():
        corpus = _corpus(file)
        records = {id_: replace(record, corpus=corpus) for id_, record in records.items()}
    if not (judges := read_judgements(path)):
        return dict(records)

    def said(id_: str) -> dict[str, dict[str, str | None]]:
        return {
            judge: {
                hashed: judgement.text if judgement.error is None else None
                for hashed, judgement in samples.get(id_, {}).items()
            }
            for judge, samples in judges.items()
        }

    return {id_: replace(record, judgements=said(id_)) for id_, record in records.items()}


def _corpus(file: Path) -> Corpus:
    content = read_object(file)
    references = content.get("references")
    if not isinstance(references, list) or not all(
        isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts) for texts in references
    ):
        raise RecordError(f"{file}: its 'references' must be a list of lists of texts")
    corpus = Corpus(tuple(map(tuple, references)))
    if corpus.hash != content.get("hash"):
        raise RecordError(f"{file}: its 'references' were changed after the run; restore the file, or run again")
    return corpus


def what_failed(path: Path, errors: int) -> str:
    """Return a message for the user: how many of a run's samples failed (`errors`), and the first error."""
    said = (f"{id_}: {record.error}" for id_, record in read_records(path).items() if not record.answered)
    first = " ".join(next(said, "").split())[:300]
    return f"{counted(errors, 'sample')} failed (see 'error' in samples.jsonl; the first: {first})"


# Identity fields that hold a single value. A method's own parameters may be lists.
_PLAIN = (
    "checkpoint", "dtype", "attention", "prompts", "data", "max_new_tokens", "decode_tokens", "seed", "device", "ratio",
)  # fmt: skip


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON file of a run folder, which must hold an object.

    Raises
    ------
    RecordError
        The file cannot be read, or is not a JSON object.
    """
    try:
        text = read_plain(file)
        if not text.strip():
            raise RecordError(f"{file}: cannot be read: it is empty")
        content = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not complete JSON ({error})"
        raise RecordError(f"{file}: cannot be read: {reason}") from error
    if not isinstance(content, dict):
        raise RecordError(f"{file}: not a JSON object")
    return content


def read_summary(path: Path) -> dict[str, Any]:
    """Return the content of a run folder's `summary.json`, after checking the types of its fields.

    Raises
    ------
    RecordError
        The file cannot be read, or a field has the wrong type.
    """
    content = read_object(file := path / "summary.json")
    _check(file, content, _SUMMARY_TYPES)
    if not all(pair is None or _is_pair(pair) for pair in (content.get("intervals") or {}).values()):
        raise RecordError(f"{file}: its 'intervals' must hold pairs of numbers")
    return content


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(end, _NUMBER) for end in value)


def _check(file: Path, content: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """Raise :class:`RecordError` if a field of `content` has another type than `kinds` says. A field may be missing."""
    if odd := [name for name, kind in kinds.items() if not isinstance(content.get(name), kind | None)]:
        raise RecordError(f"{file}: its {odd[0]!r} has a value of the wrong type")


def read_run(path: Path) -> dict[str, Any]:
    """Return the content of a run folder's `run.json`, after checking it.

    Raises
    ------
    RecordError
        The file is missing, or is not valid.
    """
    file = path / "run.json"
    if not file.exists():
        raise RecordError(f"{path}: not a run folder, since it holds no run.json")
    return check_run(file, read_object(file))


def check_run(file: Path, content: object) -> dict[str, Any]:
    """Check the content of a `run.json` and return it; raise :class:`RecordError` if it is not valid.

    `file` is named in the error.
    """
    if not isinstance(content, dict):
        raise RecordError(f"{file}: the facts of its run are not a JSON object")
    _check(file, content, _RUN_TYPES)
    _check(file, content.get("identity") or {}, dict.fromkeys(_PLAIN, str | _NUMBER))
    if not all(isinstance(session, dict) for session in content.get("sessions") or ()):
        raise RecordError(f"{file}: its 'sessions' must hold JSON objects")
    if (version := content.get("schema_version", 1)) not in range(1, SCHEMA_VERSION + 1):
        raise RecordError(f"{file}: schema version {version}; this audiomarathon reads 1 to {SCHEMA_VERSION}")
    if odd := [name for name in ("task", "method") if not str(content.get(name, "")).isprintable()]:
        raise RecordError(f"{file}: {odd[0]} {content[odd[0]]!r} holds control characters")
    return content

"""Read and check the rows of metadata files: an error in a row is reported as a reason, never as a traceback."""

from __future__ import annotations

import ast
import contextlib
import csv
import io
import itertools
import json
import math
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from audiomarathon.benchmarks.task import BadRow, Sample, name_id
from audiomarathon.errors import DataError, SettingsError, told
from audiomarathon.files import MAX_METADATA_BYTES, write_text
from audiomarathon.records import LETTERS, MAX_REPLY, Record

MAX_VALUES = 10_000_000  # in a parquet table: a file's size is no limit, since a million nulls take almost no space
MAX_ID_LENGTH = 200
MAX_TEXT_LENGTH = 100_000  # limit of a text in characters; the longest passage read aloud has about 5,000
MAX_SHOWN = 120
_SHOWN_FAULTS = 5

#: Suffixes that libsndfile reads and data sets use; other files are refused.
AUDIO_SUFFIXES = (
    ".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".caf", ".w64", ".rf64", ".sph",
)  # fmt: skip
_KINDS = ", ".join(AUDIO_SUFFIXES)
_REMEMBERED = 256  # cached texts: rows repeat their options and answers
_NO_TEXT = re.compile("[\0\ud800-\udfff]")

# A list as Python or numpy prints it, one item with the gap after it, and the beginning of any such list, set or dict.
_ARRAY = re.compile(r"(?:np\.|numpy\.)?array\(\s*(.*?)\s*(?:,\s*dtype=[^\])]*)?\)", re.DOTALL)
_TEXT = r"""[uU]?'(?:[^'\\]|\\.)*'|[uU]?"(?:[^"\\]|\\.)*\""""
_WRAP = r"(?:np\.|numpy\.)?str_\("
_ITEM = re.compile(
    rf"({_WRAP})?(?P<value>{_TEXT}|None|nan|[-+]?[0-9.][0-9.eE+-]*)(?(1)\))(?P<gap>\s*,\s*|\s+|$)", re.DOTALL
)
_LIKE_A_LIST = re.compile(rf"[\s'\"]*(?:(?:np\.|numpy\.)?array\(\s*)?[\[{{][\[{{(\s]*(?:{_WRAP})?[uUbBrR]?\\?['\"‘’“”]")


class RowError(ValueError):
    """A row cannot become a sample; the message is the reason. Loading a task turns it into a :class:`BadRow`."""


class MissingClipError(RowError):
    """The clip that a row names is missing; `name` is its file name without folders and suffix."""

    def __init__(self, reason: str, name: str) -> None:
        super().__init__(reason)
        self.name = name


@dataclass(frozen=True)
class Row:
    """One row of a metadata file, with the folder of its task, in which its clips are searched."""

    folder: Path
    fields: Mapping[str, Any]

    def text(self, name: str) -> str:
        """Return the text in a required field. A number counts as its digits, and 2.0 as "2"."""
        value = self.fields.get(name)
        if isinstance(value, str):
            return clean(value, f"field {name!r}")
        if is_absent(value):
            raise RowError(f"field {name!r} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RowError(f"field {name!r} holds a {type(value).__name__}, expected text")
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return clean(str(value), f"field {name!r}")

    def optional(self, name: str) -> str:
        """Return the text in a field; "" if the row lacks the field."""
        return "" if self._lacks(name) else self.text(name)

    def lettered(self, prefix: str = "choice_") -> tuple[str, ...]:
        """Return the texts of the fields `choice_a`, `choice_b`, …, up to the first that is absent or empty."""
        names = _names(prefix)
        present = [name for name in names if name in self.fields and not self._lacks(name)]
        if present != list(names[: len(present)]):
            absent = next(name for name in names if name not in present)
            raise RowError(f"field {absent!r} is missing, but {present[-1]!r} is there")
        return tuple(self.text(name) for name in present)

    def listed(self, names: Sequence[str], *, may_end: bool = False) -> list[str]:
        """Return a list of texts: the list in one field (which may be written as text), or the texts of several fields.

        Parameters
        ----------
        names
            Name of the one field, or of each of the several fields.
        may_end
            Allow missing fields at the end, since rows have different numbers of options.
        """
        values = self._values(names)
        while may_end and len(values) > 1 and (values[-1][1] == "" or is_absent(values[-1][1])):
            values = values[:-1]
        return [replace(self, fields=dict([value])).text(value[0]) for value in values]

    def clips(self, names: Sequence[str]) -> tuple[Path, ...]:
        """Return the paths of the clips that a row names, in several fields or in one field with a list."""
        return tuple(replace(self, fields=dict([value])).clip(value[0]) for value in self._values(names))

    def _values(self, names: Sequence[str]) -> list[tuple[str, Any]]:
        """Return (name, value) pairs of the fields `names`. A list in a single field gives a pair for each item."""
        values = [self.fields.get(name) for name in names]
        if len(names) == 1 and isinstance(value := values[0], str) and (texts := list_in(value)) is not None:
            values = [texts]
        if len(names) == 1 and isinstance(values[0], list):
            if not (values := values[0]):
                raise RowError(f"field {names[0]!r} is an empty list")
            names = [f"{names[0]}, item {number}" for number in range(1, len(values) + 1)]
        return [*zip(names, values, strict=False)]

    def id(self, name: str) -> str:
        """Return the text in a field as a sample's id; raise :class:`RowError` unless it is one short line."""
        text = self.text(name)
        if len(text) > MAX_ID_LENGTH or not text.isprintable():
            raise RowError(f"id {shown(text)} is not one line of at most {MAX_ID_LENGTH} characters")
        return name_id(text)

    def clip(self, name: str, *subfolders: str) -> Path:
        """Return the path of the clip that a field names, in the task's folder or one of its subfolders.

        A path that leaves the task's folder is refused. The check uses the written path, not the target of links: the
        hub's cache stores every clip as a link to another folder. A name may begin or end with white space, and is
        found in both of Unicode's forms of accents, since an archive made on macOS may be unpacked on Linux.
        """
        written = self.text(name)
        relative = written.replace("\\", "/")
        top, bases = _bases(self.folder, subfolders)
        for spelling, base in itertools.product(_spellings(str(self.fields[name]).replace("\\", "/")), bases):
            path = os.path.normpath(os.path.join(base, spelling))  # noqa: PTH118  # see _bases
            if path.startswith(top) and os.path.isfile(path):  # noqa: PTH113
                if not path.lower().endswith(AUDIO_SUFFIXES) or f"{os.sep}." in path[len(top) - 1 :]:
                    raise RowError(f"{name} {shown(written)} is not an audio file; allowed: {_KINDS}; no hidden files")
                return Path(path)
        if not os.path.normpath(self.folder / relative).startswith(top):
            raise RowError(f"{name} {shown(written)} leaves the task's folder {self.folder}")
        raise MissingClipError(f"clip {shown(written)} is missing under {self.folder}", PurePosixPath(relative).stem)

    def identifier(self, clip: Path) -> str:
        """Return an id for the row's sample: its `uniq_id` if that is valid, else the clip's path within the folder."""
        with contextlib.suppress(RowError):
            if not isinstance(self.fields.get("uniq_id"), float):
                return self.id("uniq_id")
        return self.relative(clip)

    def relative(self, clip: Path) -> str:
        """Return a clip's path within the task's folder, which is the same on every machine."""
        return name_id(clip.relative_to(self.folder).as_posix())

    def extras(self, *names: str) -> dict[str, Any]:
        """Return the fields `names` that hold a text, a number, or a short list of these, as {name: value}."""
        return {name: self.fields[name] for name in names if _is_plain(self.fields.get(name))}

    def _lacks(self, name: str) -> bool:
        value = self.fields.get(name)
        return value == "" or is_absent(value)


def read_rows(file: Path, key: str | None = None) -> list[Any]:
    """Return the list of rows in a metadata file.

    Parameters
    ----------
    file
        The JSON file.
    key
        Field of the top-level object that holds the list; None if the top level is the list.

    Raises
    ------
    DataError
        The file cannot be read, is not JSON (with line and column), or does not hold a list of rows.
    """
    data = read_json(file)
    if key is not None:
        if not isinstance(data, dict) or key not in data:
            raise DataError(f"{file}: expected an object with the field {key!r}, found {_kind(data)}")
        data = data[key]
    if not isinstance(data, list):
        raise DataError(f"{file}: expected a list of rows, found {_kind(data)}")
    if not data:
        raise DataError(f"{file}: holds no rows")
    return data


def read_text(file: Path) -> str:
    """Return the UTF-8 text of a file of limited size. A pipe or a device is refused.

    Raises
    ------
    DataError
        The file cannot be read, is not a plain file, is too large, or is not UTF-8.
    """
    try:
        _check_plain(file)
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 text (byte {error.start})") from error


def _check_plain(file: Path, *, of_any_size: bool = False) -> None:
    try:
        status = file.stat()
    except FileNotFoundError:
        raise DataError(f"{file}: no such file") from None
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{file}: is not a plain file")
    if status.st_size > MAX_METADATA_BYTES and not of_any_size:
        raise DataError(f"{file}: {status.st_size / 2**20:.0f} MB is too large for metadata (at most 256 MB)")


def read_csv(file: Path, needed: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a CSV file as pairs (number of the row's last line in the file, {column: text}).

    Every value is text, even `NA` or `None`.

    Raises
    ------
    DataError
        The file cannot be read, lacks a column, or has a row with more fields than columns.
    """
    try:
        reader = csv.DictReader(io.StringIO(read_text(file), newline=""), restval="", strict=True)
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise DataError(f"{file}: not CSV: {error} at line {reader.line_num}") from error
    _check_columns(file, reader.fieldnames or (), needed)
    if long := next((line for line, row in rows if None in row), 0):
        raise DataError(f"{file}: line {long} has more fields than there are columns")
    return rows


def _check_columns(file: Path, names: Sequence[str], needed: Sequence[str]) -> None:
    """Raise an error if a table lacks a needed column, or has two columns of the same name.

    Readers would silently use the last of the two.
    """
    if lacking := [name for name in needed if name not in names]:
        raise DataError(f"{file}: lacks the column {lacking[0]!r}; expected {', '.join(needed)}")
    if twice := next((name for name in names if name and names.count(name) > 1), ""):
        raise DataError(f"{file}: has {names.count(twice)} columns {shown(twice)}; keep one")


def read_parquet(file: Path, needed: Sequence[str], others: Sequence[str] = ()) -> Any:
    """Read columns of a parquet file as a `pyarrow.Table`: all of `needed`, and those of `others` that exist.

    Raises
    ------
    SettingsError
        pyarrow is not installed.
    DataError
        The file cannot be read, lacks a column, or is too large for metadata.
    """
    with _parquet(file, needed) as opened:
        import pyarrow

        fields = [field for field in opened.schema_arrow if field.name in {*needed, *others}]
        batches = _batches(file, opened, [field.name for field in fields])
        table = pyarrow.Table.from_batches(batches, pyarrow.schema(fields))
        table.validate(full=True)  # checks that texts are UTF-8
    return table


def read_table(file: Path, columns: Sequence[str]) -> Iterator[Any]:
    """Yield the rows of a file of JSON, JSON lines, CSV or parquet, according to its suffix.

    For a bad line, yield a `RowError`. From a parquet file, read only `columns`, a few rows at a time, since its audio
    may not fit into memory.

    Raises
    ------
    SettingsError
        A parquet file needs pyarrow, which is not installed.
    DataError
        The file cannot be read.
    """
    match file.suffix.lower():
        case ".json":
            yield from read_rows(file)
        case ".jsonl":
            lines = (line for line in read_text(file).split("\n") if line.strip())
            yield from map(_fields_of, lines)
        case ".csv":
            yield from (row for _line, row in read_csv(file, columns))
        case _:
            with _parquet(file, columns, of_any_size=True) as opened:
                for batch in opened.iter_batches(8, columns=list(columns)):
                    batch.validate(full=True)  # checks that texts are UTF-8
                    yield from batch.to_pylist()


def _fields_of(line: str) -> dict[str, Any] | RowError:
    try:
        fields = json.loads(line, object_pairs_hook=unique_fields)
    except (ValueError, RecursionError) as error:
        return RowError(f"not JSON ({told(error)})")
    return fields if isinstance(fields, dict) and fields else RowError("not JSON of an object with fields")


def need_pyarrow() -> None:
    """Raise :class:`SettingsError` if pyarrow, which reads and writes parquet, is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise SettingsError("parquet files need pyarrow: pip install 'audiomarathon[lalm]'") from error


@contextlib.contextmanager
def _parquet(file: Path, needed: Sequence[str], *, of_any_size: bool = False) -> Iterator[Any]:
    need_pyarrow()
    import pyarrow
    from pyarrow import parquet

    try:
        _check_plain(file, of_any_size=of_any_size)
        with parquet.ParquetFile(file) as opened:  # read_table would take columns from folders called name=value
            _check_columns(file, opened.schema_arrow.names, needed)
            yield opened
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file}: cannot be read as parquet: {told(error)}") from error


def _batches(file: Path, opened: Any, columns: Sequence[str]) -> list[Any]:
    """Read columns of a parquet file as batches of rows; raise :class:`DataError` if they are too large.

    A limit is needed because 50 kB can unpack to gigabytes.
    """
    groups = [opened.metadata.row_group(number) for number in range(opened.num_row_groups)]
    values = sum(group.column(number).num_values for group in groups for number in range(group.num_columns))
    # Rows may share one stored value, so a single unpacked row can be as large as its whole row group.
    rows = MAX_METADATA_BYTES // max([1, *(group.total_byte_size for group in groups)])
    size, batches = 0, []
    if values <= MAX_VALUES:
        for batch in opened.iter_batches(min(max(1, rows), 64), columns=columns):
            if (size := size + batch.nbytes) > MAX_METADATA_BYTES:
                break
            batches.append(batch)
        else:
            return batches
    raise DataError(f"{file}: is too large for metadata; allowed: 256 MB when unpacked, and {MAX_VALUES:,} values")


def as_csv(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> str:
    """Return rows as the text of a CSV file, written as pandas would write it; a missing value or None is empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def write_ascii(file: Path, content: object) -> None:
    """Write content to a JSON file in pure ASCII, like the files of the public data."""
    write_text(file, json.dumps(content, indent=2, ensure_ascii=True) + "\n")


def read_json(file: Path) -> Any:
    """Return the content of a JSON file; every error becomes a :class:`DataError` with a one-line message."""
    text = read_text(file)
    try:
        return json.loads(text, object_pairs_hook=unique_fields)
    except json.JSONDecodeError as error:
        raise DataError(f"{file}: not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise DataError(f"{file}: not metadata: nested too deeply") from error
    except ValueError as error:  # an integer of thousands of digits, or a duplicate field
        raise DataError(f"{file}: not usable as JSON: {error}") from error


def unique_fields(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of the (name, value) pairs of a JSON object; raise ValueError if a field occurs twice.

    Pass this function to `json.loads` as `object_pairs_hook`.
    """
    unique = dict(fields)
    if len(unique) < len(fields):
        names = [name for name, _ in fields]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"duplicate field {shown(twice)} in one object")
    return unique


def collect(
    file: Path,
    folder: Path,
    rows: Iterable[Any],
    to_sample: Callable[[Row], Sample | None],
    places: Sequence[tuple[Path, int]] = (),
) -> tuple[list[Sample], list[BadRow]]:
    """Make samples from rows; return (samples sorted by id, bad rows). A bad row states its number and the reason.

    Parameters
    ----------
    to_sample
        Function that makes a sample from a row; a row for which it returns None is left out.
    places
        File and number of each row, if the rows come from several files.
    """
    samples: dict[str, tuple[Path, int, Sample]] = {}
    bad: list[BadRow] = []
    for count, fields in enumerate(rows):
        at, number = places[count] if places else (file, count + 1)
        try:
            if not isinstance(fields, dict):
                raise fields if isinstance(fields, RowError) else RowError(f"expected an object, found {_kind(fields)}")
            if (sample := to_sample(Row(folder, fields))) is None:
                continue
            if sample.id in samples:
                first, row, _sample = samples[sample.id]
                where = f" of {first.name}" if first != at else ""
                raise RowError(f"duplicate id {shown(sample.id)}, first used in row {row}{where}")
            samples[sample.id] = at, number, replace(sample, row=count + 1)
        except RowError as error:
            bad.append(BadRow(at, number, str(error)))
    return sorted((sample for *_place, sample in samples.values()), key=lambda sample: natural(sample.id)), bad


@lru_cache(_REMEMBERED)
def words_of(text: str) -> tuple[str, ...]:
    """Return a text's words for a comparison: in lower case, without punctuation; underscores count as spaces."""
    return tuple(re.findall(r"[^\W_]+", text.casefold()))


@lru_cache(_REMEMBERED)
def class_of(text: str, classes: tuple[str, ...]) -> str:
    """Return the class that a text names, such as `metro_station` for "Metro station".

    If it names none, return the text in the form of a class: lower-case words joined by `_`.

    "Blues - blues" is blues, "Metro station" is metro_station (never metro), "Hip-Hop" is hiphop, and "Shaver" is
    electric_shaver_toothbrush if no other class has that word. "Pop rock" names two classes, so it is neither.
    """
    words = words_of(text)
    for name in classes:
        if "".join(words_of(name)) == "".join(words):
            return name
    parts = {name: set(words_of(name)) for name in classes}
    within = [name for name in classes if parts[name] <= set(words)]
    named = [name for name in within if not any(parts[name] < parts[other] for other in within)]
    if not within:
        named = [name for name in classes if words and set(words) <= parts[name]]
    return named[0] if len(named) == 1 else "_".join(words)


def natural(text: str) -> tuple[list[tuple[int, int, str]], str]:
    """Return a key to sort texts so that "clip 9" comes before "clip 10"; the text itself breaks ties."""
    parts = re.split(r"([0-9]{1,18})", text)
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts], text


def clean(text: str, what: str) -> str:
    """Return a text without surrounding white space, after checking it.

    Raise :class:`RowError` if the text is empty, too long or cannot be stored; `what` names the text in the message.
    """
    text = text.strip()
    if 0 < len(text) <= MAX_TEXT_LENGTH and text.isascii() and text.isprintable():  # the fast path for nearly all texts
        return text
    if len(text) > MAX_TEXT_LENGTH:
        raise RowError(f"{what} holds {len(text):,} characters; allowed: at most {MAX_TEXT_LENGTH:,}")
    if _NO_TEXT.search(text):
        raise RowError(f"{what} holds characters that cannot be stored as text")
    if all(unicodedata.category(character)[0] in "CZ" for character in text):  # includes zero-width characters
        raise RowError(f"{what} is empty")
    return text


def list_in(text: str) -> list[Any] | None:
    """Parse a text that spells a list, in JSON or as Python prints it; return None for any other text.

    pandas writes lists, tuples and numpy arrays into a CSV file as Python prints them: `['a', "b's"]`, `('a', 'b')`,
    `['a' 'b']`.

    Raises
    ------
    RowError
        The text begins like a list, a set or a dict of texts in Python, but cannot be read as a list.
    """
    text = text.strip()
    if text.startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            parsed: list[Any] = json.loads(text)
            return parsed
    array = _ARRAY.fullmatch(text)
    body = array[1] if array else text
    if body[:1] + body[-1:] in ("[]", "()"):
        inside = body[1:-1].strip()
        items, end = list[re.Match[str]](), 0
        while end < len(inside) and (item := _ITEM.match(inside, end)):
            items.append(item)
            end = item.end()
        apart = {"," in item["gap"] for item in items[:-1]}  # numpy writes no commas
        is_list = apart == {True} or (body[0] == "[" and len(apart) < 2) or "," in inside[-1:] or not inside
        if is_list and end == len(inside):
            with contextlib.suppress(SyntaxError, ValueError):
                values = [_value_of(item["value"]) for item in items]
                if body[0] == "[" or not values or any(isinstance(value, str) for value in values):
                    return values
    if _LIKE_A_LIST.match(text):
        raise RowError(f'{shown(text)} looks like a Python list that cannot be read; write it as JSON, ["a", "b"]')
    return None


def one_text(text: str, what: str) -> str:
    """Return a text unchanged; raise :class:`RowError` if it spells a list of texts.

    `what` names the text in the message.
    """
    if _LIKE_A_LIST.match(text) or any(isinstance(member, str) for member in list_in(text) or ()):
        raise RowError(f"{what} {shown(text)} looks like a list; expected one text")
    return text


def _value_of(written: str) -> Any:
    """Return the value that Python printed: a text, a number, or None for a gap (None, nan)."""
    if written in ("None", "nan"):
        return None
    if written[-1] in "'\"":
        return ast.literal_eval(written)
    return int(written) if written.lstrip("+-").isdecimal() else float(written)


def for_each(file: Path, noun: str, items: Iterable[Any], work: Callable[[Any], None]) -> None:
    """Call `work` on each of the items that come from `file`; raise the errors of all items together, as one line.

    `noun` names an item in the message: "row" gives "row 3: …".

    Raises
    ------
    DataError
        An item is a :class:`RowError`, or `work` raised one.
    """
    faults = []
    for number, item in enumerate(items, 1):
        try:
            if isinstance(item, RowError):
                raise item
            work(item)
        except RowError as error:
            faults.append(f"{noun} {number}: {error}")
    if faults:
        raise DataError(f"{file}: {listed_faults(faults, _SHOWN_FAULTS)}")


def replied(record: Record, reply: str) -> Record:
    """Return a copy of a record with an imported reply; raise :class:`RowError` if the reply is too long."""
    if len(reply) > MAX_REPLY:
        raise RowError(f"the reply to {shown(record.id)} has {len(reply):,} characters; allowed: up to {MAX_REPLY:,}")
    return replace(record, reply=reply)


def one_line_each(options: Iterable[str]) -> None:
    """Raise :class:`RowError` if an option has more than one line."""
    if broken := next((option for option in options if len(option.splitlines()) > 1), ""):
        raise RowError(f"option {shown(broken)} has a line break; an option is one line of the prompt")


def listed_faults(faults: Sequence[str], most: int) -> str:
    """Join errors to one text for a message: the first `most` of them, and how many more there are."""
    more = [f"and {len(faults) - most} more"] if len(faults) > most else []
    return "; ".join([*faults[:most], *more])


def shown(value: object) -> str:
    """Return a value as text for a message: in quotes, and without its middle if it is long."""
    return shortened(repr(value))


def shortened(text: str) -> str:
    """Shorten a text to 120 characters by cutting its middle, since the end of a path matters."""
    half = MAX_SHOWN // 2
    return text if len(text) <= MAX_SHOWN else f"{text[:half]}…{text[1 - half :]}"


def _spellings(path: str) -> Iterator[str]:
    """Yield a path as written, then without white space around it, then with its accents composed, then decomposed."""
    seen = set[str]()
    for form in ("", "NFC", "NFD"):
        for text in (path, path.strip()):
            spelling = unicodedata.normalize(form, text) if form else text  # type: ignore[arg-type]
            if spelling not in seen:
                seen.add(spelling)
                yield spelling


@lru_cache(_REMEMBERED)
def _names(prefix: str) -> tuple[str, ...]:
    return tuple(f"{prefix}{letter.lower()}" for letter in LETTERS)


@lru_cache(_REMEMBERED)
def _bases(folder: Path, subfolders: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return (a folder's path with a final slash, paths of the folders in which to search its clips).

    All paths are texts, since `Path` objects are slow.
    """
    top = str(folder / "_")[:-1]
    # Some rows repeat the name of the task's folder; joined to its parent they point back inside.
    return top, (top, *(str(folder / sub) for sub in subfolders), str(folder.parent))


def is_absent(value: Any) -> bool:
    """Tell whether a field has no value: null, or NaN, which empty cells of tables become in JSON."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= 1000 and all(not isinstance(item, list) and _is_plain(item) for item in value)
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"

"""Refuse a data set from which a shard (one of the files into which a table is split) is missing.

Shards' names state their total number, such as `test-00000-of-00002.parquet`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from audiomarathon.errors import DataError

_SHARD = re.compile(r"(?<![0-9])([0-9]{1,9})([-_. ]?)of\2([0-9]{1,9})(?![0-9])", re.IGNORECASE)
_MOST_SHARDS = 1_000_000  # a larger total is a date or an id
_NAMED = 5  # absent shards shown in a message


def check_shards(files: Iterable[Path]) -> None:
    """Raise an error if a shard is missing, according to the totals in the files' names. Other files pass.

    Shards are counted from 0, or from 1 if the name of the last states so. A hash may follow the total, as in
    `train-00000-of-00002-1a2b3c.parquet`.

    Raises
    ------
    DataError
        Shards are missing, a shard is there twice, or shards of different totals are mixed; the message names them.
    """
    series: dict[tuple[Path, str, str], dict[int, dict[int, Path]]] = {}
    for file in files:
        if not (matches := [*_SHARD.finditer(file.name)]) or not 0 < (total := int(matches[-1][3])) <= _MOST_SHARDS:
            continue
        shard, number = matches[-1], int(matches[-1][1])
        totals = series.setdefault((file.parent, file.name[: shard.start()], file.suffix.lower()), {})
        if (twin := totals.setdefault(total, {}).setdefault(number, file)) != file:
            raise DataError(f"{file.parent}: {twin.name} and {file.name} are the same shard; keep one")
    for totals in series.values():
        several = [min(files.items())[1] for _total, files in sorted(totals.items())]
        if len(several) > 1:
            first_file, other = several[:2]
            raise DataError(
                f"{first_file.parent}: {first_file.name} and {other.name} state different totals; "
                "keep one set of shards"
            )
        ((total, there),) = totals.items()
        first = 1 if total in there and 0 not in there else 0
        expected = range(first, first + total)
        if odd := [there[number].name for number in there if number not in expected]:
            raise DataError(f"{several[0].parent}: {odd[0]} is not one of {total} shards; remove it, or rename it")
        if absent := [number for number in expected if number not in there]:
            names = [_name(several[0], number) for number in absent[:_NAMED]]
            more = f" and {len(absent) - _NAMED:,} more" if len(absent) > _NAMED else ""
            unread = all((several[0].parent / name).is_file() for name in names)
            raise DataError(
                f"{several[0].parent}: only {len(there):,} of {total:,} shards would be read; "
                f"{'there, but not read' if unread else 'absent'}: {', '.join(names)}{more}; "
                f"{'name them too' if unread else 'get them'}, or rename the files to use a part of the data"
            )


def _name(shard: Path, number: int) -> str:
    """Return the name of the shard `number` in the set of the given shard.

    `*` stands for a hash after the total, which differs between shards.
    """
    match = [*_SHARD.finditer(shard.name)][-1]
    start, end = match.span(1)
    rest = shard.name[match.end() :]
    after = rest if rest == shard.suffix else f"*{shard.suffix}"
    return f"{shard.name[:start]}{number:0{len(match[1])}}{shard.name[end : match.end()]}{after}"

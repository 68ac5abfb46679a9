"""A damaged record makes one sample run again; it never ends a command, wherever it is read."""

from __future__ import annotations

import json
import math
import random
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import pytest
from builders import NEEDED, STAGES, a_failed_record, a_record, typed
from test_made_by_8983bac import go, results  # noqa: F401 (a fixture)
from typer.testing import CliRunner

from audiomarathon.cli.app import app
from audiomarathon.engine.run import score
from audiomarathon.errors import RecordError
from audiomarathon.files import sealed
from audiomarathon.runs.folder import read_records
from audiomarathon.runs.record_line import damage_of, from_line, to_line

WHOLE = a_record(time=STAGES, kept_audio_bits="AAAAAAAAAAAAAAAAAA==", kv_lengths=[120])
FULL = WHOLE | {
    "groups": {"language": "en"}, "warmed": 1, "session": "s 1", "encoder_shared": True, "transcripts_read": ["a word"],
    "busy": {"encoder": 1, "llm_prefill": 0.5, "decode": 2.0, "steps": 3}, "latency": {"first_token": 1, "total": 2.5},
    "batch": dict.fromkeys(("samples", "planned", "encoder", "llm_prefill", "decode", "padding", "devices"), 1),
    "forced_decode": {"tokens": 4, "per_token": 0.1}, "attempts": 2, "cost": 0.1, "transcript": "A", "control": "noise",
}  # fmt: skip
CHOICE = {"answer": "B", "options": ["x", "y"], "labels": ["x", "y"]}


def test_a_written_record_is_read_back_equal() -> None:
    for record in (WHOLE, WHOLE | {"reply": "\udcff\r\u2028"}, a_failed_record("b")):
        assert typed(record).to_json() == record
        assert from_line(to_line(typed(record))) == typed(json.loads(json.dumps(record)))
        assert from_line(json.dumps(record).encode()) == typed(record)  # as versions up to 8983bac wrote it


@pytest.mark.parametrize(
    "more", [{"words": "ten"}, {"parsed": 7, "correct": "yes"}, {"errors": -1}, {"of another": []}]
)
def test_unknown_fields_of_other_versions_are_ignored(more: dict[str, Any]) -> None:
    """These include schema 1's fields of verdicts. They are not used, so they cannot make a record invalid."""
    assert from_line(json.dumps(WHOLE | more).encode()) == typed(WHOLE)


@pytest.mark.parametrize(
    "odd",
    [
        {"clip_seconds": "90"}, {"clip_seconds": math.nan}, {"clip_seconds": math.inf}, {"clip_seconds": -1},
        {"time": "1 s"}, {"time": STAGES | {"decode": "1"}}, {"time": {"decode": 1.0}}, {"time": 1},
        {"kv_lengths": "12"}, {"kv_lengths": [1, "2"]}, {"kv_bytes": True}, {"kv_bytes": 10**400},
        {"reference": CHOICE | {"options": "xy"}}, {"reference": CHOICE | {"labels": [1, 2]}},
        {"reference": CHOICE | {"answer": "C"}}, {"reference": None},
        {"kept_audio_bits": "AAA"}, {"kept_audio_bits": "AAAA"}, {"audio_tokens": 300}, {"new_tokens": None},
        {"error": 7}, {"id": 7}, {"cluster": None}, {"forced_decode": {"tokens": 4}},
    ],
)  # fmt: skip
def test_a_record_with_an_invalid_field_is_rejected(odd: dict[str, Any]) -> None:
    record = WHOLE | odd
    assert from_line(json.dumps(record).encode()) is None
    if "NaN" not in (text := json.dumps(record)) and "Infinity" not in text:
        assert from_line(sealed({"schema": 2, **record})) is None
    with pytest.raises(RecordError, match="could not be read back"):
        to_line(typed(record))


VALUES = (
    None, True, 0, 7, -1, 2.5, 1e15, 10**15, 10**400, "", "A", "AAAA", [], [1], [-1], ["a"], [None], {}, {"a": 1},
    {"a": "b"}, {"decode": 1.0}, [[1]],
)  # fmt: skip


@pytest.mark.parametrize("name", FULL)
def test_the_compiled_record_decoder_refuses_the_same_records_as_field_by_field_checks(name: str) -> None:
    """A line with a checksum is decoded at once. Only a line that the decoder refuses is checked field by field."""
    lacking = {key: value for key, value in FULL.items() if key != name}
    for record in (FULL, lacking, *(FULL | {name: value} for value in VALUES)):
        sound = None if damage_of(record) else typed(record).to_json()
        parsed = from_line(sealed({"schema": 2, **record}))
        assert (parsed and parsed.to_json()) == sound
        assert repr(parsed) == repr(sound and typed(record))  # 1 differs from 1.0


def test_a_record_line_with_a_valid_checksum_skips_the_field_by_field_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """These checks took longer than the parser."""
    monkeypatch.setattr("audiomarathon.runs.record_line.damage_of", lambda _record: "checked in Python")
    assert from_line(sealed({"schema": 2, **FULL})) == typed(FULL)


def test_loaded_records_take_at_most_1_25_times_the_bytes_of_their_lines(tmp_path: Path, monkeypatch) -> None:
    """Texts and references are stored once, and times are packed."""
    texts = ["a public square", "a street with cars", "a metro station", "a tram stop"]
    same = {"reference": {"answer": "A", "options": texts, "labels": texts}, "session": "2026-01-01T00:00:00+00:00 1"}
    same |= {
        "audio_tokens": 2000,
        "kept_audio_bits": "A" * 334 + "==",
        "time": dict.fromkeys(STAGES, 0.139158883997879),
    }
    each = [{"id": str(number), "kv_lengths": [2000 + number] * 28} for number in range(2000)]
    lines = [to_line(typed(WHOLE | same | facts)) for facts in each]
    (tmp_path / "samples.jsonl").write_bytes(b"".join(lines))
    from_line(lines[0])  # compiles the decoder
    known: dict[str, str] = {}  # Python's intern table may happen to grow by megabytes here
    monkeypatch.setattr("sys.intern", lambda text: known.setdefault(text, text))
    tracemalloc.start()
    records = read_records(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(records) == len(lines)
    assert peak <= 1.25 * sum(map(len, lines))


def test_a_flipped_bit_in_a_required_key_of_a_record_line_is_detected() -> None:
    for name in NEEDED:
        line = json.dumps(WHOLE).replace(f'"{name}"', f'"{name[:-1]}{chr(ord(name[-1]) ^ 1)}"', 1)
        assert from_line(line.encode()) is None, name


def test_any_flipped_bit_of_a_record_line_is_detected() -> None:
    """Except for bits in the name of the checksum field, which leave the record unchanged."""
    line = to_line(typed(WHOLE))
    for at in random.Random(0).sample(range(8 * (len(line) - 1)), 2000):
        spoilt = bytearray(line)
        spoilt[at // 8] ^= 1 << at % 8
        assert from_line(bytes(spoilt)) in (None, typed(WHOLE)), bytes(spoilt)


def test_the_status_compare_and_report_commands_leave_out_damaged_record_lines(results: Path, tmp_path: Path) -> None:  # noqa: F811
    (file,) = results.glob("tau/*/frame*/samples.jsonl")
    file.write_text(before := file.read_text().replace('"clip_seconds"', '"clip_sebonds"', 2))
    report = ["report", "--no-spectrograms", "--audio", "none", "-o", str(tmp_path / "r.html")]
    for command in (["status"], ["compare"], report):
        with warnings.catch_warnings():
            warnings.simplefilter("always")  # otherwise Python shows a warning once per process
            done = CliRunner().invoke(app, [*command, str(results)])
        assert done.exit_code == (1 if command == ["status"] else 0), (command, done.output, done.exception)
        assert done.output.count("2 unreadable lines left out") == 1
    assert file.read_text() == before


def test_a_run_of_records_with_unequal_layer_counts_has_no_mean_kv_length(results: Path) -> None:  # noqa: F811
    """Each line is valid by itself, since it has no checksum."""
    (file,) = results.glob("tau/*/frame*/samples.jsonl")
    first, *others = (json.loads(line) for line in file.read_text().splitlines() if '"error": null' in line)
    file.write_text("".join(json.dumps(record) + "\n" for record in (first | {"kv_lengths": [1, 2]}, *others)))
    go(results, [("frame", 0.5)])
    assert score(file.parent).summary["kv_lengths"] is None


def test_cutting_any_part_out_of_a_record_line_never_leaves_another_valid_record() -> None:
    """The last field is optional: without it and the checksum, the rest was a valid record of an earlier version."""
    record = typed(a_record("a", session="s 1", encoder_shared=True))
    line = to_line(record)
    for start in range(len(line) - 2):
        for end in range(start + 1, min(start + 90, len(line))):
            assert from_line(line[:start] + line[end:]) in (None, record)

"""Stored verdicts are used while valid and computed again otherwise; scoring never changes the records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import (
    a_failed_record,
    a_record,
    a_run,
    a_verdict,
    added,
    changed,
    lines_of,
    typed,
    write_records,
    write_run,
)
from conftest import ALL, call

from audiomarathon.benchmarks import all_tasks, get_task
from audiomarathon.engine.run import score
from audiomarathon.errors import PluginError, RecordError
from audiomarathon.files import sealed
from audiomarathon.records import Record, Verdict
from audiomarathon.results.status import read_status
from audiomarathon.runs.folder import RunFolder, read_records, read_run
from audiomarathon.runs.read import Run
from audiomarathon.runs.scored import judged, verdicts_file, write_verdicts
from audiomarathon.scoring.choice import Choice
from audiomarathon.scoring.scorer import fingerprint_of

sys.path.append(str(Path(__file__).parent / "drills"))
from hanging import no_hang

CHOICE = Choice()
RIGHTS = [True, True, True, False]
FACTS: dict[str, Any] = {"settings": {"seed": 42}, "sessions": [], "bad_rows": []}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A scored run of four samples, three of them right."""
    folder = changed(a_run(tmp_path, "base-0", RIGHTS), **FACTS)
    score(folder)
    return folder


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the samples that the scorer was asked about."""
    ids: list[str] = []
    judge = Choice.judge
    monkeypatch.setattr(Choice, "judge", lambda self, record: ids.append(record.id) or judge(self, record))
    return ids


def files_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the content and modification time of each file in a folder."""
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir() if path.name != ".lock"
    }


def rights(run: Run) -> dict[str, bool]:
    return {id_: bool(verdict.values["correct"]) for id_, verdict in run.verdicts.items()}


def forge(folder: Path, id_: str, *, seal: bool = True, **values: Any) -> None:
    """Change a stored verdict but keep its stamp."""
    file = verdicts_file(folder, CHOICE)
    lines = [{name: value for name, value in line.items() if name != "crc"} for line in lines_of(file)]
    odd = [line | values if line["id"] == id_ else line for line in lines]
    file.write_bytes(b"".join(sealed(line) if seal else json.dumps(line).encode() + b"\n" for line in odd))


# Which verdicts are used ---------------------------------------------------------------------------------------------


def test_valid_verdicts_in_the_verdict_file_are_read_without_judging_again(run: Path, asked: list[str]) -> None:
    assert rights(Run.read(run)) == {f"clip{n}": right for n, right in enumerate(RIGHTS)}
    assert score(run).summary["accuracy"] == 0.75
    forge(run, "clip0", correct=False)  # a verdict with its stamp and checksum is trusted: see the tests below
    assert rights(Run.read(run))["clip0"] is False
    assert asked == []


@pytest.mark.parametrize(
    "change",
    [
        {"reply": "D"},
        {"transcript": "D"},
        {"reference": {"answer": "D", "options": ["bus", "tram", "park", "metro"], "labels": ["b", "t", "p", "m"]}},
        {"reference": a_verdict("B", ["airport", "bus", "metro", "park"], right=True)["reference"]},
    ],
)
def test_a_stored_verdict_is_ignored_if_the_reply_or_reference_differs(
    run: Path, asked: list[str], change: dict[str, Any]
) -> None:
    forge(run, "clip0", correct=None)  # must not be read
    (first, *_) = lines_of(run / "samples.jsonl")
    added(run, {name: value for name, value in first.items() if name != "crc"} | change)
    reread = Run.read(run)
    assert reread.verdicts["clip0"].values == Choice().judge(reread.records["clip0"])
    assert asked[0] == "clip0"
    assert {*asked} == {"clip0"}  # the others are valid


def test_a_stored_verdict_stays_valid_if_only_record_fields_unused_by_the_scorer_change(
    run: Path, asked: list[str]
) -> None:
    (first, *_) = lines_of(run / "samples.jsonl")
    added(run, first | {"clip_seconds": 1.0, "session": "another", "new_tokens": 9})
    assert list(rights(Run.read(run)).values()) == RIGHTS
    assert asked == []


def test_a_flipped_bit_anywhere_in_the_verdict_file_is_noticed(run: Path, asked: list[str]) -> None:
    file = verdicts_file(run, CHOICE)
    whole = file.read_bytes()
    true = rights(Run.read(run))
    first = whole.index(b"\n")
    for at in range(8 * (first + 1)):
        flipped = whole[at // 8] ^ 1 << at % 8
        if at % 8 != at // 8 % 8 and not ALL and b"\n"[0] not in (whole[at // 8], flipped):
            continue  # one bit of each byte, but all bits at the ends of lines
        spoilt = bytearray(whole)
        spoilt[at // 8] = flipped
        file.write_bytes(bytes(spoilt))
        assert rights(Run.read(run)) == true, bytes(spoilt[: first + 1])
    assert {*asked} <= {"clip0", "clip1"}  # without its line break, a line spoils the next line too


@pytest.mark.parametrize(
    "content",
    [b"", b"[]\n", b"\x00\xff\n", b"{}\n{}\n", b'{"id": 7, "stamp": "x"}\n', b'{"id": "clip0"}\n', b"{" * 100_000],
)
def test_a_verdict_file_with_unusable_content_is_replaced_by_a_new_one(run: Path, content: bytes) -> None:
    file = verdicts_file(run, CHOICE)
    whole = file.read_bytes()
    file.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(rights(Run.read(run)).values()) == RIGHTS
    score(run)
    assert file.read_bytes() == whole


def test_a_stored_verdict_without_its_checksum_is_ignored(run: Path, asked: list[str]) -> None:
    """Unlike records, verdicts always had a checksum: no scorer wrote a line without it."""
    forge(run, "clip0", seal=False, correct=False)
    assert list(rights(Run.read(run)).values()) == RIGHTS
    assert "clip0" in asked


@pytest.mark.parametrize("odd", [{"parsed": "Z"}, {"parsed": 7}, {"parsed": "AB"}, {"strict": "x"}, {"correct": None}])
def test_malformed_verdict_values_in_one_run_folder_do_not_hide_other_run_folders(
    run: Path, tmp_path: Path, odd: dict[str, Any]
) -> None:
    """Stamp and checksum are right, which can only happen on purpose."""
    forge(run, "clip0", **odd)
    changed(run, "summary.json", n=3)  # differs from the records, so that verdicts are read
    labels = ("frame-0.5-layer2", "random-0.5-layer2")
    for label in labels:
        score(changed(a_run(tmp_path, label, RIGHTS), **FACTS))
    for command, more in (("status", ()), ("compare", ()), ("report", ("--audio", "none", "-o", tmp_path / "r.html"))):
        output = call(command, tmp_path, *more)[1]
        shown = (tmp_path / "r.html").read_text() if more else output
        assert all(label in shown for label in labels), command


# Scoring does not touch the records ----------------------------------------------------------------------------------


def test_scoring_never_changes_a_byte_of_the_records(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = (run / "samples.jsonl").read_bytes()
    inode = (run / "samples.jsonl").stat().st_ino
    score(run)
    forge(run, "clip0", correct=False)
    score(run)
    monkeypatch.setattr(Choice, "version", "another")
    score(run)
    verdicts_file(run, CHOICE).unlink()
    score(run)
    assert (run / "samples.jsonl").read_bytes() == records
    assert (run / "samples.jsonl").stat().st_ino == inode
    assert not (run / "samples.rejected").exists()


def test_verdicts_stored_inside_records_of_schema_1_are_kept_there_but_not_used(tmp_path: Path) -> None:
    """They are passed over: the reply is judged."""
    facts = {"schema_version": 1, "task": "tau", "method": "base-0", "checkpoint": "/m/M", "identity": {}, **FACTS}
    record = a_record("a", **a_verdict("A", ["bus", "tram"], right=True)) | {"correct": False, "parsed": "B"}
    folder = write_run(tmp_path / "run", facts, [record])
    records = (folder / "samples.jsonl").read_bytes()
    assert score(folder).summary["accuracy"] == 1.0
    assert (folder / "samples.jsonl").read_bytes() == records
    assert lines_of(verdicts_file(folder, CHOICE))[0]["correct"] is True


def test_scoring_unchanged_records_again_gives_the_same_files(run: Path) -> None:
    before = files_of(run)
    score(run)
    after = files_of(run)
    assert {name: content for name, (content, _) in after.items()} == {name: each[0] for name, each in before.items()}
    name = verdicts_file(run, CHOICE).name
    assert after[name] == before[name], "what would be the same is not written again"


def test_verdicts_follow_the_order_of_the_records_and_leave_out_failed_samples(tmp_path: Path) -> None:
    folder = changed(a_run(tmp_path, "base-0", RIGHTS), **FACTS)
    write_records(folder, [a_failed_record(), *lines_of(folder / "samples.jsonl")[::-1]])
    score(folder)
    assert [line["id"] for line in lines_of(verdicts_file(folder, CHOICE))] == ["clip3", "clip2", "clip1", "clip0"]


# Another version of the scorer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_scorer", [True, False], ids=["the scorer is another", "the stamps are of another"])
def test_verdicts_of_another_scorer_version_are_recomputed_in_memory_only(
    run: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch, of_scorer: bool
) -> None:
    """Stored verdicts are wrong and the summary is 0, so that using either would show."""
    for id_ in (f"clip{n}" for n in range(4)):
        forge(run, id_, correct=False, parsed=None, **({} if of_scorer else {"stamp": "0123456789abcdef"}))
    changed(run, "summary.json", score=0.0, accuracy=0.0, **({} if of_scorer else {"records": "older"}))
    if of_scorer:
        monkeypatch.setattr(Choice, "version", "another")
    before, reread = files_of(run), Run.read(run)
    assert list(rights(reread).values()) == RIGHTS
    assert [reread.summary[name] for name in ("accuracy", "n", "scorer")] == [0.75, 4, CHOICE.version]
    assert reread.summary["score"] == reread.headline.value > 0
    (status,) = read_status([run])
    assert status.progress.score == reread.summary["score"]
    assert asked[:4] == ["clip0", "clip1", "clip2", "clip3"]
    assert files_of(run) == before
    score(run)
    asked.clear()
    assert list(rights(Run.read(run)).values()) == RIGHTS
    assert asked == []


def test_a_scorer_class_defined_in_a_notebook_has_a_version_of_its_own() -> None:
    typed_in = type("Typed", (Choice,), {"__module__": "of_no_file"})
    assert typed_in().version != CHOICE.version


def test_a_summary_of_the_current_scorer_version_is_read_unchanged(run: Path, asked: list[str]) -> None:
    changed(run, "summary.json", score=0.125)
    assert Run.read(run).summary["score"] == 0.125
    assert asked == []


def test_intervals_are_resampled_with_the_seed_of_the_run(run: Path) -> None:
    drawn = []
    for seed in (42, 7):
        changed(run, settings={"seed": seed})
        summary, reread = score(run).summary, Run.read(run)
        assert (reread.seed, list(reread.headline.interval)) == (seed, summary["intervals"]["score"])
        drawn.append(reread.headline.drawn.tolist())
    assert drawn[0] != drawn[1]


def test_a_stored_summary_of_another_number_of_samples_is_ignored(run: Path) -> None:
    assert Run.read(run).summary is not None
    changed(run, "summary.json", n=3)  # left by a shorter run, before a longer run was killed
    assert Run.read(run).summary is None
    changed(run, "summary.json", n=4, expected=5)
    assert Run.read(run).summary is None


def test_the_fingerprint_of_a_summary_depends_on_failed_samples() -> None:
    answered, failed = typed(a_record("a")), Record("b", error="none")
    sets = ([answered], [answered, failed], [answered, replace(failed, id="c")])
    assert len({fingerprint_of(CHOICE, records) for records in sets}) == 3
    assert fingerprint_of(CHOICE, [answered, failed]) == fingerprint_of(CHOICE, [failed, answered])


def test_a_scorer_version_depends_on_its_class_modules_and_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    class Same(Choice):
        pass

    class Other(Choice):
        modules = ("audiomarathon.metrics.wer",)

    class Newer(Choice):
        packages = ("jiwer",)

    versions = {scorer.version for scorer in (CHOICE, Same(), Other(), Newer(), get_task("librispeech").scorer)}
    assert len(versions) == 5
    assert Choice().version == CHOICE.version == get_task("tau").scorer.version


# Records that cannot be judged ---------------------------------------------------------------------------------------


def test_an_unscorable_record_is_left_out_on_reading_and_set_aside_on_resuming(run: Path) -> None:
    (first, *_) = lines_of(run / "samples.jsonl")
    added(run, {name: value for name, value in first.items() if name != "crc"} | {"reference": {"answer": "A"}})
    before = files_of(run)
    with pytest.warns(UserWarning, match=r"1 sample cannot be scored \(clip0: .*\); left out"):
        assert list(Run.read(run).verdicts) == ["clip1", "clip2", "clip3"]
    assert files_of(run) == before
    identity = read_run(run)["identity"]
    with pytest.warns(UserWarning, match="1 unreadable line set aside"), RunFolder(run, identity, CHOICE.fits):
        pass
    assert len(lines_of(run / "samples.rejected")) == 1
    assert list(read_records(run)) == ["clip0", "clip1", "clip2", "clip3"]  # the earlier line of clip0


class Slow(Choice):
    """A scorer that is not instant gets all records at once, and its failure concerns all of them."""

    key = "slow"
    instant = False

    def __init__(self) -> None:
        self.asked = list[list[str]]()

    def verdicts(self, records: Any) -> Any:
        self.asked.append([record.id for record in records])
        if any(record.reply == "!" for record in records):
            raise ValueError("no")
        return super().verdicts(records)


def replies(**given: str) -> list[Record]:
    reference = a_verdict("A", ["bus", "tram"], right=True)["reference"]
    return [typed(a_record(id_, reply=reply, reference=reference)) for id_, reply in given.items()]


def test_only_samples_without_a_valid_stored_verdict_are_judged(tmp_path: Path) -> None:
    scorer = Slow()
    write_verdicts(tmp_path, scorer, judged(scorer, replies(a="A", b="B")).values())
    verdicts = judged(scorer, replies(a="A", b="A", c="B"), tmp_path)
    assert scorer.asked == [["a", "b"], ["b", "c"]]
    assert list(judged(scorer, replies(c="B", a="A", b="A"), tmp_path)) == ["c", "a", "b"]
    rights = {id_: verdict.values["correct"] for id_, verdict in verdicts.items()}
    assert rights == {"a": True, "b": True, "c": False}


def test_an_error_of_a_batch_scorer_is_reported_for_each_sample_of_the_batch() -> None:
    told: list[str] = []
    judging = {"failed": lambda record, error: told.append(f"{record.id} {error}")}
    assert judged(Slow(), replies(a="A", b="!"), **judging) == {}
    assert told == ["a no", "b no"]
    broken = typed(a_record("x", reference={}))
    assert list(judged(CHOICE, [broken, *replies(a="A")], **judging)) == ["a"]
    assert [line[:1] for line in told[2:]] == ["x"]


def test_a_verdict_that_json_cannot_hold_leaves_the_verdict_file_unchanged(run: Path) -> None:
    (verdict, *_) = Run.read(run).verdicts.values()
    before = files_of(run)
    for value in (float("nan"), {1, 2}, object()):
        with pytest.raises(PluginError, match=r"scorer choice: .*'clip0' cannot be stored as JSON"):
            write_verdicts(run, CHOICE, [Verdict(verdict.record, {"correct": value})])
    assert files_of(run) == before


def test_a_scorer_cannot_overwrite_the_id_content_hash_and_checksum_of_a_verdict_line(tmp_path: Path) -> None:
    record = typed(a_record("a", **a_verdict("A", ["bus", "tram"], right=True)))
    values = {"parsed": "A", "rule": "letter", "correct": True, "strict": False}
    write_verdicts(tmp_path, CHOICE, [Verdict(record, values | {"id": "b", "stamp": "", "crc": "x"})])
    assert judged(CHOICE, [record], tmp_path)["a"].values == values


@pytest.mark.parametrize("kind", ["folder", "link", "FIFO"])
def test_a_folder_or_link_or_fifo_in_place_of_the_verdict_file_is_not_followed(
    run: Path, tmp_path: Path, kind: str
) -> None:
    file, precious = verdicts_file(run, CHOICE), tmp_path / "precious"
    whole = file.read_bytes()
    precious.write_text("precious")
    file.unlink()
    {"folder": Path.mkdir, "link": lambda path: path.symlink_to(precious), "FIFO": os.mkfifo}[kind](file)
    with no_hang(20):
        assert list(rights(Run.read(run)).values()) == RIGHTS
        if kind == "folder":
            with pytest.raises(RecordError, match=r"verdicts-choice\.jsonl: cannot be written"):
                score(run)
        else:
            score(run)
            assert (file.is_symlink(), file.read_bytes()) == (False, whole)
    assert precious.read_text() == "precious"


def test_scorer_versions_do_not_depend_on_the_modules_imported() -> None:
    """A run imports more modules than a command that reads it, but both must compute the same versions."""
    import audiomarathon.metrics.classification
    import audiomarathon.metrics.wer  # noqa: F401

    program = "from audiomarathon.benchmarks import all_tasks; print([task.scorer.version for task in all_tasks()])"
    said = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert said.strip() == str([task.scorer.version for task in all_tasks()])

"""`audiomarathon compare` on made-up runs: what is paired, what is refused, what is answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from audiomarathon.cli import app
from audiomarathon.errors import RecordError, SettingsError
from audiomarathon.evaluation.compare import Comparison, best_at, compare, widest
from audiomarathon.evaluation.sides import control_of, find_reference, missing_controls, read_sides

LETTERS = "ABCD"
CLASSES = ["airport", "bus", "metro", "park"]


def a_record(number: int, *, right: bool, prefill: float, cluster: str | None = None) -> dict[str, Any]:
    answer = LETTERS[number % 4]
    parsed = answer if right else LETTERS[(number + 1) % 4]
    return {
        "id": f"clip{number}", "cluster": cluster or f"clip{number}", "reply": parsed, "error": None,
        "reference": {"answer": answer, "options": CLASSES, "labels": CLASSES}, "parsed": parsed, "correct": right,
        "strict": right, "rule": "letter", "session": "s", "forced_decode": None, "finish": "stop", "new_tokens": 2,
        "clip_seconds": 95.0, "prompt_tokens": 120, "audio_tokens": 100, "kept_audio_tokens": 100, "kv_lengths": [120],
        "kv_bytes": 1000, "peak_memory_bytes": None,
        "time": {"llm_prefill": prefill, "prefill": prefill + 0.1, "decode": 0.1},
    }  # fmt: skip


def a_run(
    root: Path,
    label: str,
    rights: list[bool],
    *,
    task: str = "tau",
    prefill: float = 1.0,
    checkpoint: str = "M",
    cluster: str | None = None,
    **identity: Any,
) -> Path:
    folder = root / task / checkpoint / label
    folder.mkdir(parents=True)
    records = [a_record(n, right=right, prefill=prefill, cluster=cluster) for n, right in enumerate(rights)]
    (folder / "samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    method, ratio = label.split("-")[:2]
    identity = {"method": method, "ratio": float(ratio), **identity}
    own = {"schema_version": 1, "data": "d", "prompts": "p", "max_new_tokens": 16, "device": "gpu", **identity}
    facts = {"schema_version": 1, "task": task, "method": label, "checkpoint": f"/m/{checkpoint}", "identity": own}
    facts["samples"] = [one["id"] for one in records]
    (folder / "run.json").write_text(json.dumps(facts))
    return folder


def rows_of(*paths: Path, against: str | None = None) -> dict[tuple[str, str], Comparison]:
    sides = read_sides(paths)
    return {(row.scope, row.side): row for row in compare(sides, find_reference(sides, against))}


class TestRows:
    def test_by_hand(self, tmp_path: Path) -> None:
        """Of 8 samples base has all right, dart 4, half as long in the LLM."""
        a_run(tmp_path, "base-0", [True] * 8)
        a_run(tmp_path, "dart-0.5-layer2", [True] * 4 + [False] * 4, prefill=0.5)
        row = rows_of(tmp_path)["tau", "dart-0.5-layer2"]
        assert (row.samples, row.reference_score) == (8, 1.0)
        assert row.score == pytest.approx(0.5)  # each class: one of two found, one false alarm: F1 = 1/2
        assert row.verdict.difference == pytest.approx(-0.5)
        assert row.mcnemar == pytest.approx(2 / 2**4)
        assert row.speed_ups["llm_prefill"]["measured"] == pytest.approx(2.0)
        assert row.speed_ups["first_token"]["measured"] == pytest.approx(1.1 / 0.6)
        assert row.speed_ups["decode_per_token"]["measured"] is None

    def test_only_samples_that_both_answered_count(self, tmp_path: Path) -> None:
        a_run(tmp_path, "base-0", [True] * 8)
        folder = a_run(tmp_path, "dart-0.5-layer2", [True] * 4)
        failed = a_record(0, right=False, prefill=1.0) | {"error": "no", "reply": None}
        with (folder / "samples.jsonl").open("a") as stream:
            stream.write(json.dumps(failed) + "\n")
        row = rows_of(tmp_path)["tau", "dart-0.5-layer2"]
        assert (row.samples, row.verdict.difference) == (3, 0.0)

    def test_a_clip_that_was_replaced_is_another_sample(self, tmp_path: Path) -> None:
        a_run(tmp_path, "base-0", [True] * 8)
        folder = a_run(tmp_path, "dart-0.5-layer2", [True] * 8)
        with (folder / "samples.jsonl").open("a") as stream:
            stream.write(json.dumps(a_record(3, right=True, prefill=1.0) | {"clips": "another"}) + "\n")
        assert rows_of(tmp_path)["tau", "dart-0.5-layer2"].samples == 7

    def test_groups_and_overall_weigh_tasks_alike(self, tmp_path: Path) -> None:
        for task, count in (("tau", 4), ("desed", 12), ("vesus", 4)):
            a_run(tmp_path, "base-0", [True] * count, task=task)
            a_run(tmp_path, "dart-0.5-layer2", [task != "tau"] * count, task=task)
        rows = rows_of(tmp_path)
        assert rows["audio classification", "dart-0.5-layer2"].verdict.difference == pytest.approx(-0.5)
        assert rows["overall", "dart-0.5-layer2"].verdict.difference == pytest.approx(-1 / 3)
        assert ("speaker", "dart-0.5-layer2") not in rows  # a group of one task is that task's row

    def test_p_is_corrected_for_rows_of_the_same_kind(self, tmp_path: Path) -> None:
        a_run(tmp_path, "base-0", [True] * 12)
        for method in ("dart-0.5-layer2", "fast_v-0.5-layer2", "random-0.5-layer2"):
            a_run(tmp_path, method, [False] * 12)
        for row in rows_of(tmp_path).values():
            assert row.p_adjusted == pytest.approx(min(1, 3 * row.verdict.p), abs=0.01)

    def test_mcnemar_only_where_samples_are_independent(self, tmp_path: Path) -> None:
        a_run(tmp_path, "base-0", [True] * 6, cluster="one speaker")
        a_run(tmp_path, "dart-0.5-layer2", [False] * 6, cluster="one speaker")
        row = rows_of(tmp_path)["tau", "dart-0.5-layer2"]
        assert row.mcnemar is None
        assert row.verdict.interval is None
        assert row.verdict.p == 1.0

    def test_two_models(self, tmp_path: Path) -> None:
        a_run(tmp_path, "base-0", [True] * 8, checkpoint="Big")
        a_run(tmp_path, "base-0", [True, False] * 4, checkpoint="Small")
        assert rows_of(tmp_path)["tau", "Small base-0"].verdict.difference < 0
        assert rows_of(tmp_path, against="Small base-0")["tau", "Big base-0"].verdict.difference > 0


class TestRefusals:
    @pytest.mark.parametrize("field", ["data", "prompts", "max_new_tokens"])
    def test_another_question(self, tmp_path: Path, field: str) -> None:
        a_run(tmp_path, "base-0", [True] * 4)
        a_run(tmp_path, "dart-0.5-layer2", [True] * 4, **{field: "other"})
        with pytest.raises(RecordError, match=f"not asked the same .{field}"):
            rows_of(tmp_path)

    def test_times_of_a_machine_that_workers_shared_are_left_out_beside_others(self, tmp_path: Path) -> None:
        base, dart = (a_run(tmp_path, label, [True] * 4) for label in ("base-0", "dart-0.5-layer2"))
        facts = json.loads((dart / "run.json").read_text())
        (dart / "run.json").write_text(json.dumps(facts | {"sessions": [{"samples": 4, "workers_sharing": 2}]}))
        (base / "run.json").write_text((base / "run.json").read_text()[:-1] + ', "sessions": [{"samples": 4}]}')
        assert set(rows_of(tmp_path)["tau", "dart-0.5-layer2"].speed_ups.values()) == {None}

    def test_times_of_another_device_are_left_out(self, tmp_path: Path) -> None:
        a_run(tmp_path, "base-0", [True] * 4)
        a_run(tmp_path, "dart-0.5-layer2", [True] * 4, device="another gpu")
        row = rows_of(tmp_path)["tau", "dart-0.5-layer2"]
        assert set(row.speed_ups.values()) == {None}

    def test_no_task_in_common(self, tmp_path: Path) -> None:
        a_run(tmp_path, "base-0", [True] * 4)
        a_run(tmp_path, "dart-0.5-layer2", [True] * 4, task="desed")
        with pytest.raises(RecordError, match="share no task"):
            rows_of(tmp_path)

    def test_the_same_side_twice(self, tmp_path: Path) -> None:
        one, two = (a_run(tmp_path / name, "base-0", [True] * 4) for name in ("one", "two"))
        with pytest.raises(RecordError, match="the same task, checkpoint and setting"):
            read_sides([one, two])

    def test_a_reference_that_is_not_there(self, tmp_path: Path) -> None:
        a_run(tmp_path, "base-0", [True] * 4)
        with pytest.raises(SettingsError, match="did you mean 'base-0'"):
            find_reference(read_sides([tmp_path]), "bas-0")


class TestControl:
    @pytest.mark.parametrize(
        ("label", "control"),
        [
            ("dart-0.5-layer2", "random-0.5-layer2"),
            ("base-0", ""),
            ("snapkv-0.5", ""),
            ("fast_v-0.5-layer2+snapkv-0.3", ""),
        ],
    )
    def test_is_random_at_the_same_ratio_and_layer(self, label: str, control: str) -> None:
        assert control_of(label) == control

    def test_is_fetched_when_it_lies_beside_a_run_that_was_named(self, tmp_path: Path) -> None:
        base, dart, _ = (
            a_run(tmp_path, method, [True] * 4) for method in ("base-0", "dart-0.5-layer2", "random-0.5-layer2")
        )
        assert ("tau", "random-0.5-layer2") in rows_of(base, dart)

    def test_is_missed_when_it_was_not_run(self, tmp_path: Path) -> None:
        a_run(tmp_path, "base-0", [True] * 4)
        a_run(tmp_path, "dart-0.5-layer2", [True] * 4)
        assert missing_controls(read_sides([tmp_path])) == ["random-0.5-layer2"]


class TestAnswers:
    @pytest.fixture
    def rows(self, tmp_path: Path) -> list[Comparison]:
        a_run(tmp_path, "base-0", [True] * 8, prefill=1.0)
        a_run(tmp_path, "dart-0.3-layer2", [True] * 8, prefill=0.7)
        a_run(tmp_path, "dart-0.6-layer2", [True] * 7 + [False], prefill=0.4)
        a_run(tmp_path, "dart-0.9-layer2", [False] * 8, prefill=0.1)
        return widest(rows_of(tmp_path).values())

    @pytest.mark.parametrize(
        ("asked", "best"),
        [
            ({"latency": 0.8}, "dart-0.3-layer2"),
            ({"latency": 0.5}, "dart-0.6-layer2"),
            ({"latency": 0.2}, "dart-0.9-layer2"),
            ({"latency": 0.1}, None),
            ({"score": 0.99}, "dart-0.3-layer2"),
            ({"score": 0.8}, "dart-0.6-layer2"),
            ({"score": 1.1}, None),
        ],
    )
    def test_best(self, rows: list[Comparison], asked: dict[str, float], best: str | None) -> None:
        found = best_at(rows, **asked)
        assert (found.side if found else None) == best


class TestCommand:
    def test_prints_and_writes(self, tmp_path: Path) -> None:
        a_run(tmp_path, "base-0", [True] * 8)
        a_run(tmp_path, "dart-0.5-layer2", [True] * 6 + [False] * 2, prefill=0.5)
        for end in ("json", "csv", "md"):
            result = CliRunner().invoke(
                app, ["compare", str(tmp_path), "--at-latency", "0.6", "-o", f"{tmp_path}/c.{end}"]
            )
            assert result.exit_code == 0, result.output
            assert "dart-0.5-layer2" in (tmp_path / f"c.{end}").read_text()
        assert "within 0.6 of base-0's time to first token: dart-0.5-layer2" in result.output
        assert "not run" in result.output
        assert json.loads((tmp_path / "c.json").read_text())["rows"][0]["samples"] == 8

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--at-score", "-1"], "--at-score -1.0: allowed is a share above 0"),
            (["-o", "x.doc"], "allowed are names that end in"),
            ([], "a comparison wants two settings or more"),
        ],
    )
    def test_one_line_for_what_is_wrong(self, tmp_path: Path, arguments: list[str], message: str) -> None:
        a_run(tmp_path, "base-0", [True] * 4)
        result = CliRunner().invoke(app, ["compare", str(tmp_path), *arguments])
        assert result.exit_code == 2
        assert message in result.output

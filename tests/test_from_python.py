"""The suite from Python: `evaluate(…, method=…)` with a name, a method, or a press of the caller's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import task_folders

from audiomarathon import evaluate
from audiomarathon.errors import SettingsError
from audiomarathon.pruning.fast_v import FastV


@dataclass
class KeepLast:
    """A press as other libraries write them: cuts each layer's cache to its last entries after prefill."""

    entries: int

    @contextmanager
    def __call__(self, model) -> Iterator[None]:
        def cut(_module, _args, kwargs, _output) -> None:
            for layer in kwargs["past_key_values"].layers:
                layer.keys, layer.values = (t[:, :, -self.entries :] for t in (layer.keys, layer.values))

        handle = model.model.language_model.register_forward_hook(cut, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()


@pytest.fixture
def settings(tmp_path: Path, tiny_checkpoint: Path, no_env) -> dict:
    data = task_folders.build_tau(tmp_path / "data")
    return {"data": str(data), "model_path": str(tiny_checkpoint), "results": str(tmp_path / "out"), "limit": 2}


def test_a_press_of_ones_own_is_recorded_by_what_the_cache_holds(settings: dict) -> None:
    base, own = evaluate("tau", method=["base", KeepLast(7)], max_new_tokens=3, **settings)
    assert own.method == "KeepLast-entries=7"
    for line in (own.folder / "samples.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert record["kept_audio_tokens"] is None
        assert record["error"] is None
    assert own.summary["complete"] is True
    assert base.summary["kept_audio_tokens"] == 25


def test_methods_and_names(settings: dict) -> None:
    results = evaluate("tau", method=[FastV(0.5), "random:0.3"], max_new_tokens=3, **settings)
    assert [result.method for result in results] == ["fast_v-0.5-layer2", "random-0.3-layer2"]


def test_anything_else_is_refused(settings: dict) -> None:
    with pytest.raises(SettingsError, match="3 is no method"):
        evaluate("tau", method=3, **settings)


def test_a_name_takes_ratio_and_layer_from_the_settings(settings: dict) -> None:
    (result,) = evaluate("tau", method="frame", ratio=0.5, layer=3, max_new_tokens=1, **settings)
    assert result.method == "frame-0.5-layer3"


def test_tables_and_savings_do_without_a_count_of_audio_tokens(settings: dict) -> None:
    from audiomarathon.evaluation.savings import Run, savings
    from audiomarathon.report.table import results_table

    results = evaluate(
        "tau", method=["base", "snapkv", KeepLast(7)], ratio=0.5, scope="all", max_new_tokens=1, **settings
    )
    assert results_table(results).row_count == 3
    for result in results[1:]:
        saved = savings(Run.read(result.folder), Run.read(results[0].folder))
        assert saved["kept_ratio"] is None
        assert saved["llm_prefill"]["measured"] > 0


def test_speed_ups_are_claimed_within_a_session_only(settings: dict) -> None:
    from audiomarathon.evaluation.savings import Run, savings

    (base,) = evaluate("tau", method="base", max_new_tokens=1, **settings)
    rows = [json.loads(line) for line in (base.folder / "samples.jsonl").read_text().splitlines()]
    lines = [json.dumps(row | {"session": "an hour ago"}) + "\n" for row in rows]
    (base.folder / "samples.jsonl").write_text("".join(lines))
    (frame,) = evaluate("tau", method="frame:0.5", max_new_tokens=1, **settings)
    saved = savings(Run.read(frame.folder), Run.read(base.folder))
    assert saved["llm_prefill"]["measured"] is None
    assert (saved["compared_samples"], saved["base_of_another_session"]) == (0, 2)


def test_runs_of_two_processes_begun_in_one_second_are_two_sessions(settings: dict, monkeypatch) -> None:
    monkeypatch.setattr("audiomarathon.evaluation.run._now", lambda: "2026-01-01T00:00:00+00:00")
    sessions = set()
    for process, method in ((1, "base"), (2, "frame:0.5")):
        monkeypatch.setattr("os.getpid", lambda process=process: process)
        (result,) = evaluate("tau", method=method, max_new_tokens=1, **settings)
        sessions |= {json.loads(line)["session"] for line in (result.folder / "samples.jsonl").read_text().splitlines()}
    assert len(sessions) == 2

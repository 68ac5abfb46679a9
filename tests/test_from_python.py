"""The Python interface: `evaluate(…, method=…)` with a name, a method, or a press of the caller."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import task_folders
import torch
from builders import one_load, records_in, rendered_here  # noqa: F401 (a fixture)

from audiomarathon import evaluate
from audiomarathon.compression.pruners.fast_v import FastV
from audiomarathon.embedded.without_data import toy_or_real
from audiomarathon.errors import SettingsError, warn
from audiomarathon.models import templates
from audiomarathon.report import tables
from audiomarathon.report.page_data import PageData
from audiomarathon.report.samples import strip
from audiomarathon.report.sections import facts
from audiomarathon.results.systems import read_systems
from audiomarathon.runs.read import Run
from audiomarathon.runs.record_line import heard_tokens
from audiomarathon.settings import RunSettings

pytestmark = pytest.mark.usefixtures("one_load")


@dataclass
class KeepLast:
    """A press in the style of other libraries: it cuts each layer's cache to its last entries after prefill."""

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


def test_a_warning_of_the_python_interface_points_at_the_line_of_the_calling_code(no_env) -> None:
    """A notebook showed a line of the engine's code."""
    with pytest.warns(UserWarning, match="the mini benchmark") as told:
        toy_or_real(None, ["desed"], RunSettings.read({}), warn)
    assert [notice.filename for notice in told] == [__file__]


@pytest.fixture
def settings(tmp_path: Path, tiny_checkpoint: Path, no_env) -> dict:
    data = task_folders.build_tau(tmp_path / "data")
    return {"data": str(data), "model_path": str(tiny_checkpoint), "results": str(tmp_path / "out"), "limit": 2}


def test_records_of_a_custom_press_have_no_count_of_kept_audio_tokens(settings: dict) -> None:
    base, kept_last = evaluate("tau", method=["base", KeepLast(7)], max_new_tokens=2, **settings)
    assert (kept_last.method, kept_last.summary["complete"]) == ("KeepLast-entries=7", True)
    for record in records_in(kept_last.folder):
        assert (record["kept_audio_tokens"], record["error"]) == (None, None)
    assert base.summary["kept_audio_tokens"] == 25
    assert len(tables.results([base, kept_last]).frame) == 2


@contextmanager
def first_and_every_second(model: Any) -> Iterator[None]:
    """A press in the style of kvpress: after prefill, head 0 keeps the first half and head 1 every second entry."""

    def cut(module, _args, kwargs, _output) -> None:
        if kwargs["hidden_states"].shape[1] > 1:
            layer = kwargs["past_key_values"].layers[module.layer_idx]
            half = layer.keys.shape[2] // 2
            layer.keys, layer.values = (
                torch.stack([t[:, 0, :half], t[:, 1, : 2 * half : 2]], 1) for t in (layer.keys, layer.values)
            )

    with ExitStack() as stack:
        for layer in model.model.language_model.layers:
            stack.enter_context(layer.self_attn.register_forward_hook(cut, with_kwargs=True))
        yield


CUTTING = "first-and-every-second", first_and_every_second


def test_records_of_a_custom_press_hold_for_each_audio_token_the_share_that_was_kept(settings: dict) -> None:
    (result,) = evaluate("tau", method=CUTTING, max_new_tokens=3, timing=False, **settings)
    for record in Run.read(result.folder).records.values():
        shares = heard_tokens(record)
        assert len(shares) == record.audio_tokens == 25
        assert {*shares.round(1)} == {0.5, 1.0}  # all audio lies in the first half of the prompt
        assert (shares[::2] == shares[0]).all()
        assert strip(record) is not None


def test_only_records_of_base_hold_the_redundancy_of_audio_tokens(settings: dict) -> None:
    base, pruned = evaluate("tau", method=["base", "frame:0.5"], max_new_tokens=1, timing=False, **settings)
    values = [record["redundancy"] for record in records_in(base.folder)]
    assert all(0 < value < 1 for value in values)
    assert not any("redundancy" in record for record in records_in(pruned.folder))
    data = PageData(read_systems([base.folder, pruned.folder]))
    assert f"tau {sum(values) / len(values):.2f}" in facts(data, 2)[-1]


class Addressed(KeepLast):
    """A press without a `__repr__`, which is therefore printed with its address."""

    __repr__ = object.__repr__


@pytest.mark.parametrize("press", [Addressed(7), lambda _model: nullcontext()], ids=["object", "lambda"])
def test_a_press_without_a_stable_repr_needs_a_name(press, settings: dict) -> None:
    with pytest.raises(SettingsError, match="name it"):
        evaluate("tau", method=press, **settings)
    (result,) = evaluate("tau", method=("mine-0.3", press), max_new_tokens=1, **settings)
    assert result.method == result.folder.name == "mine-0.3"
    identity = json.loads((result.folder / "run.json").read_text())["identity"]
    assert identity["press"] == "mine-0.3"
    assert "code of method mine-0.3" in identity


def test_two_named_presses_of_one_class_have_separate_run_folders(settings: dict) -> None:
    presses = [("mine-7", Addressed(7)), ("mine-9", Addressed(9))]
    folders = {result.folder for result in evaluate("tau", method=presses, max_new_tokens=1, **settings)}
    assert len(folders) == 2
    with pytest.raises(SettingsError, match="same label"):
        evaluate("tau", method=[("mine", Addressed(7)), ("mine", Addressed(9))], **settings)


def test_a_press_that_calls_sys_exit_gives_an_error_record(settings: dict) -> None:
    (result,) = evaluate("tau", method=("leaver", lambda _model: sys.exit(0)), max_new_tokens=1, **settings)
    assert (result.summary["n"], result.summary["errors"]) == (0, 2)
    assert '"error": "SystemExit: 0"' in (result.folder / "samples.jsonl").read_text()


def test_a_method_name_that_cannot_be_a_folder_name_is_refused(settings: dict) -> None:
    for name in ("..", "a/b", "-", "a\n"):
        with pytest.raises(SettingsError, match="not allowed"):
            evaluate("tau", method=(name, KeepLast(7)), **settings)
    with pytest.raises(SettingsError, match=r"^3 is not a method"):
        evaluate("tau", method=3, **settings)


def test_evaluate_accepts_method_objects_and_method_names(settings: dict) -> None:
    results = evaluate("tau", method=[FastV(0.5), "random:0.3"], max_new_tokens=3, **settings)
    assert [result.method for result in results] == ["fast_v-0.5-layer2", "random-0.3-layer2"]
    (result,) = evaluate("tau", method="frame", ratio=0.5, layer=3, max_new_tokens=1, **settings)
    assert result.method == "frame-0.5-layer3"


def test_a_finished_run_with_a_stepwise_pruning_schedule_is_not_run_again(settings: dict) -> None:
    asked = {"schedule": "1:0.2,3:0.6", "max_new_tokens": 1, "timing": False, **settings}
    for _call in range(2):
        (result,) = evaluate("tau", method="frame:0.6", **asked)
    assert result.method == "frame-0.6-layer1=0.2-3=0.6"
    run = Run.read(result.folder)
    assert len(run.facts["sessions"]) == 1
    assert {record.kept_audio_tokens for record in run.records.values()} == {10}
    assert result.summary["kept_over_layers"] == (25 + 20 + 20 + 10) / 4
    (row,) = tables.results([result]).frame.to_dict("records")
    assert row["_tokens"] == "10 of 25, 19 on average over layers"


def test_two_processes_started_in_the_same_second_record_two_different_sessions(settings: dict, monkeypatch) -> None:
    monkeypatch.setattr("audiomarathon.engine.run.now", lambda: "2026-01-01T00:00:00+00:00")
    sessions = set()
    for process, method in ((1, "base"), (2, "frame:0.5")):
        monkeypatch.setattr(templates._CHILD, "ask", rendered_here)  # otherwise the other process would start a child
        monkeypatch.setattr("os.getpid", lambda process=process: process)
        (result,) = evaluate("tau", method=method, max_new_tokens=1, **settings)
        sessions |= {record["session"] for record in records_in(result.folder)}
    assert len(sessions) == 2

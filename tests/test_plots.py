"""The curves show the numbers of the runs, and the charts are drawn."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import vl_convert
from builders import (
    CLASSES,
    DRIFTING,
    STAGES,
    a_record,
    a_verdict,
    as_control,
    changed,
    changed_records,
    timed_as,
    typed,
    with_identity,
    write_run,
)
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from audiomarathon.benchmarks import get_task
from audiomarathon.cli.app import app
from audiomarathon.data.durations import Durations, write_durations
from audiomarathon.errors import RecordError, SettingsError
from audiomarathon.report import styles as series
from audiomarathon.report.charts import Chart, Line, bar_chart, line_chart, pareto_front, save, score_range, spread
from audiomarathon.report.curves import Panel, mean_panel, read_panels
from audiomarathon.report.pictures import of_panel, plot_durations, plot_runs
from audiomarathon.scoring.scorer import fingerprint_of

DURATIONS = Durations(get_task("tau"), (90.0, 100.0), 2)
COST = {
    "flops_per_token_per_layer": [10.0] * 4, "attention_flops_coefficient": [0.0] * 4, "lm_head_flops": 0.0,
    "encoder_flops_per_second": None,
}  # fmt: skip


def plotted(
    root: Path, task: str, method: dict[str, Any], *, score: float = 0.5, prefill: float = 0.3, kept: int = 100,
    kv: int = 1000, timed: bool = True,
) -> None:  # fmt: skip
    """Write a finished run of ten samples; prefill takes `prefill` seconds, slightly more from sample to sample."""
    parts = [method[name] for name in ("first", "second") if name in method] or [method]
    name = "-".join(f"{part['method']}-{part.get('ratio', 0)}-{part.get('layer', '')}" for part in parts)
    ends = [f"-layer{part['layer']}" if "layer" in part else "" for part in parts]
    label = "+".join(f"{part['method']}-{part.get('ratio', 0)}{end}" for part, end in zip(parts, ends, strict=True))
    records = [
        a_record(
            f"s{index}", cluster=f"c{index % 5}", kept_audio_tokens=kept, kv_lengths=[120] * 4,
            **a_verdict("ABCD"[index % 4], CLASSES, right=index % 3 > 0),
            kv_bytes=kv + 10 * (index % 5 - 2),
            time=STAGES | {"llm_prefill": prefill * (1 + index / 100), "prefill": 1.0} if timed else None,
        )
        for index in range(10)
    ]  # fmt: skip
    drops = {"layer": method.get("layer"), "ratio": method["ratio"] if method.get("layer") is not None else 0.0}
    facts = {
        "task": task, "method": label, "model": "toy", "checkpoint": "/somewhere/toy", "cost": COST,
        "identity": {"device": "gpu"} | method, "drops": drops,
    }  # fmt: skip
    summary = {
        "task": task, "headline": "macro_f1", "n": 10, "expected": 10, "score": score,
        "intervals": {"score": [score - 0.1, score + 0.2]}, "audio_tokens": 100.0, "kept_audio_tokens": float(kept),
        "records": fingerprint_of(get_task("tau").scorer, map(typed, records)),
    }  # fmt: skip
    write_run(root / task / name, facts, records, summary)


def pruned(method: str = "frame", ratio: float = 0.5, layer: int | None = 2, **more: Any) -> dict[str, Any]:
    """The identity of a pruned run."""
    return {"method": method, "ratio": ratio} | ({"layer": layer} if layer else {}) | more


def joined(first: float = 0.5, second: float = 0.3, layer: int | None = None) -> dict[str, Any]:
    """The identity of a run of a pruner and a press."""
    parts = {"first": pruned("fast_v", first, layer), "second": pruned("snapkv", second, None)}
    return {"method": "composed"} | parts


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for task, lift in (("desed", 0.0), ("tau", 0.2)):
        plotted(tmp_path, task, {"method": "base"}, score=0.6 + lift, prefill=0.4)
        for ratio in (0.5, 0.9):
            kept = round(100 * (1 - ratio))
            sizes = {"prefill": 0.4 * (1 - ratio / 2), "kept": kept, "kv": 1000 - 5 * kept}
            plotted(tmp_path, task, pruned(ratio=ratio), score=0.5 + lift, **sizes)
    return tmp_path


def panel_of(results: Path, name: str) -> Panel:
    return next(panel for panel in read_panels([results]) if panel.name == name)


class TestCurves:
    def test_read_panels_gives_one_chart_panel_per_task_and_one_of_the_mean_over_tasks(self, results: Path) -> None:
        assert [panel.name for panel in read_panels([results])] == ["desed", "tau", "mean"]

    def test_a_curve_starts_at_the_unpruned_run_and_continues_in_order_of_the_ratio(self, results: Path) -> None:
        (line,) = panel_of(results, "desed").lines().values()
        assert [setting.ratio for setting in line] == [0.0, 0.5, 0.9]
        assert [setting.method for setting in line] == ["base", "frame", "frame"]

    def test_a_plotted_setting_has_the_score_times_and_memory_of_its_run(self, results: Path) -> None:
        *_, half, _most = panel_of(results, "desed").lines()["frame"]
        assert (half.figures["score"].value, half.figures["score"].interval) == (0.5, (0.4, 0.7))
        assert half.figures["prefill_ms"].value == pytest.approx(1000 * 0.3 * 1.045)  # the median of 1.00 … 1.09
        assert half.figures["prefill_ms"].low >= 300
        assert half.figures["prefill_ms"].high <= 327
        assert half.figures["speed_up"].value == pytest.approx(4 / 3)
        assert half.figures["kv_mb"].value == pytest.approx(750e-6)
        assert half.ideal == pytest.approx(4 * 120 / (2 * 120 + 2 * 70))

    @pytest.mark.parametrize("name", ["tau", "mean"])
    def test_the_plotted_time_of_a_setting_is_that_of_base_divided_by_the_speed_up(
        self, results: Path, name: str
    ) -> None:
        for task in ("desed", "tau"):
            for setting, seconds in zip(("base-0-", "frame-0.5-2"), DRIFTING, strict=True):
                timed_as(results / task / setting, seconds)
        base, half, _most = panel_of(results, name).lines()["frame"]
        assert base.figures["prefill_ms"].value == pytest.approx(800)
        time, speed_up = half.figures["prefill_ms"], half.figures["speed_up"]
        assert (time.value, speed_up.value) == (pytest.approx(800 / 0.98), pytest.approx(0.98))
        assert (time.low, time.high) == (pytest.approx(800 / speed_up.high), pytest.approx(800 / speed_up.low))
        chart = of_panel(panel_of(results, name))
        assert chart is not None
        assert series.PAIRED.split()[:9] == " ".join(chart.spec["title"]["subtitle"]).split(". ")[-1].split()[:9]
        opening = chart.data["1-intervals"][0]
        assert opening["low"] == opening["high"] == pytest.approx(800)  # bands are intervals of the ratio

    def test_intervals_of_plotted_times_and_memory_come_from_resampling_clusters_of_samples(
        self, tmp_path: Path
    ) -> None:
        """A single cluster has no interval, however many samples it contains."""
        plotted(tmp_path, "tau", {"method": "base"}, score=0.6, prefill=1.0)
        for one_cluster, band in ((False, True), (True, False)):
            if one_cluster:
                changed_records(tmp_path / "tau" / "base-0-", cluster="c")
            figures = read_panels([tmp_path])[0].settings[0].figures
            for name in ("prefill_ms", "kv_mb"):
                assert (figures[name].low < figures[name].value < figures[name].high) is band

    @pytest.mark.parametrize(
        "ratios", [((0.5, 0.3), (0.3, 0.5)), ((0.12, 0.001), (0.12, 0.004))], ids=["equal in all", "close"]
    )
    def test_pruner_plus_press_settings_of_close_ratios_remain_separate_points(
        self, results: Path, ratios: Any
    ) -> None:
        for task in ("desed", "tau"):
            for score, (first, second) in zip((0.4, 0.8), ratios, strict=True):
                plotted(results, task, joined(first, second), score=score)
        _base, *both = panel_of(results, "mean").lines()["fast_v+snapkv"]
        assert sorted(setting.figures["score"].value for setting in both) == pytest.approx([0.4, 0.8])

    def test_pruner_plus_press_settings_with_different_pruning_layers_are_separate_curves(self, results: Path) -> None:
        for layer in (1, 2):
            plotted(results, "tau", joined(layer=layer))
        assert {"fast_v+snapkv layer 1", "fast_v+snapkv layer 2"} < set(panel_of(results, "tau").lines())

    def test_the_panel_of_the_mean_over_tasks_leaves_out_settings_that_one_task_lacks(self, results: Path) -> None:
        plotted(results, "tau", pruned("random"))
        assert set(panel_of(results, "tau").lines()) == {"frame", "random"}
        assert set(panel_of(results, "mean").lines()) == {"frame"}

    @pytest.mark.parametrize(("other", "said"), [({"seed": 7}, "seed 7"), ({"prompts": "x"}, "other prompts")])
    def test_runs_with_another_seed_or_prompt_are_a_separate_curve(
        self, results: Path, tmp_path: Path, other: dict[str, Any], said: str
    ) -> None:
        same = {"seed": 42, "prompts": "p", "device": "A"}
        for file in results.rglob("run.json"):
            with_identity(file.parent, **same)
        for method, prefill in (({"method": "base"}, 1.2), (pruned(), 0.4)):
            plotted(tmp_path / "more", "tau", method | same | other, score=0.1, prefill=prefill)
        lines = panel_of(results, "tau").lines()
        for name, expected in (("frame", 4 / 3), (f"frame {said}", 3)):  # each compared with its base
            base, setting = lines[name][:2]
            assert setting.figures["speed_up"].value == pytest.approx(expected)
            assert setting.figures["prefill_ms"].value == pytest.approx(base.figures["prefill_ms"].value / expected)
        scores = {name: [setting.figures["score"].value for setting in line] for name, line in lines.items()}
        assert scores == {"frame": pytest.approx([0.8, 0.7, 0.7]), f"frame {said}": [0.1, 0.1]}
        assert panel_of(results, "tau").bases[said].line == f"base {said}"

    def test_an_untimed_run_belongs_to_the_curve_of_its_method(self, results: Path) -> None:
        plotted(results, "tau", pruned(ratio=0.7, device=None), timed=False)
        assert set(panel_of(results, "tau").lines()) == {"frame"}

    def test_control_runs_are_plotted_in_separate_panels(self, results: Path, tmp_path: Path) -> None:
        plotted(tmp_path / "more", "tau", {"method": "base"}, score=0.1)
        with pytest.raises(RecordError, match="same task, checkpoint and setting"):
            read_panels([results])
        as_control(tmp_path / "more" / "tau" / "base-0-")
        panels = {panel.name: panel for panel in read_panels([results])}
        assert list(panels) == ["desed", "tau", "mean", "tau-silence"]
        assert "control: silence" in panels["tau-silence"].title
        (base,) = [setting for setting in panels["tau"].settings if setting.method == "base"]
        assert base.figures["score"].value == 0.8

    def test_a_pruner_joined_with_a_press_is_plotted_at_the_share_of_tokens_that_they_removed(
        self, results: Path
    ) -> None:
        plotted(results, "tau", joined(), kept=35)
        assert panel_of(results, "tau").lines()["fast_v+snapkv"][-1].ratio == pytest.approx(0.65)

    def test_untimed_runs_have_only_score_and_memory_in_their_panel(self, tmp_path: Path) -> None:
        plotted(tmp_path, "tau", {"method": "base"}, score=0.6, prefill=0.4, timed=False)
        (panel,) = read_panels([tmp_path])
        assert set(panel.settings[0].figures) == {"score", "kv_mb"}

    def test_a_run_scored_on_only_part_of_the_samples_is_not_plotted(self, results: Path) -> None:
        """The summary counts four of base's ten samples: a longer run is going on, or was killed."""
        changed(results / "tau" / "base-0-", "summary.json", n=4, expected=4)
        assert "base-0" not in {setting.label for setting in panel_of(results, "tau").settings}

    def test_a_task_without_a_finished_run_has_no_panel(self, results: Path) -> None:
        for summary in (results / "tau").rglob("summary.json"):
            summary.unlink()
        assert [panel.name for panel in read_panels([results])] == ["desed"]

    def test_task_panels_without_settings_in_common_give_no_panel_of_the_mean(self, results: Path) -> None:
        assert mean_panel([panel_of(results, "tau"), Panel("x", "x · y", "wer", ())], "mean") is None


class TestPictures:
    def test_the_plot_command_writes_one_png_per_task_and_one_for_the_mean_over_tasks(
        self, results: Path, tmp_path: Path
    ) -> None:
        done = CliRunner().invoke(app, ["plot", str(results), "-o", str(tmp_path / "plots")])
        assert done.exit_code == 0, done.stderr
        pictures = sorted((tmp_path / "plots").iterdir())
        assert [path.name for path in pictures] == ["desed.png", "mean.png", "tau.png"]
        assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)

    def test_runs_without_times_are_plotted_too(self, tmp_path: Path) -> None:
        plotted(tmp_path, "tau", pruned(), timed=False)
        assert [path.name for path in plot_runs([tmp_path], tmp_path)] == ["tau.png"]

    def test_a_model_name_with_control_characters_does_not_break_plots(self, results: Path) -> None:
        for file in results.rglob("run.json"):
            changed(file.parent, model="$\\x$ \ud83d\x00")
        assert plot_runs([results / "tau"], results)

    @given(st.lists(st.floats(0, 300), min_size=1, max_size=15).map(sorted))
    def test_labels_never_overlap_or_leave_the_panel(self, wanted: list[float]) -> None:
        places = spread(wanted, 10, 300)
        assert all(after - before >= 10 - 1e-6 for before, after in pairwise(places))
        assert places[0] >= 0
        assert places[-1] <= 300 + 1e-6


def a_chart(**options: Any) -> Chart:
    points = [
        {"x": 0.5, "y": 0.8, "low": 0.7, "high": 0.9, "what": "frame-0.5"},
        {"x": 0.9, "y": 0.4, "what": "frame-0.9"},
    ]
    return line_chart([Line("frame", "frame", points)], "ratio", "score", **options)


class TestCharts:
    """The specification of a chart contains everything that is drawn."""

    def test_the_chart_of_a_panel_draws_the_score_and_interval_of_each_setting(self, results: Path) -> None:
        panel = panel_of(results, "desed")
        chart = of_panel(panel)
        seen = {row["what"]: (row["y"], row["low"], row["high"]) for row in chart.data["0-points"]}
        estimates = {setting.label: setting.figures["score"] for setting in panel.settings}
        assert seen == {label: (estimate.value, estimate.low, estimate.high) for label, estimate in estimates.items()}
        assert {row["text"] for row in chart.data["0-labels"]} == {"frame", "base"}
        assert [row["y"] for row in chart.data["2-dotted"]] == [setting.ideal for setting in panel.lines()["frame"]]

    def test_equal_curves_are_drawn_once_with_all_their_names(self) -> None:
        def line(name: str, *ys: float) -> Line:
            return Line(name, name, [{"x": x, "y": y, "what": f"{name}-{x}"} for x, y in enumerate(ys)])

        lines = [line("dart", 1, 1), line("fast_v", 1, 1), line("frame", 1, 0.5)]
        chart = line_chart(lines, "ratio", "score", rules=[("base", 1.0, "black")])
        assert {row["text"] for row in chart.data["labels"]} == {"dart = fast_v = base", "frame"}
        assert [row["what"] for row in chart.data["points"]] == [
            "dart-0 = fast_v-0", "dart-1 = fast_v-1", "frame-0", "frame-1",
        ]  # fmt: skip
        many = line_chart([line(name * 5, 1, 1) for name in "abcde"], "ratio", "score")
        assert [row["text"] for row in many.data["labels"]] == ["aaaaa = 4 others"]

    def test_times_measured_on_a_busy_machine_are_drawn_as_hollow_points(self, results: Path) -> None:
        quiet = of_panel(panel_of(results, "desed"))
        changed(results / "desed" / "frame-0.5-2", "summary.json", busy=True)
        chart = of_panel(panel_of(results, "desed"))
        hollow = [{row["what"] for row in chart.data[f"{place}-points"] if not row["solid"]} for place in range(4)]
        assert hollow == [set(), {"frame-0.5-layer2"}, {"frame-0.5-layer2"}, set()]
        for drawn, is_hollow in ((chart, True), (quiet, False)):
            assert (series.HOLLOW in drawn.spec["title"]["subtitle"]) is is_hollow
            assert ('fill-opacity="0"' in drawn._repr_svg_()) is is_hollow

    def test_subtitle_lines_are_no_wider_than_the_charts(self, results: Path) -> None:
        """A browser draws letters of this size 6.5 pixels wide on average."""
        chart = of_panel(panel_of(results, "mean"))
        assert chart is not None
        assert max(map(len, chart.spec["title"]["subtitle"])) * 6.5 < 2 * (430 + 90)

    def test_an_svg_is_wide_enough_for_the_longer_labels_that_browsers_draw(self, results: Path) -> None:
        """Labels in a browser are about 15 % longer than vl-convert assumes."""
        svg = of_panel(panel_of(results, "desed"))._repr_svg_()
        width = float(re.search(r'<svg[^>]* width="([\d.]+)"', svg)[1])
        plain = of_panel(panel_of(results, "desed")).vega_lite()
        assert width >= float(re.search(r' width="([\d.]+)"', vl_convert.vegalite_to_svg(plain))[1]) + 15

    def test_tick_labels_of_an_axis_do_not_touch(self) -> None:
        """On a phone, 400 was drawn beside 500 without a space."""
        svg = bar_chart([{"name": "base-0", "part": "", "value": 497.0, "colour": "red"}], "ms", width=132)._repr_svg_()
        label = r'text-anchor="(\w+)" transform="translate\((\d+)[^>]*font-size="10px"[^>]*opacity="1">(\d+)<'
        anchors, ends = {"start": 0, "middle": 0.5, "end": 1}, []
        for anchor, x, text in re.findall(label, svg):
            width = 5.6 * len(text)
            ends.append((float(x) - anchors[anchor] * width, width))
        assert len(ends) > 1
        assert all(left + width + 3 < right for (left, width), (right, _) in pairwise(ends))

    def test_chart_specs_are_valid_vega_lite(self, results: Path) -> None:
        """Specs are validated with Vega-Lite's schema."""
        import altair

        for chart in (of_panel(panel_of(results, "desed")), a_chart(bands=False, front=[{"x": 0.5, "y": 0.8}])):
            whole = chart.vega_lite()
            altair.Chart.from_dict({name: value for name, value in whole.items() if name != "config"}, validate=True)

    def test_points_and_labels_lie_within_the_axis_limits(self) -> None:
        chart = a_chart(span=(0, 1), range_=(0.3, 1.0))
        (low, high) = chart.data["frame"]
        for row in (*chart.data["points"], *chart.data["labels"]):
            assert low["x"] <= row.get("x", row.get("x_end")) <= high["x"]
            assert low["y"] <= row["y"] <= high["y"]

    def test_the_interval_band_of_a_curve_has_zero_width_at_the_point_of_the_base_run(self) -> None:
        """Base's speed-up is exactly 1, so the band of a line opens at that point."""
        base, wide = {"x": 0.0, "y": 1.0, "low": 1.0, "high": 1.0}, {"x": 0.5, "y": 1.5, "low": 1.4, "high": 1.7}
        data = [line_chart([Line("frame", "frame", points)], "x", "y").data for points in ([base, wide], [base])]
        assert [row["x"] for row in data[0]["intervals"]] == [0, 0.5]
        assert "intervals" not in data[1]

    def test_the_score_axis_spans_at_least_0_2_even_if_all_scores_are_nearly_equal(self) -> None:
        low, high = score_range([Line("frame", "frame", [{"x": 0.5, "y": 0.9}, {"x": 0.9, "y": 0.901}])])
        assert high - low == pytest.approx(0.2)

    def test_the_pareto_front_holds_the_points_that_no_other_point_beats(self) -> None:
        points = [{"x": 1, "y": 0.5}, {"x": 2, "y": 0.4}, {"x": 3, "y": 0.9}, {"x": 3, "y": 0.8}]
        assert pareto_front(points) == [{"x": 1, "y": 0.5}, {"x": 3, "y": 0.9}]

    def test_charts_are_saved_without_a_browser_in_each_image_format(self, tmp_path: Path) -> None:
        for kind, begin in {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<svg"}.items():
            assert save(a_chart(), tmp_path / f"a.{kind}").read_bytes().startswith(begin)

    def test_an_unknown_image_format_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="png, pdf, svg"):
            save(a_chart(), tmp_path / "a.gif")
        done = CliRunner().invoke(app, ["plot", str(tmp_path), "--format", "gif"])
        assert done.exit_code == 2
        assert "png, pdf, svg" in done.stderr


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: save(a_chart(), folder / "a.svg"),
        lambda folder: plot_durations([DURATIONS], folder),
        lambda folder: write_durations([DURATIONS], folder),
    ],
    ids=["picture", "durations", "table"],
)
def test_writing_a_picture_or_table_on_a_full_disk_leaves_the_existing_file_unchanged(
    write: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    whole = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        whole(path, content[:20])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(RecordError, match="cannot be written: No space left"):
        write(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before

"""The HTML report: its content, what it must never contain, and the files for a paper."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from builders import (
    CLASSES,
    DRIFTING,
    HOSTILE,
    a_failed_record,
    a_run,
    a_session,
    a_timed_choice,
    added,
    as_control,
    changed,
    changed_records,
    finished,
    lines_of,
    timed_as,
    write_records,
)
from conftest import content_of, succeed
from markupsafe import escape

from audiomarathon.errors import RecordError, SettingsError
from audiomarathon.records import Record
from audiomarathon.report import styles as series
from audiomarathon.report.charts import script
from audiomarathon.report.curves import read_panels
from audiomarathon.report.page import PageOptions, as_script, page
from audiomarathon.report.page_data import PageData, by_duration, scores_table
from audiomarathon.report.paper import records
from audiomarathon.report.pictures import of_panel
from audiomarathon.report.render import Table, escaped, latex, markdown
from audiomarathon.report.render import csv as as_csv
from audiomarathon.report.render import html as as_html
from audiomarathon.report.samples import BANDS, STRIP, choose, columns, picture, strip
from audiomarathon.report.sections import sections
from audiomarathon.results.beside import ACROSS
from audiomarathon.results.systems import find_reference, read_systems
from audiomarathon.runs.read import Run
from audiomarathon.runs.record_line import pack
from audiomarathon.text import plain


def data_of(folder: Path) -> PageData:
    return PageData(read_systems([folder]))


def html_of(shown: Path | PageData) -> str:
    """Return the page of runs without spectrograms."""
    return page(data_of(shown) if isinstance(shown, Path) else shown, PageOptions(spectrograms=False))


def shown(html: str) -> str:
    """Return the visible part of a page, before its data and code."""
    return html.partition('<script type="application/json"')[0]


FAILED = a_failed_record("clip7", "AudioError: clip7.wav: no sound")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for task in ("tau", "desed"):
        finished(a_run(tmp_path, "base-0", [True] * 8, task=task), score=1.0)
        finished(a_run(tmp_path, "dart-0.5-layer2", [True] * 6 + [False] * 2, task=task, prefill=0.5))
    return tmp_path


class TestPage:
    def test_the_report_page_contains_settings_and_the_replies_of_all_samples(self, root: Path) -> None:
        content = content_of(html_of(root))
        assert [setting["name"] for setting in content["settings"]] == ["base-0", "dart-0.5-layer2"]
        assert [setting.ratio for setting in data_of(root).settings] == [0.0, 0.5]
        assert len(content["samples"]) == content["total"] == 16
        assert all(len(sample["replies"]) == 2 for sample in content["samples"])

    def test_markup_in_replies_and_names_is_escaped(self, tmp_path: Path) -> None:
        record = a_timed_choice(0, right=False, reply=HOSTILE, id=HOSTILE, cluster=HOSTILE)
        folder = added(finished(a_run(tmp_path, "base-0", [True] * 2)), record)
        changed(folder, samples=[HOSTILE], model=HOSTILE)
        html = page(data_of(tmp_path), PageOptions(title=HOSTILE, spectrograms=False))
        assert "<img" not in shown(html)
        assert "alert(1)</script>" not in html
        assert html.count("</script>") == 3  # the data's, Vega's and the page's own
        assert content_of(html)["samples"][0]["replies"][0]["reply"] == plain(HOSTILE)

    def test_the_report_page_makes_no_network_request(self, root: Path) -> None:
        html = html_of(root)
        assert not re.search(r'(?:src|href)="?(?:https?:)?//', shown(html))
        assert "unsafe-eval" not in html
        assert "default-src 'none'" in html

    @pytest.mark.parametrize("old", [None, {"n": 3, "expected": 3}])
    def test_an_unfinished_run_is_named_on_the_page_and_has_no_scores_or_times(
        self, root: Path, old: dict[str, Any] | None
    ) -> None:
        """It has no summary, or the summary of a shorter earlier run."""
        folder = a_run(root, "fast_v-0.5-layer2", [True] * 8)
        if old:
            finished(folder, **old)
        data = data_of(root)
        assert len([place for place in data.figures if place[0] in data.tasks]) == 4
        assert data.unfinished == [("fast_v-0.5-layer2", "tau", 8, 8)]
        assert "fast_v-0.5-layer2: no figures for tau" in shown(html_of(data))

    def test_metrics_computed_from_part_of_the_samples_state_the_number_of_samples(self, tmp_path: Path) -> None:
        finished(changed(a_run(tmp_path, "base-0", [True] * 8), samples=[f"clip{number}" for number in range(10)]))
        content = shown(html_of(tmp_path))
        assert "base-0: figures of tau use 8 of 10 samples: not finished" in content

    def test_runs_without_a_record_give_an_error_instead_of_a_page(self, tmp_path: Path) -> None:
        folder = a_run(tmp_path, "base-0", [True])
        (folder / "samples.jsonl").write_text("")
        with pytest.raises(RecordError, match=r"no sample was answered in .*base-0; run them again"):
            html_of(tmp_path)

    def test_a_page_of_500_samples_under_ten_settings_is_below_5_mb(self, tmp_path: Path) -> None:
        """Samples have strips and long transcripts. The size is extrapolated from 50 samples plus scripts."""
        for ratio in range(10):
            folder = finished(a_run(tmp_path, f"dart-0.{ratio}-layer2", [True] * 50))
            kept = pack(torch.arange(0, 7500, 2), torch.ones(7500, dtype=torch.bool))
            changed_records(folder, kept_audio_bits=kept, audio_tokens=7500, reply="and so " * 300)
        size_of_samples = len(html_of(tmp_path)) - len(script())
        pictures = 500 * STRIP * BANDS / 2 * 4 / 3
        assert len(script()) + 10 * size_of_samples + pictures < 5e6

    def test_the_report_page_stores_equal_replies_of_many_settings_only_once(self, tmp_path: Path) -> None:
        sizes = []
        for settings in (2, 12):
            folder = tmp_path / str(settings)
            for place in range(settings):
                label = f"dart-0.{100 + place}-layer2" if place else "base-0"
                finished(a_run(folder, label, [True] * 20 + [False] * 20), score=0.5)
            sizes.append(len(html_of(folder)))
        assert sizes[1] - sizes[0] < 10 * 40 * 50  # a further reply adds only its indices and its share of tables

    def test_the_report_page_limits_the_number_of_replies_that_it_contains(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept = pack(torch.arange(0, 750, 2), torch.ones(750, dtype=torch.bool))
        changed_records(root / "tau" / "M" / "dart-0.5-layer2", kept_audio_bits=kept, audio_tokens=750)
        monkeypatch.setattr("audiomarathon.report.page._MOST_REPLIES", 20)
        monkeypatch.setattr("audiomarathon.report.samples._ALL_STRIPS", 20 * 40)
        content = content_of(html_of(root))
        assert (len(content["samples"]), content["total"]) == (10, 16)
        strips = [reply["kept"] for sample in content["samples"] for reply in sample["replies"] if "kept" in reply]
        assert {2 * len(base64.b64decode(bits)) for bits in strips} == {60}
        assert max(map(len, strips)) <= 40


def test_invalid_page_options_are_refused() -> None:
    for options in ({"players": "flash"}, {"samples": -1}):
        with pytest.raises(SettingsError, match="allowed"):
            PageOptions(**options)


def test_text_inside_a_script_element_is_escaped_and_parsed_back() -> None:
    text = as_script({"reply": HOSTILE})
    assert "<" not in text
    assert json.loads(text) == {"reply": plain(HOSTILE)}
    assert "\\u202e" in json.loads(text)["reply"]  # else it would turn around the page's own words


def test_charts_leave_out_times_measured_in_another_session_and_say_so_in_a_note(root: Path) -> None:
    base, dart = (root / "tau" / "M" / name for name in ("base-0", "dart-0.5-layer2"))
    for folder, session in ((base, "s"), (changed_records(dart, session="t"), "t")):
        changed(changed(folder, sessions=[a_session(session)]), "summary.json", kv_bytes=1000.0)
    assert data_of(root).figures["tau", 1]["across"]
    by_anchor = {section.anchor: section for section in sections(data_of(root))}
    for anchor in ("curves", "costs"):
        told = [note for note in by_anchor[anchor].notes["tau"] if "dart-0.5-layer2" in note and ACROSS in note]
        assert len(told) == 1, anchor
    (chart,) = by_anchor["curves"].charts["tau"]  # the time of base alone is not drawn
    assert chart.spec["title"] == "Score against ratio"
    (panel,) = [panel for panel in read_panels([root]) if panel.name == "tau"]
    assert re.search("dart-0.5-layer2.*different sessions", " ".join(of_panel(panel).spec["title"]["subtitle"]))


def test_a_note_shared_by_every_setting_is_shown_once_with_the_number_of_settings(tmp_path: Path) -> None:
    note = "a remark of every run"
    for method in ("base-0", *(f"{name}-0.5-layer2" for name in ("dart", "random", "fast_v", "frame"))):
        changed(finished(a_run(tmp_path, method, [True] * 8)), "summary.json", notes=[note])
    (told,) = [line for line in sections(data_of(tmp_path))[0].notes[""] if note in line]
    assert told == f"all 5 settings: {note}."


def test_class_tables_with_one_sample_per_class_are_collapsed_on_the_page(tmp_path: Path) -> None:
    for count, folded in ((len(CLASSES), True), (2 * len(CLASSES), False)):
        finished(a_run(tmp_path / str(count), "base-0", [True] * count))
        data = data_of(tmp_path / str(count))
        (tables,) = [section.tables for section in sections(data) if section.anchor == "tasks"]
        assert [table.folded for table in tables] == [folded]
        assert ("one sample a class" in html_of(data)) is folded


class TestTimes:
    """A setting's time is base's time divided by its paired speed-up, both in the table and in all pictures."""

    @pytest.fixture
    def drifting(self, tmp_path: Path) -> Path:
        for task in ("tau", "desed"):
            for label, seconds in zip(("base-0", "dart-0.5-layer2"), DRIFTING, strict=True):
                timed_as(finished(a_run(tmp_path, label, [label == "base-0"] * 10, task=task)), seconds)
        finished(a_run(tmp_path, "fast_v-0.5-layer2", [True] * 10, prefill=0.3, device="other gpu"))
        return tmp_path

    def test_times_of_a_pruned_setting_equal_the_base_time_divided_by_the_paired_speed_up(self, drifting: Path) -> None:
        figures = data_of(drifting).figures
        base, dart = figures["overall", 0], figures["overall", 1]
        assert dart["first_token_speedup"] == dart["llm_prefill_speedup"] == pytest.approx(0.98)
        for name in ("prefill_s", "llm_prefill_s"):
            assert (base[name], dart[name]) == (pytest.approx(0.8), pytest.approx(0.8 / 0.98))

    def test_without_samples_paired_with_base_the_shown_times_of_a_setting_are_its_medians(
        self, drifting: Path
    ) -> None:
        (row,) = [row for (task, _), row in data_of(drifting).figures.items() if row["setting"].startswith("fast_v")]
        assert row["llm_prefill_s"] == pytest.approx(0.3)

    def test_a_setting_slower_than_base_is_not_on_the_pareto_front(self, drifting: Path) -> None:
        charts = {section.anchor: section.charts for section in sections(data_of(drifting))}
        for chart in charts["curves"]["overall"][1:]:
            assert [point["x"] for point in chart.data["front"]] == [pytest.approx(800)]
        bars = {(row["name"], row["part"]): row["value"] for row in charts["costs"]["overall"][0].data["bars"]}
        assert bars["dart-0.5-layer2", "LLM prefill"] == pytest.approx(800 / 0.98)
        html = shown(html_of(drifting))
        assert html.count(str(escape(series.PAIRED))) == 2 * len(charts["curves"])
        assert "need not agree" not in html

    def test_times_taken_on_a_busy_machine_are_drawn_hollow_and_pale(self, root: Path) -> None:
        def marked() -> set[bool]:
            by_anchor = {section.anchor: section for section in sections(data_of(root))}
            ratio, *times = by_anchor["curves"].charts["tau"]
            solid = [{row["solid"] for row in chart.data["points"] if row["marked"]} for chart in (ratio, *times)]
            assert solid[0] == {1}  # this chart has no time
            assert solid[1] == solid[2]
            (bars,) = by_anchor["costs"].charts["tau"]
            drawn = (bars.data["bars"], by_anchor["choice"].charts[""][0].data["points"])
            noted = (("curves", "tau", series.HOLLOW), ("choice", "", series.HOLLOW), ("costs", "tau", series.PALE))
            return {
                0 in solid[1],
                *(any(row["solid"] < 1 for row in rows) for rows in drawn),
                *(note in by_anchor[anchor].notes.get(key, ()) for anchor, key, note in noted),
            }

        assert marked() == {False}
        changed(root / "tau" / "M" / "base-0", sessions=[a_session(busy=5.0)])  # ratios to base use busy times, too
        changed(root / "tau" / "M" / "dart-0.5-layer2", sessions=[a_session()])
        assert marked() == {True}


def test_a_press_that_cannot_change_replies_is_marked_as_equal_to_base_by_construction(tmp_path: Path) -> None:
    for task in ("tau", "desed"):
        for label in ("base-0", "snapkv-0.5", "dart-0.5-layer2"):
            finished(a_run(tmp_path, label, [True] * 8, task=task))

    def marks() -> dict[tuple[str, str], str]:
        rows = [((scope, row["setting"]), row) for (scope, _), row in data_of(tmp_path).figures.items()]
        return {key: said for key, row in rows if "by construction" in (said := row.get("difference_said", ""))}

    assert marks() == {(scope, "snapkv-0.5"): "= base by construction" for scope in ("tau", "desed", "overall")}
    before, _, after = shown(html_of(tmp_path)).partition('id="scores"')
    assert "(= base by construction)" in before
    assert "(= base by construction)" in after
    changed_records(tmp_path / "tau" / "M" / "snapkv-0.5", new_tokens=3)
    assert marks().keys() == {("desed", "snapkv-0.5"), ("overall", "snapkv-0.5")}
    assert marks()["overall", "snapkv-0.5"] == "= base by construction in 1 of 2 tasks"


def test_scores_are_grouped_by_clip_length_in_steps_of_half_a_minute(tmp_path: Path) -> None:
    folder = a_run(tmp_path, "base-0", [True, False, True, True])
    rows = zip(lines_of(folder / "samples.jsonl"), (89.9, 90.0, 119.9, 120.0), strict=True)
    write_records(folder, [row | {"clip_seconds": seconds} for row, seconds in rows])
    finished(folder)
    bins = by_duration(data_of(tmp_path).figures["tau", 0]["own_scores"])
    assert bins == [(60, 1, 1.0), (90, 2, 0.5), (120, 1, 1.0)]


def test_the_table_of_machine_properties_has_one_property_per_row(root: Path) -> None:
    """Facts were once columns, and the long list of versions in the last one left a gap in all others."""
    (table,) = next(section.tables for section in sections(data_of(root)) if section.anchor == "machine")
    assert table.columns == ["settings", "all"]
    rows = table.frame.to_dict("records")
    assert [row["settings"] for row in rows][:3] == ["model", "checkpoint", "device"]
    assert [row["all"] for row in rows if row["settings"] == "certified"] == ["no"]


def test_each_pruning_layer_has_a_line_of_its_own_in_the_charts(root: Path) -> None:
    folder = finished(a_run(root, "dart-0.5-layer10", [True] * 8, layer=10))
    changed(folder, environment={"cpu": "x", "packages": {"torch": "9"}})
    for file in root.rglob("dart-0.5-layer2/run.json"):
        file.write_text(file.read_text().replace('"ratio": 0.5', '"ratio": 0.5, "layer": 2'))
    data = data_of(root)
    assert {setting.name: setting.line for setting in data.settings} == {
        "base-0": "base", "dart-0.5-layer2": "dart layer 2", "dart-0.5-layer10": "dart layer 10",
    }  # fmt: skip
    assert "cpu x, torch 9" in shown(html_of(data))


class TestControls:
    @pytest.fixture
    def controls(self, root: Path) -> Path:
        """Add runs on silence, of a task that also has runs on real audio and of a task that has none."""
        for task in ("tau", "gtzan"):
            as_control(finished(a_run(root / "silence", "base-0", [False] * 8, task=task), score=0.1))
        return root

    def test_runs_on_control_audio_are_listed_separately_from_runs_on_real_audio(self, controls: Path) -> None:
        sides = {side.name(with_checkpoint=False): set(side.runs) for side in read_systems([controls])}
        both = {"tau", "desed"}
        assert sides == {"base-0": both, "dart-0.5-layer2": both, "base-0 [silence]": {"tau", "gtzan"}}
        assert list(sides)[-1] == "base-0 [silence]"  # although its folder is read before tau
        reordered = read_systems([controls / "silence", controls / "tau", controls / "desed"])
        assert find_reference(reordered, None).control == ""

    def test_the_name_of_a_control_run_holds_its_kind_of_audio_and_its_seconds(self) -> None:
        names = {("silence", None): "silence", ("audio", 30.0): "30s audio", ("noise", 5): "5s noise"}
        for (kind, seconds), name in names.items():
            assert Run({"control": {"kind": kind, "seconds": seconds}}, {}).control == name
        assert Run({"control": None}, {}).control == Run({}, {}).control == ""

    def test_runs_on_silence_are_compared_only_with_base_on_silence(self, controls: Path) -> None:
        finished(a_run(controls, "random-0.5-layer2", [True] * 8, task="gtzan"))
        data = data_of(controls)
        names = [setting.name for setting in data.settings]
        silence = names.index("base-0 [silence]")
        assert data.settings[silence].base == silence
        assert set(data.scopes["overall"]) == {"tau", "desed", "gtzan"}
        assert silence not in {place for scope, place in data.figures if scope in data.scopes} | {*data.charted}
        heard = {
            (sample["task"], sample["control"]): {names[reply["setting"]] for reply in sample["replies"]}
            for sample in content_of(html_of(data))["samples"]
        }
        assert heard["tau", "silence"] == {"base-0 [silence]"}
        assert heard["tau", ""] == {"base-0", "dart-0.5-layer2"}


class TestSamples:
    def test_samples_on_which_settings_disagree_come_first_in_each_task(self, root: Path) -> None:
        for limit, clips in ((2, ("clip6",)), (4, ("clip6", "clip7"))):
            chosen, total = choose(read_systems([root]), limit)
            assert (total, set(chosen)) == (16, {(task, "", clip) for task in ("tau", "desed") for clip in clips})

    def test_failed_samples_are_shown_with_the_error(self, root: Path) -> None:
        for label in ("base-0", "dart-0.5-layer2"):
            added(root / "tau" / "M" / label, FAILED)
        sides = read_systems([root])
        assert ("tau", "", "clip7") in choose(sides, 4)[0]
        samples = {(sample["task"], sample["id"]): sample for sample in content_of(html_of(PageData(sides)))["samples"]}
        replies = samples["tau", "clip7"]["replies"]
        assert [(reply["failed"], reply["reply"]) for reply in replies] == [(True, FAILED["error"])] * 2

    def test_without_data_the_answer_options_are_shown_instead_of_the_prompt(self, root: Path) -> None:
        samples = content_of(html_of(root))["samples"]
        assert samples[0]["prompt"].endswith("A. airport\nB. bus\nC. metro\nD. park")

    def test_a_huge_reply_is_cut_so_that_the_page_stays_short(self, tmp_path: Path) -> None:
        record = a_timed_choice(0, right=False, reply="x" * 1_000_000)
        finished(added(a_run(tmp_path, "base-0", [True]), record))
        assert len(html_of(tmp_path)) < len(script()) + 150_000

    def test_a_kept_token_strip_shows_which_moments_of_the_clip_were_kept(self) -> None:
        """The first half of 320 tokens is kept; 20 more are window padding."""
        kept = pack(torch.arange(160), torch.ones(340, dtype=torch.bool))
        record = Record("a", kept_audio_bits=kept, audio_tokens=340, window_padding_tokens=20)
        shares = list(base64.b64decode(strip(record) or ""))
        assert shares == [255] * 40 + [0] * 40  # two columns a byte
        assert strip(Record("a")) is None
        every_other = pack(torch.arange(0, 160, 2), torch.ones(160, dtype=torch.bool))
        packed = base64.b64decode(strip(Record("a", kept_audio_bits=every_other, audio_tokens=160)) or "")
        assert list(packed) == [0xF0] * 80  # the earlier column first

    def test_a_column_of_a_kept_token_strip_is_the_mean_of_the_values_that_fall_into_it(self) -> None:
        assert columns(np.arange(7.0)[None], 3).tolist() == [[1.0, 3.0, 5.0]]  # 0 to 2, 2 to 4, 4 to 6
        assert columns(np.arange(6.0)[None], 3).tolist() == [[0.5, 2.5, 4.5]]

    def test_a_spectrogram_shows_time_and_frequency_of_a_tone_and_is_dark_in_silence(self, tmp_path: Path) -> None:
        """Silence, then a tone of 1 kHz: the right half's loudest band lies below the middle."""

        def packed(wave: np.ndarray) -> np.ndarray:
            soundfile.write(tmp_path / "a.wav", wave.astype(np.float32), 16000)
            return np.frombuffer(base64.b64decode(picture(tmp_path / "a.wav") or ""), np.uint8)

        time = np.arange(16000 * 4) / 16000
        tone = packed(np.where(time < 2, 0, np.sin(2 * np.pi * 1000 * time)))
        image = np.stack([tone >> 4, tone & 15], axis=1).reshape(BANDS, STRIP)
        assert image[:, : STRIP // 2 - 4].max() == 0
        assert 5 < image[:, -20:].mean(axis=1).argmax() < BANDS // 2
        assert set(packed(np.zeros(32000))) == {0}

    def test_a_broken_clip_has_no_spectrogram(self, tmp_path: Path) -> None:
        (tmp_path / "a.wav").write_bytes(b"no sound")
        assert picture(tmp_path / "a.wav") is None


class TestMeans:
    def test_means_over_all_tasks_leave_out_a_setting_that_did_not_run_every_task(self, root: Path) -> None:
        finished(a_run(root, "random-0.5-layer2", [True] * 8))  # tau only
        data = data_of(root)
        assert {data.settings[place].name for scope, place in data.figures if scope == "overall"} == {
            "base-0", "dart-0.5-layer2"
        }  # fmt: skip

    def test_means_over_common_tasks_are_added_if_a_setting_did_not_run_every_task(self, root: Path) -> None:
        assert "in common" not in data_of(root).scopes
        finished(a_run(root, "base-0", [True] * 8, task="gtzan"))
        data = data_of(root)
        assert data.figures["in common", 1]["difference"] == data.figures["tau", 1]["difference"]
        scopes = [set(data.scopes[name]) for name in ("in common", "overall")]
        assert scopes == [{"tau", "desed"}, {"tau", "desed", "gtzan"}]


class TestPaper:
    def test_the_best_score_is_bold_in_the_markdown_and_latex_tables(self, root: Path) -> None:
        table = scores_table(data_of(root))
        assert "| base-0 | **1.000** [0.400, 0.600] |" in markdown(table)
        assert r"\textbf{1.000}" in latex(table)
        assert latex(table).count(r"\\") == len(table.frame) + 1

    def test_the_score_of_a_control_is_never_marked_as_best(self, root: Path) -> None:
        finished(root / "tau" / "M" / "base-0", score=0.9)
        as_control(finished(a_run(root / "silence", "base-0", [True] * 8), score=1.0))
        table = markdown(scores_table(data_of(root)))
        heading, _rule, *rows = [line.strip("| \n").split(" | ") for line in table.splitlines()]
        tau = {row[0]: row[heading.index("tau")].split(" ")[0] for row in rows}
        assert tau == {"base-0": "**0.900**", "dart-0.5-layer2": "0.500", "base-0 [silence]": "1.000"}
        finished(root / "silence" / "tau" / "M" / "base-0", score=0.9)  # equal to the best in all digits shown
        assert markdown(scores_table(data_of(root))).count("**0.900**") == 1

    def test_markup_in_setting_names_is_escaped_in_every_table_format(self) -> None:
        table = Table.of([{"setting": "<img src=x>|\x1b[31m", "tau": 1.0, "tau_mark": "best"}])
        assert "| &lt;img src=x>\\|\\x1b[31m | **1.000** |" in markdown(table)
        assert "\x1b" not in latex(table) + as_html(table) + as_csv(table)
        assert "<img" not in as_html(table)

    def test_special_characters_in_latex_tables_are_escaped(self) -> None:
        assert escaped("fast_v 50% {a} \\ #1") == r"fast\_v 50\% \{a\} \textbackslash{} \#1"

    def test_the_report_command_writes_figures_tables_and_records(self, root: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        succeed("report", root, "-o", out / "r.html", "--figures", out / "f", "--no-spectrograms")
        names = {path.name for path in (out / "f").iterdir()}
        assert {"tau.pdf", "tau.csv", "mean.pdf", "scores.md", "scores.tex", "records.csv"} <= names
        pdf = (out / "f" / "tau.pdf").read_bytes()
        assert pdf.startswith(b"%PDF")
        assert b"/FontFile2" in pdf  # TrueType fonts are embedded, but no Type 3 fonts, which publishers refuse
        assert b"/Type3" not in pdf
        assert 450 <= int(re.search(rb"/MediaBox \[0 0 (\d+)", pdf)[1]) <= 520  # about the seven inches of both columns
        assert (out / "f" / "records.csv").read_text().count("\n") == 33

    def test_records_csv_holds_failed_samples_and_keeps_whole_numbers(self, root: Path) -> None:
        added(root / "tau" / "M" / "base-0", FAILED)
        rows = list(csv.DictReader(io.StringIO(as_csv(records(data_of(root))))))
        assert len(rows) == 32
        assert [row["error"] for row in rows if row["error"]] == [FAILED["error"]]
        assert {row["kv_bytes"] for row in rows} == {"1000", ""}

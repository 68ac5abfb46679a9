"""What the report draws, in a real browser: which runs stand together, in which colours, on which paper."""

from __future__ import annotations

import re
from typing import Any

import pytest
from builders import a_run, as_control, changed, changed_records, finished

pytest.importorskip("test_report_in_browser", reason="no browser", exc_type=pytest.skip.Exception)
from test_report_in_browser import By, Select, browser, one  # noqa: F401

from audiomarathon.report.page import PageOptions, page
from audiomarathon.results.systems import read_systems


def written(browser: Any, folder: Any) -> Any:  # noqa: F811
    file = folder / "report.html"
    file.write_text(page(read_systems([folder]), PageOptions(spectrograms=False)), encoding="utf-8")
    browser.get(file.as_uri())
    return browser


@pytest.fixture(scope="module")
def opened(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:  # noqa: F811
    """Base and dart on two tasks; dart at another layer, on another device, and silence on one."""
    root = tmp_path_factory.mktemp("layout")
    for task in ("tau", "desed"):
        finished(a_run(root, "base-0", [True] * 8, task=task), score=1.0)
        for ratio, prefill in ((0.3, 0.8), (0.6, 0.5)):
            wrong = [True] * 6 + [False] * 2
            finished(a_run(root, f"dart-{ratio}-layer2", wrong, task=task, prefill=prefill, layer=2), score=0.75)
    finished(a_run(root, "dart-0.5-layer10", [True] * 8, layer=10, device="other gpu"), score=0.9)
    finished(a_run(root, "random-0.5-layer2", [True] * 8, task="desed"), score=0.5)
    as_control(finished(a_run(root / "silence", "base-0", [False] * 8), score=0.25))
    return written(browser, root)


def scope(page_: Any, name: str) -> None:
    Select(one(page_, "#curves select.scope")).select_by_visible_text(name)


def legend(page_: Any, section: str) -> list[str]:
    """The names in the legend of a section's first chart."""
    return [span.text for span in one(page_, f"#{section} figure").find_elements(By.CSS_SELECTOR, ".legend span")]


def row(page_: Any, section: str, name: str) -> list[str]:
    rows = page_.find_elements(By.CSS_SELECTOR, f"#{section} tbody tr")
    return next(one_.text.split() for one_ in rows if one_.text.startswith(f"{name} "))


def test_one_line_a_layer_and_none_for_what_did_not_run(opened: Any) -> None:
    scope(opened, "tau")
    assert legend(opened, "curves") == ["dart layer 2", "dart layer 10", "base"]
    scope(opened, "desed")
    assert legend(opened, "curves") == ["dart layer 2", "random", "base"]


def test_base_is_never_in_the_colour_of_a_method(opened: Any) -> None:
    scope(opened, "tau")
    inks = opened.execute_script(
        "return [...document.querySelectorAll('#curves figure > svg circle')].filter(dot =>"
        " dot.textContent.startsWith('base-0')).map(dot => dot.getAttribute('fill'))"
    )
    assert inks
    assert set(inks) == {"currentColor"}


def test_the_pareto_front_lies_on_top_and_spans_no_devices(opened: Any) -> None:
    scope(opened, "desed")
    lasts = opened.execute_script(
        "return [...document.querySelectorAll('#curves figure > svg')].map(svg => svg.lastChild.getAttribute('class'))"
    )
    assert lasts == [None, "front", "front"]
    scope(opened, "tau")
    assert (
        "in no picture of times: tau: times of other devices (other gpu and gpu)" in one(opened, "#curves .notes").text
    )
    dots = opened.execute_script(
        "return [...document.querySelectorAll('#curves figure')].map(one => [...one.querySelectorAll('svg title')]"
        ".map(title => title.textContent).join())"
    )
    assert "dart-0.5-layer10" in dots[0]
    assert "dart-0.5-layer10" not in dots[1] + dots[2]


def test_lines_rise_in_ratio_from_base(opened: Any) -> None:
    """Against time they run from right to left: base is the slowest."""
    scope(opened, "desed")
    line = opened.find_elements(By.CSS_SELECTOR, "#curves figure:nth-child(2) polyline")[0]
    xs = [float(pair.split(",")[0]) for pair in line.get_attribute("points").split()]
    assert len(xs) == 3
    assert xs == sorted(xs, reverse=True)


def test_all_pictures_follow_the_scope_and_name_who_is_missing(opened: Any) -> None:
    scope(opened, "overall")
    assert {
        Select(select).first_selected_option.text for select in opened.find_elements(By.CSS_SELECTOR, "select.scope")
    } == {"overall"}
    for section in ("curves", "costs", "durations"):
        note = one(opened, f"#{section} .notes").text
        assert "tau, desed" in note or "desed, tau" in note
        assert "not here: " in note
        assert "dart-0.5-layer10" in note
    assert "dart-0.5-layer10" not in one(opened, "#costs figure > svg").text


def test_first_token_only_where_times_compare(opened: Any) -> None:
    assert "1.83×" in row(opened, "overview", "dart-0.6-layer2")
    assert not [cell for cell in row(opened, "overview", "dart-0.5-layer10") if cell.endswith("×")]
    assert "dart-0.5-layer10" in one(opened, "#overview .notes").text


def test_controls_are_marked_and_in_no_curve(opened: Any) -> None:
    assert row(opened, "overview", "base-0 [silence]")
    assert "0.250" in row(opened, "heat", "base-0 [silence]")
    assert "control runs" in one(opened, "#overview .notes").text
    scope(opened, "tau")
    assert not [name for name in legend(opened, "curves") if "silence" in name]
    choices = [option.text for option in Select(one(opened, "select[name=task]")).options]
    assert "tau [silence]" in choices


def test_a_duration_axis_of_one_bin_shows_its_edges(opened: Any) -> None:
    scope(opened, "tau")
    texts = [text.text for text in one(opened, "#durations figure > svg").find_elements(By.CSS_SELECTOR, "text")]
    assert texts[:2] == ["90", "120"]


@pytest.fixture
def printed(opened: Any) -> Any:
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    opened.execute_script("document.documentElement.dataset.theme = 'dark'")
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    yield opened
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    opened.execute_script("delete document.documentElement.dataset.theme")


def test_paper_is_white_and_nothing_is_cut(printed: Any) -> None:
    seen = printed.execute_script(
        "const of = (query) => getComputedStyle(document.querySelector(query));"
        "return [of('body').backgroundColor, of('body').color, of('#heat .scroll').overflowX, of('#samples').display]"
    )
    assert seen == ["rgb(255, 255, 255)", "rgb(27, 27, 31)", "visible", "none"]


def test_a_narrow_screen_scrolls_inside_tables_only(opened: Any) -> None:
    size = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wide = opened.execute_script("return document.documentElement.scrollWidth")
    opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide == 390


@pytest.mark.parametrize("what", ["failed", "untimed", "one sample"])
def test_pages_with_little_on_them(browser: Any, tmp_path: Any, what: str) -> None:  # noqa: F811
    rights = [True] if what == "one sample" else [] if what == "failed" else [True] * 8
    none = {"score": None, "intervals": None, "n": 0, "errors": 8}
    folder = finished(a_run(tmp_path, "base-0", rights), **(none if what == "failed" else {"intervals": None}))
    if what == "untimed":
        changed_records(folder, time=None)
    written(browser, tmp_path)
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert "base-0" in one(browser, "#overview table").text
    assert {"failed": "No score yet", "untimed": "Nothing was timed", "one sample": "base-0"}[what] in one(
        browser, "main"
    ).text


def test_what_is_not_finished_is_said(browser: Any, tmp_path: Any) -> None:  # noqa: F811
    """Base was summed up after eight of ten samples; dart's summary is of a shorter run."""
    ids = [f"clip{number}" for number in range(10)]
    finished(changed(a_run(tmp_path, "base-0", [True] * 8), samples=ids))
    finished(a_run(tmp_path, "dart-0.5-layer2", [True] * 8), n=3, expected=3)
    notes = one(written(browser, tmp_path), "#overview .notes").text
    assert "8 samples of 10" in notes
    assert re.search(r"dart-0\.5-layer2: no figures of tau.*not finished .*8 of 8", notes)


def test_a_flat_score_looks_flat(browser: Any, tmp_path: Any) -> None:  # noqa: F811
    for label in ("base-0", "dart-0.5-layer2"):
        finished(a_run(tmp_path, label, [True] * 8), score=1.0, intervals=None)
    written(browser, tmp_path)
    texts = browser.find_elements(By.CSS_SELECTOR, "#curves figure:first-child > svg text[text-anchor=end]")
    heights = [float(text.text) for text in texts]
    assert heights[0] <= 0.8
    assert heights[-1] == 1

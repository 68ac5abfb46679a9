"""What the report draws, in a real browser: which runs stand together, in which colours, on which paper."""

from __future__ import annotations

import re
from typing import Any

import pytest
from builders import a_run, as_control, changed, changed_records, finished

pytest.importorskip("test_report_in_browser", reason="no browser", exc_type=pytest.skip.Exception)
from test_report_in_browser import By, Select, browser, drawn, one  # noqa: F401

from audiomarathon.report.page import PageOptions, page
from audiomarathon.report.page_data import PageData
from audiomarathon.results.systems import read_systems


def written(browser: Any, folder: Any) -> Any:  # noqa: F811
    file = folder / "report.html"
    file.write_text(page(PageData(read_systems([folder])), PageOptions(spectrograms=False)), encoding="utf-8")
    browser.get(file.as_uri())
    return drawn(browser)


@pytest.fixture(scope="module")
def opened(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:  # noqa: F811
    """Base and dart on two tasks; dart at another layer, on another device, and silence on one."""
    root = tmp_path_factory.mktemp("layout")
    for task in ("tau", "desed"):
        finished(a_run(root, "base-0", [True] * 8, task=task), score=1.0)
        finished(a_run(root, "streaming_llm-0.95", [True] * 8, task=task), score=1.0)
        for ratio, prefill in ((0.3, 0.8), (0.6, 0.5)):
            wrong = [True] * 6 + [False] * 2
            finished(a_run(root, f"dart-{ratio}-layer2", wrong, task=task, prefill=prefill, layer=2), score=0.75)
    finished(a_run(root, "dart-0.5-layer10", [True] * 8, layer=10, device="other gpu"), score=0.9)
    finished(a_run(root, "random-0.5-layer2", [True] * 8, task="desed"), score=0.5)
    as_control(finished(a_run(root / "silence", "base-0", [False] * 8), score=0.25))
    return written(browser, root)


def scope(page_: Any, name: str) -> None:
    Select(one(page_, "#curves select.scope")).select_by_visible_text(name)
    drawn(page_)


def names(page_: Any, section: str, place: int = 0) -> list[str]:
    """The names at the ends of the lines of a section's picture."""
    chart = page_.find_elements(By.CSS_SELECTOR, f"#{section} .chart")[place]
    return sorted(text.text for text in chart.find_elements(By.CSS_SELECTOR, ".mark-text.role-mark text"))


def settings(page_: Any, section: str, place: int) -> set[str]:
    """The settings that a picture has a mark of."""
    chart = page_.find_elements(By.CSS_SELECTOR, f"#{section} .chart")[place]
    marks = chart.find_elements(By.CSS_SELECTOR, ".mark-symbol path[aria-label]")
    told = [re.search(r"setting: ([^;]+)", mark.get_attribute("aria-label")) for mark in marks]
    return {found[1] for found in told if found}


def row(page_: Any, section: str, name: str) -> list[str]:
    rows = page_.find_elements(By.CSS_SELECTOR, f"#{section} tbody tr")
    return next(one_.text.split() for one_ in rows if one_.text.startswith(f"{name} "))


def test_one_line_a_layer_and_none_for_what_did_not_run(opened: Any) -> None:
    scope(opened, "tau")
    assert names(opened, "curves") == ["base", "dart layer 10", "dart layer 2", "streaming_llm"]
    scope(opened, "desed")
    assert names(opened, "curves") == ["base", "dart layer 2", "random", "streaming_llm"]


def test_the_pareto_front_spans_no_devices(opened: Any) -> None:
    scope(opened, "desed")
    assert "the Pareto front" in one(opened, "#curves").text
    scope(opened, "tau")
    assert "not in the pictures of times: times of other devices (other gpu and gpu)" in one(opened, "#curves").text
    assert "dart-0.5-layer10" in settings(opened, "curves", 0)
    assert "dart-0.5-layer10" not in settings(opened, "curves", 1) | settings(opened, "curves", 2)


def test_dark_paper_has_light_inks_of_the_same_pictures(opened: Any) -> None:
    """The pictures are inverted, hues kept, and never on paper."""
    opened.execute_script("document.documentElement.dataset.theme = 'dark'")
    look = "return getComputedStyle(document.querySelector('.chart svg')).filter"
    assert "invert" in opened.execute_script(look)
    opened.execute_script("document.documentElement.dataset.theme = 'light'")
    assert opened.execute_script(look) == "none"
    opened.execute_script("delete document.documentElement.dataset.theme")


def test_all_pictures_follow_the_scope_and_name_who_is_missing(opened: Any) -> None:
    scope(opened, "overall")
    assert {
        Select(select).first_selected_option.text for select in opened.find_elements(By.CSS_SELECTOR, "select.scope")
    } == {"overall"}
    for section in ("curves", "costs"):
        note = one(opened, f"#{section}").text
        assert "tau, desed" in note or "desed, tau" in note
        assert "score is missing: " in note
        assert "dart-0.5-layer10" in note
    assert "dart-0.5-layer10" not in one(opened, "#costs .chart svg").text


def test_first_token_only_where_times_compare(opened: Any) -> None:
    scope(opened, "tau")
    assert "1.83" in row(opened, "choice", "dart-0.6-layer2")
    assert "dart-0.5-layer10" in one(opened, "#choice .notes").text


def test_controls_are_marked_and_in_no_curve(opened: Any) -> None:
    assert row(opened, "choice", "base-0 [silence]")
    assert "0.250" in row(opened, "scores", "base-0 [silence]")
    assert "control runs" in one(opened, "#choice .notes").text
    scope(opened, "tau")
    assert not [name for name in names(opened, "curves") if "silence" in name]
    choices = [option.text for option in Select(one(opened, "select[name=task]")).options]
    assert "tau [silence]" in choices


def test_a_picture_of_a_single_point_is_not_drawn(opened: Any) -> None:
    """All clips are of one length."""
    assert opened.find_elements(By.CSS_SELECTOR, "#durations") == []


def test_tasks_have_tables_of_their_own(opened: Any) -> None:
    assert "tau: Recall per class" in one(opened, "#tasks").text


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
        "return [of('body').backgroundColor, of('body').color, of('#scores .scroll').overflowX, of('#samples').display,"
        " of('.chart svg').filter]"
    )
    assert seen == ["rgb(255, 255, 255)", "rgb(27, 27, 31)", "visible", "none", "none"]


# Words of headings that stand in two lines: between names' - and _ only may they break.
TORN = """
const torn = [];
for (const cell of document.querySelectorAll(".scroll th")) {
  const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), range = document.createRange();
  while (texts.nextNode()) {
    const text = texts.currentNode;
    for (const word of text.data.matchAll(/[^\\s_-]+[_-]?/g)) {
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      if (range.getClientRects().length > 1) torn.push(word[0]);
    }
  }
  if (cell.scrollWidth > cell.clientWidth + 1) torn.push(`${cell.innerText} is too wide`);
}
return torn;
"""


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_cut(opened: Any, width: int) -> None:
    """Only tables scroll, each inside its own frame; every picture is as wide as its place."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        opened.execute_script("window.dispatchEvent(new Event('resize'))")
        drawn(opened)
        wide = opened.execute_script("return document.documentElement.scrollWidth")
        small = opened.execute_script(
            "return [...document.querySelectorAll('.chart svg')].filter((one) => "
            "one.getBoundingClientRect().width < one.getAttribute('width') - 1).length"
        )
        torn, shadow = (
            opened.execute_script(TORN),
            opened.execute_script(
                "return getComputedStyle(document.querySelector('#scores .scroll')).backgroundAttachment"
            ),
        )
        over = opened.execute_script(
            "return [...document.querySelectorAll('figure')].filter((one) => one.scrollWidth > one.clientWidth + 1)"
            ".map((one) => one.innerText.slice(0, 40))"
        )
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert (wide <= width, over) == (True, [])
    assert (small, torn) == (0, [])
    assert "local" in shadow  # it goes where there is no more to scroll to


@pytest.mark.parametrize("what", ["failed", "untimed", "one sample"])
def test_pages_with_little_on_them(browser: Any, tmp_path: Any, what: str) -> None:  # noqa: F811
    rights = [True] if what == "one sample" else [] if what == "failed" else [True] * 8
    none = {"score": None, "intervals": None, "n": 0, "errors": 8}
    folder = finished(a_run(tmp_path, "base-0", rights), **(none if what == "failed" else {"intervals": None}))
    if what == "untimed":
        changed_records(folder, time=None)
    written(browser, tmp_path)
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert "base-0" in one(browser, "#choice table").text
    assert {"failed": "No score yet", "untimed": "base-0", "one sample": "base-0"}[what] in one(browser, "main").text
    assert browser.find_elements(By.CSS_SELECTOR, ".chart") == []


def test_what_is_not_finished_is_said(browser: Any, tmp_path: Any) -> None:  # noqa: F811
    """Base was summed up after eight of ten samples; dart's summary is of a shorter run."""
    ids = [f"clip{number}" for number in range(10)]
    finished(changed(a_run(tmp_path, "base-0", [True] * 8), samples=ids))
    finished(a_run(tmp_path, "dart-0.5-layer2", [True] * 8), n=3, expected=3)
    notes = one(written(browser, tmp_path), "#choice .notes").text
    assert "8 of 10 samples" in notes
    assert re.search(r"dart-0\.5-layer2: no figures for tau.*not finished .*8 of 8", notes)

"""The report in a real browser: players, filters, keyboard, console errors, charts, themes and printing.

Needs chromium, chromedriver and selenium, and is skipped without them.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import soundfile
from builders import (
    CLASSES,
    HOSTILE,
    a_failed_record,
    a_run,
    a_timed_choice,
    added,
    as_control,
    changed_records,
    finished,
)
from task_folders import a_row

from audiomarathon.report.page import PageOptions, page
from audiomarathon.report.page_data import PageData
from audiomarathon.results.systems import read_systems

pytest.importorskip("selenium", reason="selenium is not installed")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not (CHROMIUM and DRIVER):
    pytest.skip("chromium and chromedriver are not installed", allow_module_level=True)

from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

FAILED = a_failed_record("clip5")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1300,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def opened(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Open a report of two settings. The second has the last two samples wrong, the very last with a hostile reply.
    Base fails on another sample.
    """
    root = tmp_path_factory.mktemp("report")
    finished(added(a_run(root, "base-0", [True] * 8), FAILED), score=1.0)
    folder = finished(a_run(root, "dart-0.5-layer2", [True] * 6 + [False] * 2, prefill=0.5))
    added(folder, a_timed_choice(7, right=False, prefill=0.5, reply=HOSTILE, parsed=None))
    data = root / "data"
    rows = []
    for number in range(8):
        clip = data / "concatenated_resampled" / f"clip{number}.wav"
        clip.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(clip, np.random.default_rng(number).uniform(-0.1, 0.1, 16000), 16000)
        more = {"uniq_id": clip.stem, "scene_label": CLASSES[number % 4]}
        path = f"concatenated_resampled/{clip.name}"
        rows.append(a_row(path, "Where?", ("Airport", "Bus", "Metro", "Park"), "ABCD"[number % 4], **more))
    (data / "acoustic_scene_task_meta.json").write_text(json.dumps(rows))
    html = page(PageData(read_systems([root / "tau"])), PageOptions(data=data))
    (root / "report.html").write_text(html, encoding="utf-8")
    browser.get((root / "report.html").as_uri())
    return drawn(browser)


def drawn(page_: Any) -> Any:
    """Return the page when Vega has drawn its charts."""
    all_there = "return [...document.querySelectorAll('.chart')].every((one) => one.querySelector('svg'))"
    WebDriverWait(page_, 20, poll_frequency=0.05).until(lambda _: page_.execute_script(all_there))
    return page_


def find_one(page_: Any, query: str) -> Any:
    return page_.find_element(By.CSS_SELECTOR, query)


def find_all(page_: Any, query: str) -> list[Any]:
    return page_.find_elements(By.CSS_SELECTOR, query)


def texts(page_: Any, query: str) -> list[str]:
    """The texts of all elements, by one call of the browser."""
    return page_.execute_script("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", query)


def listed(page_: Any) -> list[str]:
    return texts(page_, "#list li span:first-child")


def choose(page_: Any, name: str, text: str) -> None:
    Select(find_one(page_, f"select[name={name}]")).select_by_visible_text(text)


@pytest.fixture(autouse=True)
def all_samples(request: pytest.FixtureRequest) -> None:
    """Clear the filters of the page of samples."""
    if "opened" in request.fixturenames:
        request.getfixturevalue("opened").execute_script(
            "document.activeElement.blur(); const filters = document.querySelector('#filters');"
            "for (const select of filters.querySelectorAll('select'))"
            "  select.value = [...select.options].find((one) => one.text === 'all').value;"
            "filters.querySelector('input[name=text]').value = ''; filters.dispatchEvent(new Event('input'))"
        )


def test_the_browser_console_shows_no_errors_or_warnings(opened: Any) -> None:
    assert [entry for entry in opened.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def test_the_browser_draws_the_tables_and_charts_of_the_report(opened: Any) -> None:
    assert "dart-0.5-layer2" in find_one(opened, "#choice table").text
    assert [len(find_all(opened, f"#{section} .chart svg")) for section in ("choice", "curves")] == [1, 3]
    assert find_all(opened, "#costs .chart svg")
    assert {"dart", "base", "fraction of audio removed"} <= {*texts(opened, "#curves .chart svg text")}


def test_the_first_screen_shows_the_run_description_then_advice_then_chart_and_table(opened: Any) -> None:
    """First the facts of the run, then a recommendation, the chart for it, and the sorted table."""
    assert "8 samples of tau" in find_one(opened, "header").text
    assert "within 1 point of base's" in find_one(opened, ".advice").text
    parts = ("header .facts", ".advice", "#choice .chart", "#choice table")
    places = [find_one(opened, query).rect["y"] for query in parts]
    assert places == sorted(places)
    assert places[2] < 1000
    assert any("KV MB" in text for text in texts(opened, "#choice thead th"))


@pytest.mark.long
def test_the_tooltip_of_a_chart_point_names_its_setting(opened: Any) -> None:
    dot = find_all(opened, "#curves .mark-symbol path[aria-label*='dart']")[0]
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", dot)
    ActionChains(opened).move_to_element(dot).perform()
    tip = WebDriverWait(opened, 5).until(lambda page_: find_one(page_, "#vg-tooltip-element.visible"))
    assert "dart-0.5-layer2" in tip.text


@pytest.mark.parametrize(
    ("show", "expected"), [("all", 8), ("wrong", 2), ("unparsed", 1), ("flipped by pruning", 2), ("failed", 1)]
)
def test_the_show_filter_lists_the_matching_samples(opened: Any, show: str, expected: int) -> None:
    choose(opened, "show", show)
    assert len(listed(opened)) == expected
    assert find_one(opened, "#count").text.startswith(f"{expected} of 8")


def test_the_wrong_filter_lists_no_sample_if_base_answered_all_correctly(opened: Any) -> None:
    choose(opened, "setting", "base-0")
    choose(opened, "show", "wrong")
    assert listed(opened) == []
    assert "No sample matches" in find_one(opened, "#detail").text


def test_a_failed_sample_in_the_sample_list_shows_its_error(opened: Any) -> None:
    choose(opened, "show", "failed")
    assert find_one(opened, "#list li").text == "clip5\ntau · 1 of 1 right · 1 failed"
    assert FAILED["error"] in find_one(opened, "#detail table").text


def test_searching_for_a_sample_id_on_the_report_page_lists_only_that_sample(opened: Any) -> None:
    find_one(opened, "input[name=text]").send_keys("clip3")
    assert listed(opened) == ["clip3"]


@pytest.mark.long
def test_keyboard_keys_move_through_the_sample_list(opened: Any) -> None:
    body = find_one(opened, "body")
    for key in "jjk":
        body.send_keys(key)
    assert find_one(opened, "#list [aria-selected=true] span").text == "clip7"  # settings disagree on it: worst first
    for key, clip in ((None, "clip7"), (Keys.END, "clip4"), (Keys.HOME, "clip6")):
        if key:
            find_one(opened, "#list").send_keys(key)
        assert clip in find_one(opened, "#detail h3").text
    body.send_keys("/")
    assert opened.switch_to.active_element.get_attribute("name") == "text"
    opened.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert opened.switch_to.active_element.tag_name == "body"


def test_buttons_move_through_the_sample_list(opened: Any) -> None:
    first = find_one(opened, "#detail h3").text
    find_one(opened, "#next").click()
    assert find_one(opened, "#detail h3").text != first
    find_one(opened, "#previous").click()
    assert find_one(opened, "#detail h3").text == first


@pytest.mark.long
def test_a_missing_clip_file_is_reported_with_its_path(opened: Any) -> None:
    """As if the page had been moved to another machine; the path is that of the shown sample."""
    opened.execute_script("detail({ ...samples[0], audio: ['file:///nowhere/a%20clip.wav'] })")
    told = WebDriverWait(opened, 5, poll_frequency=0.05).until(lambda page_: find_one(page_, "#detail .odd"))
    assert "on the machine that made this page (/nowhere/a clip.wav)" in told.text
    assert "--audio embed" in told.text
    assert find_all(opened, "#detail audio") == []


@pytest.mark.long
def test_a_sample_shows_player_spectrogram_and_prompt(opened: Any) -> None:
    player = find_one(opened, "#detail audio")
    seconds = opened.execute_async_script(
        "const [player, done] = arguments; player.onloadedmetadata = () => done(player.duration);"
        "player.onerror = () => done(null); player.preload = 'metadata'; player.load();",
        player,
    )
    assert seconds == pytest.approx(1.0, abs=0.05)
    assert find_one(opened, "#detail canvas").get_attribute("width") == "160"
    assert "Where?" in find_one(opened, "#detail pre").text


def test_markup_in_a_reply_is_shown_as_text(opened: Any) -> None:
    choose(opened, "show", "unparsed")
    assert "<img src=x onerror=alert(1)>" in find_one(opened, "#detail").text
    assert find_all(opened, "#detail img") == []


@pytest.mark.long
def test_the_theme_button_switches_dark_and_light(opened: Any) -> None:
    def paper() -> str:
        return str(opened.execute_script("return getComputedStyle(document.body).backgroundColor"))

    before = paper()
    find_one(opened, "#theme").click()
    assert paper() != before
    find_one(opened, "#theme").click()
    assert paper() == before


def test_the_score_table_can_switch_to_differences_from_base(opened: Any) -> None:
    def shown() -> list[str]:
        return [part.text for part in find_all(opened, "#scores .scroll") if part.is_displayed()]

    before = shown()
    find_one(opened, "#scores .toggle").click()
    (differences,) = shown()
    assert before != [differences]
    assert "-0." in differences
    find_one(opened, "#scores .toggle").click()
    assert shown() == before


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa_in_both_themes(opened: Any, theme: str) -> None:
    """WCAG AA: at least 4.5 to 1 for text, in either theme."""
    opened.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
    pairs = opened.execute_script(
        "const s = getComputedStyle(document.documentElement);"
        "return ['--ink','--soft','--link','--good','--bad','--warn'].flatMap(c => ['--paper','--panel'].map(b =>"
        " [c, s.getPropertyValue(c).trim(), s.getPropertyValue(b).trim()]))"
    )
    opened.execute_script("delete document.documentElement.dataset.theme")
    for name, *colours in pairs:
        low, high = sorted(map(luminance, colours))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (name, colours)


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


# --- grouping of runs, colours, themes and printing -------------------------------------------------------------------


def written(browser: Any, folder: Any) -> Any:
    file = folder / "report.html"
    file.write_text(page(PageData(read_systems([folder])), PageOptions(spectrograms=False)), encoding="utf-8")
    browser.get_log("browser")  # drop messages of the previous page
    browser.get(file.as_uri())
    return drawn(browser)


@pytest.fixture(scope="module")
def settings_page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Open a report of base and dart on two tasks, with dart at another layer and device, and silence on one task."""
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
    Select(find_one(page_, "#curves select.scope")).select_by_visible_text(name)
    drawn(page_)


def test_charts_have_one_line_per_pruning_layer_and_none_for_missing_settings(settings_page: Any) -> None:
    for task, lines in (("tau", ["dart layer 10", "dart layer 2"]), ("desed", ["dart layer 2", "random"])):
        scope(settings_page, task)
        ends = settings_page.execute_script(
            "return [...document.querySelector('#curves .chart').querySelectorAll('.mark-text.role-mark text')]"
            ".map((text) => text.textContent)"
        )
        assert sorted(ends) == [*lines, "streaming_llm = base"]


def test_the_pareto_front_leaves_out_times_of_other_devices(settings_page: Any) -> None:
    left_out = "not in the pictures of times: times of other devices (other gpu and gpu)"
    for task, words in (("desed", "the Pareto front"), ("tau", left_out)):
        scope(settings_page, task)
        assert words in find_one(settings_page, "#curves").text
    drawn_in = settings_page.execute_script(
        "return [...document.querySelectorAll('#curves .chart')].map((chart) =>"
        " !!chart.querySelector('.mark-symbol path[aria-label*=\"setting: dart-0.5-layer10\"]'))"
    )
    assert drawn_in == [True, False, False]


def test_charts_are_inverted_only_in_the_dark_theme(settings_page: Any) -> None:
    """Charts are inverted with their hues kept, and never in print."""
    settings_page.execute_script("document.documentElement.dataset.theme = 'dark'")
    look = "return getComputedStyle(document.querySelector('.chart svg')).filter"
    assert "invert" in settings_page.execute_script(look)
    settings_page.execute_script("document.documentElement.dataset.theme = 'light'")
    assert settings_page.execute_script(look) == "none"
    settings_page.execute_script("delete document.documentElement.dataset.theme")


def test_all_charts_show_the_chosen_task_and_name_the_settings_missing_from_them(settings_page: Any) -> None:
    scope(settings_page, "overall")
    assert {*texts(settings_page, "select.scope option:checked")} == {"overall"}
    for section in ("curves", "costs"):
        note = find_one(settings_page, f"#{section}").text
        assert re.search("tau, desed|desed, tau", note)
        assert "score is missing: " in note
        assert "dart-0.5-layer10" in note
    assert "dart-0.5-layer10" not in find_one(settings_page, "#costs .chart svg").text


def test_a_chart_with_a_single_point_is_not_drawn(settings_page: Any) -> None:
    """All clips are of one length."""
    assert find_all(settings_page, "#durations") == []


def test_the_printed_page_is_white_and_not_cut_even_in_the_dark_theme(settings_page: Any) -> None:
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    settings_page.execute_script("document.documentElement.dataset.theme = 'dark'")
    settings_page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    seen = settings_page.execute_script(
        "const of = (query) => getComputedStyle(document.querySelector(query));"
        "return [of('body').backgroundColor, of('body').color, of('#scores .scroll').overflowX, of('#samples').display,"
        " of('.chart svg').filter]"
    )
    settings_page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    settings_page.execute_script("delete document.documentElement.dataset.theme")
    assert seen == ["rgb(255, 255, 255)", "rgb(27, 27, 31)", "visible", "none", "none"]


# Words of headings that break into two lines; they may break only after - and _ in names.
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


@contextmanager
def screen(browser: Any, width: int, height: int = 900) -> Iterator[None]:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("width", [390, 1280])
def test_no_table_or_chart_is_cut_at_any_screen_width(settings_page: Any, width: int) -> None:
    """Only tables scroll, each inside its frame; every chart is as wide as its space."""
    run = settings_page.execute_script
    with screen(settings_page, width):
        run("window.dispatchEvent(new Event('resize'))")
        drawn(settings_page)
        wide, torn = run("return document.documentElement.scrollWidth"), run(TORN)
        small = run(
            "return [...document.querySelectorAll('.chart svg')].filter((one) => "
            "one.getBoundingClientRect().width < one.getAttribute('width') - 1).length"
        )
        shadow = run("return getComputedStyle(document.querySelector('#scores .scroll')).backgroundAttachment")
        over = run(
            "return [...document.querySelectorAll('figure')].filter((one) => one.scrollWidth > one.clientWidth + 1)"
            ".map((one) => one.innerText.slice(0, 40))"
        )
    assert wide <= width
    assert (over, small, torn) == ([], 0, [])
    assert "local" in shadow  # it disappears at the end of the scroll range


def test_two_tasks_take_under_5000_pixels_on_a_phone(settings_page: Any) -> None:
    with screen(settings_page, 390, 844):
        settings_page.refresh()
        height = drawn(settings_page).execute_script("return document.documentElement.scrollHeight")
        find_one(settings_page, "nav a[href='#curves']").click()
        seen = find_one(drawn(settings_page), "#curves .chart svg").size["width"]
    assert height < 5000
    assert seen > 250  # a link opens its section, whose charts fill the width


@pytest.mark.parametrize(
    ("samples", "summary", "records", "words"),
    [
        (8, {"score": None, "n": 0, "errors": 8}, {"time": None, "reply": None, "error": "no memory"}, "No score yet"),
        (8, {}, {"time": None}, "base-0"),
        (1, {}, {}, "base-0"),
    ],
    ids=["failed", "untimed", "one sample"],
)
def test_a_report_of_failed_or_untimed_samples_is_drawn_without_browser_errors(
    browser: Any, tmp_path: Any, samples: int, summary: dict[str, Any], records: dict[str, Any], words: str
) -> None:
    folder = finished(a_run(tmp_path, "base-0", [True] * samples), intervals=None, **summary)
    changed_records(folder, **records)
    written(browser, tmp_path)
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert "base-0" in find_one(browser, "#choice table").text
    assert words in find_one(browser, "main").text
    assert find_all(browser, ".chart") == []

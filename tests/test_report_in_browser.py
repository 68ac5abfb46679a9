"""The report in a real browser: players, filters, keyboard, no console error.

Wants chromium, chromedriver and selenium, and is skipped where they are not.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import soundfile
from builders import HOSTILE, a_failed_record, a_run, a_timed_choice, added, finished

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
    """A report of two settings: the second loses the last two samples, and the very last reply is hostile; base fails
    on one of the others."""
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
        choices = dict(
            zip(("choice_a", "choice_b", "choice_c", "choice_d"), ("Airport", "Bus", "Metro", "Park"), strict=True)
        )
        rows.append(
            {"path": f"concatenated_resampled/clip{number}.wav", "uniq_id": f"clip{number}", "question": "Where?"}
            | {
                "scene_label": ("airport", "bus", "metro", "park")[number % 4],
                "answer_gt": "ABCD"[number % 4],
                **choices,
            }
        )
    (data / "acoustic_scene_task_meta.json").write_text(json.dumps(rows))
    html = page(PageData(read_systems([root / "tau"])), PageOptions(data=data))
    (root / "report.html").write_text(html, encoding="utf-8")
    browser.get((root / "report.html").as_uri())
    return drawn(browser)


def drawn(page_: Any) -> Any:
    """The page, once Vega has drawn its pictures."""
    all_there = "return [...document.querySelectorAll('.chart')].every((one) => one.querySelector('svg'))"
    WebDriverWait(page_, 20, poll_frequency=0.05).until(lambda _: page_.execute_script(all_there))
    return page_


def one(page_: Any, query: str) -> Any:
    return page_.find_element(By.CSS_SELECTOR, query)


def listed(page_: Any) -> list[str]:
    return [item.text for item in page_.find_elements(By.CSS_SELECTOR, "#list li span:first-child")]


def choose(page_: Any, name: str, text: str) -> None:
    Select(one(page_, f"select[name={name}]")).select_by_visible_text(text)


@pytest.fixture(autouse=True)
def all_samples(opened: Any) -> None:
    for name in ("task", "setting", "show"):
        choose(opened, name, "all")
    one(opened, "input[name=text]").clear()
    opened.execute_script(
        "document.activeElement.blur(); document.querySelector('#filters').dispatchEvent(new Event('input'))"
    )


def test_no_error_in_the_console(opened: Any) -> None:
    assert [entry for entry in opened.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def test_tables_and_charts_are_drawn(opened: Any) -> None:
    assert "dart-0.5-layer2" in one(opened, "#choice table").text
    assert len(opened.find_elements(By.CSS_SELECTOR, "#choice .chart svg")) == 1
    assert len(opened.find_elements(By.CSS_SELECTOR, "#curves .chart svg")) == 3
    assert len(opened.find_elements(By.CSS_SELECTOR, "#costs .chart svg")) >= 1
    names = [text.text for text in opened.find_elements(By.CSS_SELECTOR, "#curves .chart svg text")]
    assert {"dart", "base", "fraction of audio removed"} <= set(names)


def test_the_first_screen_says_what_to_choose(opened: Any) -> None:
    """Model, machine, date and samples; a recommendation; the picture behind it; the table sorted by it."""
    assert "8 samples of tau" in one(opened, "header").text
    advice = one(opened, ".advice")
    assert "within 1 point of base's" in advice.text
    places = [one(opened, query).rect["y"] for query in ("header .facts", ".advice", "#choice .chart", "#choice table")]
    assert places == sorted(places)
    assert places[2] < 1000
    heads = [cell.text for cell in opened.find_elements(By.CSS_SELECTOR, "#choice thead th")]
    assert any("KV MB" in head for head in heads)


@pytest.mark.long
def test_a_point_says_what_it_is(opened: Any) -> None:
    """Vega's tooltip names setting and figures, as text."""
    dot = opened.find_elements(By.CSS_SELECTOR, "#curves .mark-symbol path[aria-label*='dart']")[0]
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", dot)
    ActionChains(opened).move_to_element(dot).perform()
    tip = WebDriverWait(opened, 5).until(
        lambda page_: page_.find_element(By.CSS_SELECTOR, "#vg-tooltip-element.visible")
    )
    assert "dart-0.5-layer2" in tip.text


@pytest.mark.parametrize(
    ("show", "expected"), [("all", 8), ("wrong", 2), ("unparsed", 1), ("flipped by pruning", 2), ("failed", 1)]
)
def test_filters(opened: Any, show: str, expected: int) -> None:
    choose(opened, "show", show)
    assert len(listed(opened)) == expected
    assert one(opened, "#count").text.startswith(f"{expected} of 8")


def test_wrong_under_base_is_nothing(opened: Any) -> None:
    choose(opened, "setting", "base-0")
    choose(opened, "show", "wrong")
    assert listed(opened) == []
    assert "No sample matches" in one(opened, "#detail").text


def test_a_failed_sample_says_why(opened: Any) -> None:
    choose(opened, "show", "failed")
    assert one(opened, "#list li").text == "clip5\ntau · 1 of 1 right · 1 failed"
    assert FAILED["error"] in one(opened, "#detail table").text


def test_search(opened: Any) -> None:
    one(opened, "input[name=text]").send_keys("clip3")
    assert listed(opened) == ["clip3"]


@pytest.mark.long
def test_keyboard_walks_the_list(opened: Any) -> None:
    body = one(opened, "body")
    body.send_keys("j")
    body.send_keys("j")
    body.send_keys("k")
    assert one(opened, "#list [aria-selected=true] span").text == "clip7"  # settings disagree on it: worst first
    assert "clip7" in one(opened, "#detail h3").text
    one(opened, "#list").send_keys(Keys.END)
    assert "clip4" in one(opened, "#detail h3").text
    one(opened, "#list").send_keys(Keys.HOME)
    assert "clip6" in one(opened, "#detail h3").text
    body.send_keys("/")
    assert opened.switch_to.active_element.get_attribute("name") == "text"
    opened.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert opened.switch_to.active_element.tag_name == "body"


def test_buttons_walk_the_list(opened: Any) -> None:
    first = one(opened, "#detail h3").text
    one(opened, "#next").click()
    assert one(opened, "#detail h3").text != first
    one(opened, "#previous").click()
    assert one(opened, "#detail h3").text == first


def test_keys_are_told_only_where_there_are_some(opened: Any) -> None:
    touch = opened.execute_script("return matchMedia('(hover: none)').matches")  # a machine without a mouse, too
    assert one(opened, ".keys").is_displayed() != touch


@pytest.mark.long
def test_a_clip_that_is_not_there_is_told(opened: Any) -> None:
    """As on a page that was moved to another machine; the address is of the sample that is shown."""
    opened.execute_script("detail({ ...samples[0], audio: ['file:///nowhere/a%20clip.wav'] })")
    told = WebDriverWait(opened, 5, poll_frequency=0.05).until(lambda page_: one(page_, "#detail .odd"))
    assert "on the machine that made this page (/nowhere/a clip.wav)" in told.text
    assert "--audio embed" in told.text
    assert opened.find_elements(By.CSS_SELECTOR, "#detail audio") == []


@pytest.mark.long
def test_player_picture_and_prompt_of_a_sample(opened: Any) -> None:
    player = one(opened, "#detail audio")
    seconds = opened.execute_async_script(
        "const [player, done] = arguments; player.onloadedmetadata = () => done(player.duration);"
        "player.onerror = () => done(null); player.preload = 'metadata'; player.load();",
        player,
    )
    assert seconds == pytest.approx(1.0, abs=0.05)
    assert one(opened, "#detail canvas").get_attribute("width") == "160"
    assert "Where?" in one(opened, "#detail pre").text


def test_a_hostile_reply_is_text(opened: Any) -> None:
    choose(opened, "show", "unparsed")
    assert "<img src=x onerror=alert(1)>" in one(opened, "#detail").text
    assert opened.find_elements(By.CSS_SELECTOR, "#detail img") == []


@pytest.mark.long
def test_dark_and_light(opened: Any) -> None:
    def paper() -> str:
        return str(opened.execute_script("return getComputedStyle(document.body).backgroundColor"))

    before = paper()
    one(opened, "#theme").click()
    assert paper() != before
    one(opened, "#theme").click()
    assert paper() == before


def test_difference_from_base(opened: Any) -> None:
    def shown() -> list[str]:
        return [part.text for part in opened.find_elements(By.CSS_SELECTOR, "#scores .scroll") if part.is_displayed()]

    before = shown()
    one(opened, "#scores .toggle").click()
    (differences,) = shown()
    assert before != [differences]
    assert "-0." in differences
    one(opened, "#scores .toggle").click()
    assert shown() == before


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast(opened: Any, theme: str) -> None:
    """WCAG AA: at least 4.5 to 1 for text, in either theme."""
    opened.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
    pairs = opened.execute_script(
        "const s = getComputedStyle(document.documentElement);"
        "return ['--ink','--soft','--link','--good','--bad','--warn'].flatMap(c => ['--paper','--panel'].map(b =>"
        " [c, s.getPropertyValue(c).trim(), s.getPropertyValue(b).trim()]))"
    )
    opened.execute_script("delete document.documentElement.dataset.theme")
    for name, ink, paper in pairs:
        assert _contrast(ink, paper) >= 4.5, f"{name} {ink} on {paper}"


def _contrast(one_: str, other: str) -> float:
    def luminance(colour: str) -> float:
        digits = colour.lstrip("#")
        digits = "".join(c * 2 for c in digits) if len(digits) == 3 else digits
        parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one_), luminance(other)))
    return (high + 0.05) / (low + 0.05)

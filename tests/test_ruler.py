"""The ruler: place and loudness of needles, balanced answers, reproducible files, refusals, and metrics."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from builders import a_record, finished, typed, write_run
from conftest import call, succeed

from audiomarathon.audio.decode import decode
from audiomarathon.benchmarks import get_task
from audiomarathon.errors import AudioMarathonError, SettingsError
from audiomarathon.report.page_data import PageData
from audiomarathon.report.pictures import plot_runs
from audiomarathon.report.render import markdown
from audiomarathon.report.sections import sections
from audiomarathon.results.systems import read_systems
from audiomarathon.wings.ruler import build, sounds
from audiomarathon.wings.ruler.figures import kept_of_needles
from audiomarathon.wings.ruler.grid import BELL, QUESTIONS, RATE, Grid, Item, items

WORDS = [f"word{number}" for number in range(8)]
SMALL = Grid(minutes=(0.18, 0.25), places=(0.25, 1), needles=(2,), snr=(-10, 20), items=4, gap=0.5)


def tone(seconds: float, hertz: float, level: float = 0.1) -> np.ndarray:
    return level * np.sin(2 * np.pi * hertz * np.arange(round(seconds * RATE)) / RATE)


def recordings(folder: Path, *names: str, seconds: float = 0.3) -> Path:
    """Write a recording of noise for each name, each with its own loudness."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names, 1):
        noise = np.random.default_rng(number).standard_normal(round(seconds * RATE))
        soundfile.write(folder / f"{name}.wav", 0.02 * number * noise, RATE)
    return folder


def rows_of(root: Path, question: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((root / "ruler" / f"ruler_{question}.json").read_text())
    return rows


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ruler of synthetic sounds."""
    place = tmp_path_factory.mktemp("ruler")
    build.write(build.Ruler(SMALL, sounds.voice(), sounds.synthetic_backgrounds(4, 1)), place)
    return place


def asked_of(ruler_items: list[Item], question: str) -> list[tuple[Item, Any]]:
    return [(item, asked) for item in ruler_items for asked in item.asked if asked.question == question]


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("needles", [2, 3, 5])
def test_correct_option_letters_and_answers_of_ruler_questions_are_evenly_distributed(
    question: str, needles: int
) -> None:
    pairs = asked_of(items(Grid(needles=(needles,), items=16), WORDS), question)
    letters = Counter(asked.letter for _, asked in pairs)
    assert set(letters.values()) == {4}
    answers = Counter(asked.options["ABCD".index(asked.letter)] for _, asked in pairs)
    assert max(answers.values()) - min(answers.values()) <= 1
    assert len(answers) == (4 if question == "count" else 8)


def test_only_the_correct_option_of_a_ruler_question_matches_the_sounds_of_its_clip() -> None:
    for item, asked in asked_of(ruler_items := items(Grid(needles=(1, 3), items=8), WORDS), "word"):
        said = [option for option in asked.options if option in item.sounds]
        assert said == [asked.options["ABCD".index(asked.letter)]]
    for item, asked in asked_of(ruler_items, "order"):
        heard = [sound for sound in item.sounds if sound in asked.options]
        assert heard[0] == asked.options["ABCD".index(asked.letter)]
    for item, asked in asked_of(ruler_items, "after"):
        after = item.sounds[item.sounds.index(BELL) + 1]
        assert after == asked.options["ABCD".index(asked.letter)]
    for item, asked in asked_of(ruler_items, "count"):
        assert set(item.sounds) == {BELL}
        assert asked.options["ABCD".index(asked.letter)] == str(len(item.sounds))


def test_the_needles_marked_as_deciding_are_those_the_question_asks_about() -> None:
    ruler_items = items(Grid(needles=(3,), items=8), WORDS)
    for item, asked in asked_of(ruler_items, "after"):
        assert item.sounds[asked.deciding[0]] == BELL
    for item, asked in asked_of(ruler_items, "order"):
        assert {item.sounds[place] for place in asked.deciding} == set(asked.options) & set(item.sounds)


def test_a_ruler_made_with_fewer_question_kinds_keeps_the_remaining_questions_unchanged() -> None:
    whole = items(Grid(items=4), WORDS)
    part = items(Grid(items=4, questions=("after",)), WORDS)
    assert [asked for _, asked in asked_of(part, "after")] == [asked for _, asked in asked_of(whole, "after")]
    assert {question.question for item in part for question in item.asked} == {"after"}


def test_ruler_clips_with_one_word_have_no_question_about_word_order() -> None:
    assert not asked_of(items(Grid(needles=(1,), items=4), WORDS), "order")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"minutes": (0,)}, "--minutes '0': not allowed; allowed: above 0 and up to 60"),
        ({"minutes": (float("nan"),)}, "--minutes 'nan'"),
        ({"minutes": ()}, "--minutes '': not allowed"),
        ({"minutes": (5, 5)}, "--minutes '5, named twice'"),
        ({"places": (1.5,)}, "--places '1.5'"),
        ({"needles": (0,)}, "--needles '0'"),
        ({"snr": (99,)}, "--snr '99'"),
        ({"gap": -1}, "--gap '-1'"),
        ({"items": 1_000_000}, "--items '1000000'"),
        ({"items": 6}, "--items '6': not allowed; allowed: multiples of 4"),
        ({"questions": ("wrod",)}, "--questions 'wrod': not allowed; allowed: word, count"),
        ({"questions": ()}, "--questions ''"),
        ({"questions": ("order",), "needles": (1,)}, "order: needs --needles 2"),
    ],
)
def test_an_invalid_ruler_grid_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Grid(**given)


def test_a_ruler_with_too_few_spoken_words_for_its_needles_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"--needles 6: too many for 8 words.*up to 5"):
        items(Grid(needles=(6,)), WORDS)
    with pytest.raises(SettingsError, match="3 words to say, which is too few; needed: 4"):
        items(Grid(needles=(1,)), WORDS[:3])
    assert items(Grid(needles=(6,), questions=("count",)), WORDS)


def test_a_clip_differs_from_its_background_only_where_its_needles_are_stated(root: Path) -> None:
    folder = root / "ruler"
    for row in rows_of(root, "word"):
        clip, alone = decode(folder / row["path"], RATE), decode(folder / row["background_alone"], RATE)
        changed = np.flatnonzero(np.abs(clip - alone) > 2**-14) / RATE
        end = row["event_onset"] + row["event_seconds"]
        assert len(clip) == len(alone) == round(row["minutes"] * 60 * RATE)
        assert changed.min() == pytest.approx(row["event_onset"], abs=0.05)
        assert changed.max() == pytest.approx(end, abs=0.5)  # a bell at the end rings out
        free = row["minutes"] * 60 - row["event_seconds"]
        assert row["event_onset"] == pytest.approx(row["place"] * free, abs=1e-3)


def test_each_needle_has_the_snr_stated_in_its_row(root: Path) -> None:
    for row in rows_of(root, "count"):
        clip, alone = (decode(root / "ruler" / row[name], RATE) for name in ("path", "background_alone"))
        for start, length in row["needles"]:
            begin = round((row["event_onset"] + start) * RATE)
            needle = (clip - alone)[begin : begin + round(length * RATE)]
            snr_db = 20 * np.log10(sounds.level(needle) / sounds.level(alone))
            assert snr_db == pytest.approx(row["snr_db"], abs=0.1)


@pytest.mark.parametrize(("question", "deciding"), [("word", 1), ("after", 2)])
def test_a_row_lists_only_the_needles_that_decide_its_question(root: Path, question: str, deciding: int) -> None:
    """Each clip has two words and a bell."""
    assert {len(row["needles"]) for row in rows_of(root, question)} == {deciding}


def test_a_loud_needle_is_not_distorted_by_clipping(tmp_path: Path) -> None:
    loud = replace(SMALL, snr=(40,), minutes=(0.2,), questions=("count",))
    build.write(build.Ruler(loud, sounds.voice(), sounds.synthetic_backgrounds(2, 1)), tmp_path)
    peaks = [np.abs(decode(clip, RATE)).max() for clip in (tmp_path / "ruler" / "clips").iterdir()]
    assert 0.5 < max(peaks) < 0.995


def test_a_ruler_made_twice_with_one_seed_has_the_same_bytes(root: Path, tmp_path: Path) -> None:
    part = replace(SMALL, places=(1,))
    build.write(build.Ruler(part, sounds.voice(), sounds.synthetic_backgrounds(4, 1)), tmp_path)
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*.flac")]
    assert len(files) > 30
    assert all((root / path).read_bytes() == (tmp_path / path).read_bytes() for path in files)


def test_a_ruler_made_again_keeps_existing_clips_and_makes_only_missing_ones(root: Path) -> None:
    more = replace(SMALL, places=(0.25, 0.5, 1), questions=("after",))
    ruler = build.Ruler(more, sounds.voice(), sounds.synthetic_backgrounds(4, 1))
    before = rows_of(root, "word")
    assert build.write(ruler, root) == 4 * 2 * 2  # items, lengths and loudnesses at the new place
    assert build.write(ruler, root) == 0
    assert rows_of(root, "word") == before
    build.write(build.Ruler(SMALL, sounds.voice(), sounds.synthetic_backgrounds(4, 1)), root)


def test_clip_file_names_differ_if_seed_or_gap_or_background_differs() -> None:
    ruler = build.Ruler(SMALL, sounds.voice(), sounds.synthetic_backgrounds(4, 1))
    others = [
        build.Ruler(replace(SMALL, seed=7), sounds.voice(), ruler.backgrounds),
        build.Ruler(replace(SMALL, gap=0.4), sounds.voice(), ruler.backgrounds),
        build.Ruler(SMALL, sounds.voice(), sounds.synthetic_backgrounds(4, 2)),
    ]
    names = {ruler.name(ruler.backgrounds[0], clip) for clip in ruler.clips(0)}
    assert len(names) == len([*ruler.clips(0)])
    for other in others:
        assert not names & {other.name(other.backgrounds[0], clip) for clip in other.clips(0) if clip.item}


def test_clip_file_names_depend_on_the_gain_of_the_loudest_needle() -> None:
    """Other needles may be louder, and all clips of a background have one gain."""
    quieter, louder = (build.Ruler(SMALL, sounds.voice(), sounds.synthetic_backgrounds(1, 1)) for _ in range(2))
    vars(louder)["peak"] = quieter.peak + 1
    assert not {quieter.name(quieter.backgrounds[0], clip) for clip in quieter.clips(0)} & {
        louder.name(quieter.backgrounds[0], clip) for clip in quieter.clips(0)
    }


def test_needles_longer_than_the_clip_are_refused() -> None:
    bells = replace(SMALL, gap=3600, needles=(99,), questions=("count",))  # more than memory holds
    for grid, said in ((replace(SMALL, gap=4), r"2: .* last \d+\.\d s, longer"), (bells, "99: .*longer")):
        with pytest.raises(SettingsError, match=f"--needles {said} than --minutes 0.18"):
            build.Ruler(grid, sounds.voice(), sounds.synthetic_backgrounds(2, 1))


def test_words_and_backgrounds_may_come_from_recordings_of_the_user(tmp_path: Path) -> None:
    words = recordings(tmp_path / "words", "red_light", "green", "blue", "grey", "pink")
    around = recordings(tmp_path / "around", *"abcde", seconds=2)
    given = ["--minutes", "0.2", "--places", "0.5", "--needles", "2", "--items", "4", "--gap", "0.5"]
    succeed("ruler", tmp_path / "out", *given, "--words", words, "--background", around)
    rows = rows_of(tmp_path / "out", "order")
    assert any("red light" in row["heard"] for row in rows)
    assert len({row["background"] for row in rows}) == 4
    task = get_task("ruler/order")
    loaded = task.load(task.find(tmp_path / "out"))
    assert (len(loaded.samples), loaded.bad_rows) == (4, ())
    assert {sample.cluster for sample in loaded.samples} == {row["background"] for row in rows}


def test_each_recording_is_used_in_only_one_background(tmp_path: Path) -> None:
    folder = recordings(tmp_path, *"abcdefg", seconds=1)
    backgrounds = sounds.recorded_backgrounds(folder, 3, 0, 60 * RATE)
    whole = [background.make(4 * RATE) for background in backgrounds]
    assert [sounds.level(samples) for samples in whole] == pytest.approx([1] * 3, abs=0.02)
    assert np.array_equal(backgrounds[0].make(RATE), whole[0][:RATE])
    assert len({background.mark for background in backgrounds}) == 3


def refused(place: Path, *arguments: object) -> str:
    """Run `ruler` with arguments that it must refuse in one line, before it writes anything."""
    code, output = call("ruler", place / "out", *arguments)
    assert (code, output.count("error: "), "Traceback" in output) == (2, 1, False), output
    assert not (place / "out").exists()
    return output


@pytest.mark.parametrize(
    ("flag", "names", "said"),
    [
        ("--background", (), "holds no recordings"),
        ("--background", ("a",), "holds 1 recording; allowed: 2 or more"),
        ("--words", ("e", "f", "g"), "3 words to say"),
        ("--words", ("e", "f", "E", "g"), "says '[eE]', which is taken"),
        ("--words", ("its", "it's", "e", "f"), "says .*, which is taken"),
        ("--words", ("e", "f", "_", "g"), "_.wav: says ''; allowed: a word"),
        ("--words", ("e", "f", "!", "g"), "says '!'; allowed: a word"),
        ("--words", ("e", "f", "B", "g"), "says 'B'; allowed: .* none that is the letter of an option"),
        ("--words", ("e", "f", "bell", "g"), "says 'bell', which is taken"),
    ],
)
def test_a_folder_of_unusable_recordings_is_refused_before_anything_is_written(
    tmp_path: Path, flag: str, names: tuple[str, ...], said: str
) -> None:
    assert re.search(said, refused(tmp_path, flag, recordings(tmp_path / "in", *names)))


@pytest.mark.parametrize("damage", ["unreadable", "silent", "absent"])
@pytest.mark.parametrize("flag", ["--background", "--words", "--bell"])
def test_a_bad_recording_is_named_before_anything_is_written(tmp_path: Path, flag: str, damage: str) -> None:
    folder = recordings(tmp_path / "in", *"efghij")
    file = folder / "h.wav"
    if damage == "silent":
        soundfile.write(file, np.zeros(RATE), RATE)
    elif damage == "unreadable":
        file.write_bytes(b"junk")
    named = file if flag == "--bell" else folder
    named = named.with_name("nowhere") if damage == "absent" else named
    assert ("nowhere" if damage == "absent" else "h.wav") in refused(tmp_path, "--minutes", "0.5", flag, named)


def test_a_background_that_begins_in_silence_is_named_before_anything_is_written(tmp_path: Path) -> None:
    folder = recordings(tmp_path / "in", "a", "b")
    soundfile.write(folder / "a.wav", np.concatenate([np.zeros(15 * RATE), tone(1, 440)]), RATE)
    said = refused(tmp_path, "--minutes", "0.25", "--needles", "1", "--background", folder)
    assert "begins with digital silence" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--minutes", "five"), "--minutes five: not a number"),
        (("--places", "0,2"), "--places '2': not allowed"),
        (("--minutes", "0.05"), "longer than --minutes 0.05"),
    ],
)
def test_an_invalid_option_of_ruler_gives_a_one_line_error_and_writes_nothing(
    tmp_path: Path, given: tuple[str, ...], said: str
) -> None:
    assert said in refused(tmp_path, *given)


def test_a_dry_run_of_ruler_writes_nothing(tmp_path: Path) -> None:
    output = succeed("ruler", tmp_path / "out", "--minutes", "60", "--dry-run")
    assert "clips, " in output
    assert not (tmp_path / "out").exists()


def test_the_no_needle_control_is_the_background_alone_of_the_same_length(root: Path, tmp_path: Path) -> None:
    succeed("data", "controls", "ruler/word", "--control", "no-needle", "--data", root, "-o", tmp_path)
    task = get_task("ruler/word")
    loaded = task.load(task.find(tmp_path / "no-needle"))
    rows = {row["uniq_id"]: row for row in rows_of(root, "word")}
    for sample in loaded.samples:
        alone = decode(root / "ruler" / rows[sample.id]["background_alone"], RATE)
        assert np.array_equal(decode(sample.clips[0], RATE), alone)
        assert "needles" not in task.reference(sample)


def test_a_shortened_control_clip_holds_the_needles_at_the_times_of_its_reference(root: Path, tmp_path: Path) -> None:
    succeed("data", "controls", "ruler/after", "--durations", "9", "--data", root, "-o", tmp_path)
    task = get_task("ruler/after")
    loaded = task.load(task.find(tmp_path / "9s"))
    rows = {row["uniq_id"]: row for row in rows_of(root, "after")}
    sample = next(candidate for candidate in loaded.samples if candidate.id.startswith("0.25min-at1-n2-20"))
    row = rows[sample.id]
    begin = round((row["event_onset"] + row["needles"][1][0]) * RATE)
    start, end = task.reference(sample)["needles"][1]
    heard = decode(sample.clips[0], RATE)[round(start * RATE) : round(end * RATE)]
    assert np.allclose(heard, decode(root / "ruler" / row["path"], RATE)[begin : begin + len(heard)], atol=1e-4)


def kept(spans: list[tuple[float, float]], tokens: int = 100) -> str:
    """Return the bits of a clip of 100 s whose tokens in these spans were kept."""
    flags = [any(start <= token < end for start, end in spans) for token in range(tokens)]
    return base64.b64encode(np.packbits(flags).tobytes()).decode()


def answered(
    number: int, *, right: bool, spans: list[tuple[float, float]] | None = None, minutes: str = "1"
) -> dict[str, Any]:
    """A record about needles at 10 to 12 s and at 50 to 54 s."""
    reference = {"answer": "A", "options": list("wxyz"), "labels": list("ABCD"), "needles": [[10, 12], [50, 54]]}
    groups = {"minutes": minutes, "place": str(number % 2), "needles": "2", "dB": "10"}
    bits = {} if spans is None else {"kept_audio_bits": kept(spans), "kept_audio_tokens": sum(e - s for s, e in spans)}
    fields = {"reply": "A" if right else "B", "reference": reference, "groups": groups, "clip_seconds": 100.0}
    return a_record(f"s{number}", cluster=f"c{number % 3}", **fields, **bits)


def test_the_share_of_kept_tokens_of_each_needle_equals_values_by_hand() -> None:
    assert kept_of_needles(typed(answered(1, right=True, spans=[(10, 11), (50, 53)]))) == [0.5, 0.75]
    assert kept_of_needles(typed(answered(1, right=True))) is None  # unknown for a press
    assert kept_of_needles(typed(answered(1, right=True)), is_base=True) == [1, 1]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Write a run of base, all right, and a pruned run: one wrong answer kept its needles, two lost a needle."""
    whole, half = [(10, 12), (50, 54)], [(50, 54)]
    base = [answered(number, right=True, minutes=str(1 + number // 4)) for number in range(8)]
    pruned = [answered(0, right=False, spans=whole), answered(1, right=False, spans=half),
           answered(2, right=False, spans=half), answered(3, right=True, spans=whole)]  # fmt: skip
    for label, records in (("base-0", base), ("random-0.5-layer2", pruned)):
        method, _, rest = label.partition("-")
        identity = {"device": "gpu", "method": method} | ({"ratio": 0.5, "layer": 2} if rest != "0" else {})
        facts = {"task": "ruler/word", "method": label, "model": "toy", "checkpoint": "/toy", "identity": identity}
        finished(write_run(tmp_path / "runs" / label, facts, records, {"task": "ruler/word"}))
    return tmp_path / "runs"


def test_the_report_counts_wrong_replies_with_dropped_needles_separately(runs: Path) -> None:
    (ruler_section,) = (section for section in sections(PageData(read_systems([runs]))) if section.anchor == "ruler")
    rows = {row["setting"]: row for row in ruler_section.tables[0].frame.to_dict("records") if row["minutes"] == 1}
    pruned = rows["random-0.5-layer2"]
    assert (pruned["accuracy"], pruned["unanswered"], pruned["dropped"]) == (0.25, 0.25, 0.5)
    assert pruned["kept"] == pytest.approx((1 + 0.5 + 0.5 + 1) / 4)
    assert (rows["base-0"]["accuracy"], rows["base-0"]["kept"], rows["base-0"]["kept_low"]) == (1, 1, None)
    assert "dropped" in markdown(ruler_section.tables[0])


def test_the_report_has_a_heat_map_of_clip_length_against_needle_position_per_setting(
    runs: Path, tmp_path: Path
) -> None:
    (ruler_section,) = (section for section in sections(PageData(read_systems([runs]))) if section.anchor == "ruler")
    base, pruned = ruler_section.charts["ruler/word"]
    cells = {(cell["y"], cell["x"]): cell["value"] for cell in pruned.data["cells"]}
    assert cells == {("1 min", "0"): 0.0, ("1 min", "1"): 0.5}
    assert len(base.data["cells"]) == 4
    drawn = plot_runs([runs], tmp_path / "plots", "svg")
    assert any("place of the needles" in file.read_text() for file in drawn)


def test_a_ruler_row_with_malformed_needles_is_a_bad_row(root: Path, tmp_path: Path) -> None:
    rows = rows_of(root, "word")[:4]
    for row, odd in zip(rows, (None, "x", [[1]], [["a", 2]]), strict=True):
        row["needles"] = odd
    (tmp_path / "ruler_word.json").write_text(json.dumps(rows))
    (tmp_path / "clips").symlink_to(root / "ruler" / "clips")
    loaded = get_task("ruler/word").load(tmp_path)
    assert [bad_row.row for bad_row in loaded.bad_rows] == [2, 3, 4]
    assert all("needles" in str(bad_row) for bad_row in loaded.bad_rows)


def test_a_missing_background_file_is_named_in_the_error(root: Path) -> None:
    task = get_task("ruler/word")
    loaded = task.load(task.find(root))
    gone = replace(loaded.samples[0], meta={**loaded.samples[0].meta, "background_alone": "clips/none.flac"})
    with pytest.raises(AudioMarathonError, match=r"none\.flac: is missing; make the ruler again"):
        task.vary(replace(loaded, samples=(gone,)), "no-needle")

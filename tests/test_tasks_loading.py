"""Loading the ten tasks from disk: which rows become samples, and which become bad rows and why."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from task_folders import AGES, BUILDERS, COUNTS, SCENES, build_all, edit_rows, write_clip, write_json

from audiomarathon.benchmarks import BadRow, Filters, Loaded, get_task
from audiomarathon.benchmarks.multiple_choice import MultipleChoice
from audiomarathon.benchmarks.rows import class_of, natural
from audiomarathon.benchmarks.task import KNOWN_GAPS
from audiomarathon.errors import DataError, SettingsError

CHOICE_TASKS = ("race", "slue", "tau", "gtzan", "desed", "vesus", "vox", "vox_age")


def load(root: Path, key: str, filters: Filters = Filters()) -> Loaded:
    task = get_task(key)
    return task.load(task.find(root), filters)


def metadata(folder: Path, key: str) -> Path:
    task = get_task(key)
    assert isinstance(task, MultipleChoice)
    return folder / task.metadata_file


def load_edited(root: Path, key: str, edit: Callable[[list[Any]], object]) -> Loaded:
    """Build a task, change the rows of its metadata file, and load it."""
    edit_rows(metadata(build_all(root, [key]) / key.upper(), key), edit)
    return load(root, key)


#: Samples of the tiny data sets, written by hand: id, cluster, stratum.
EXPECTED: dict[str, list[tuple[str, ...]]] = {
    "librispeech": [("84/121123/84-121123-0000", "84", ""), ("84/121123/84-121123-0001", "84", ""),
                    ("174/50561/174-50561-0000", "174", "")],
    "race": [(f"{clip}#{n}", clip, answer) for clip, n, answer in (("high/p1.wav", 0, "A"), ("high/p1.wav", 1, "B"),
                                                                   ("middle/p2.wav", 0, "D"))],
    "slue": [(str(n), f"audio/merged_{n}.wav", "ABC"[n]) for n in range(3)],
    "tau": [(f"concatenated_resampled/{place}-0-a.wav", place, scene) for n, scene in enumerate(SCENES)
            if (place := f"{scene}-lisbon-{1000 + n // 2}")],
    "gtzan": [(f"gtzan_{n}", f"wav/{genre}.wav", genre) for n, genre in enumerate(("blues", "hiphop"))],
    "desed": [(f"desed_{n}", f"audio/{n}.wav", event) for n, event in enumerate(("dog", "running_water"))],
    "vesus": [(f"wav/{n}_{emotion}.wav", f"person {n}", emotion) for n in (1, 2, 10) for emotion in ("happy", "sad")],
    "had": [(f"{kind}/HAD_{n}.wav", f"{kind}/HAD_{n}.wav", kind) for kind, many in (("fake", 2), ("real", 3))
            for n in range(8, 8 + many)],
    "vox": [("vox_0", "id10270", "female"), ("vox_1", "id10271", "male"), ("vox_2", "id10271", "male")],
    "vox_age": [(f"wav/id1000{n}/0.wav", f"id1000{n}", age) for n, age in enumerate(AGES)],
}  # fmt: skip


@pytest.mark.parametrize("key", EXPECTED)
def test_every_metadata_row_becomes_a_sample_with_id_cluster_and_stratum(key: str, tmp_path: Path) -> None:
    loaded = load(build_all(tmp_path, [key]), key)
    assert not loaded.bad_rows
    facts = [(s.id, s.cluster, s.stratum) for s in loaded.samples]
    assert facts == sorted(EXPECTED[key], key=lambda fact: natural(fact[0]))
    assert all(s.clips[0].is_absolute() and s.clips[0].is_file() for s in loaded.samples)
    if key == "librispeech":
        assert [s.answer for s in loaded.samples] == ["GO ON", "WHAT A PITY", "THE NEW YEAR"]


def test_extra_fields_of_a_metadata_row_are_kept_with_the_sample(tmp_path: Path) -> None:
    build_all(tmp_path)
    race, desed, slue = ([sample.meta for sample in load(tmp_path, key).samples] for key in ("race", "desed", "slue"))
    assert [(meta["difficulty"], meta["question_idx"]) for meta in race] == [("high", 0), ("high", 1), ("middle", 0)]
    assert [desed[0][name] for name in ("event_onset", "event_seconds", "all_events")] == [0.25, 0.5, ["Dog"]]
    assert (load(tmp_path, "vox_age").samples[0].meta["speaker_age"], slue[2]["entity_count"]) == (25, 3)


@pytest.mark.parametrize("key", CHOICE_TASKS)
def test_the_order_of_metadata_rows_does_not_change_the_loaded_samples(key: str, tmp_path: Path) -> None:
    folder = build_all(tmp_path, [key]) / key.upper()
    before = load(tmp_path, key).samples
    edit_rows(metadata(folder, key), lambda rows: rows.reverse())
    assert load(tmp_path, key).samples == before


LETTER = "Listen to the audio and answer with the letter of the correct option only."
PROMPTS = {
    "vox": f"What is the speaker's gender?\n\nA. Male\nB. Female\n\n{LETTER}",
    "had": f"Is the speech in this audio real, or does it contain fake parts?\n\nA. Real\nB. Fake\n\n{LETTER}",
    "librispeech": "Transcribe the speech in the audio exactly. Output the transcript only, nothing else.",
}


@pytest.mark.parametrize("key", PROMPTS)
def test_the_prompt_of_a_task_equals_the_stored_text_word_for_word(key: str, tmp_path: Path) -> None:
    assert get_task(key).prompt(load(build_all(tmp_path, [key]), key).samples[0]) == PROMPTS[key]


# Bad rows ------------------------------------------------------------------------------------------------------------

FAULTS: list[tuple[str, Callable[[Any], object], str]] = [
    ("tau", lambda row: row.update(answer_gt="E"), "answer 'E' is none of the options"),
    ("tau", lambda row: row.pop("answer_gt"), "'answer_gt' is missing"),
    ("tau", lambda row: row.pop("question"), "'question' is missing"),
    ("tau", lambda row: row.update(question=["What?"]), "'question' holds a list"),
    ("tau", lambda row: row.update(question="\ud800"), "cannot be stored as text"),
    ("tau", lambda row: row.update(question="\u200b\ufeff \u2060"), "'question' is empty"),
    ("tau", lambda row: row.update(choice_b="Bus\nC. Tram"), r"option 'Bus\nC. Tram' has a line break"),
    ("tau", lambda row: row.pop("choice_b"), "'choice_b' is missing, but 'choice_d' is there"),
    ("tau", lambda row: row.pop("choice_d"), "has 3 options, expected 4"),
    ("tau", lambda row: row.update(choice_e="Tram"), "has 5 options, expected 4"),
    ("tau", lambda row: row.update(path="gone.wav"), "clip 'gone.wav' is missing"),
    ("tau", lambda row: row.update(path="../../outside.wav"), "leaves the task's folder"),
    ("tau", lambda row: row.update(path="/etc/hostname"), "leaves the task's folder"),
    ("tau", lambda row: row.update(path="concatenated_resampled/../../outside.wav"), "leaves the task's folder"),
    ("tau", lambda row: row.update(path="..\\..\\outside.wav"), "leaves the task's folder"),
    ("tau", lambda row: row.update(path="."), "leaves the task's folder"),
    ("gtzan", lambda row: row.update(path="deep/" * 50 + "gone.wav"), "deep/gone.wav' is missing"),
    ("tau", lambda row: row.update(path="concatenated_resampled"), "is missing"),
    ("tau", lambda row: row.update(path="a\0b.wav"), "cannot be stored as text"),
    ("tau", lambda row: row.update(scene_label="tram"), "scene_label 'tram' contradicts the answer 'B' (Bus)"),
    ("gtzan", lambda row: row.update(choice_d="disco - Disco"), "stand for the same class 'disco'"),
    ("gtzan", lambda row: row.update(genre_label="blues"), "genre_label 'blues' contradicts the answer 'B' (Hip-Hop)"),
    ("desed", lambda row: row.update(correct_event="Cat"), "correct_event 'Cat' contradicts"),
    ("desed", lambda row: row.update(choices=["Dog", "Cat"]), "'choices' must be an object"),
    ("desed", lambda row: row["choices"].pop("B"), "under the letters A, B"),
    ("desed", lambda row: row["choices"].update(B=3), "under the letters A, B"),
    ("desed", lambda row: row["choices"].update(B=" "), "choice B is empty"),
    ("desed", lambda row: row["choices"].update(B="Cat\u2028Dog"), "has a line break"),
    ("vesus", lambda row: row.update(emotion_label="happy"), "contradicts the answer 'C' (Sad)"),
    ("vesus", lambda row: row.pop("person_id"), "'person_id' is missing"),
    ("race", lambda row: row.update(options=["one", "two"]), "has 2 options, expected 4"),
    ("race", lambda row: row.update(options="To rest."), "'options' must be a list"),
    ("race", lambda row: row.update(options=["a", "b\r\n", "c\rd", "e"]), r"option 'c\rd' has a line break"),
    ("race", lambda row: row.update(options=["a", "b", "c", 4]), "'options' must be a list of texts"),
    ("race", lambda row: row.update(question_idx=0), "duplicate id 'high/p1.wav#0', first used in row 1"),
    ("race", lambda row: row.pop("question_idx"), "'question_idx' is missing"),
    ("vox", lambda row: row.update(answer_gt="Other"), "answer 'Other' is none of the options Male, Female"),
    ("vox_age", lambda row: row.update(answer_gt="Early Career (18-30)"), "is none of the options"),
]


@pytest.mark.parametrize("event", ["Alarm", "Dog (barking), at home", "", None])
def test_a_desed_event_that_is_not_among_the_options_is_ignored(event: str | None, tmp_path: Path) -> None:
    """A DESED clip holds several events; `correct_event` need not be among the options."""
    whole = load(build_all(tmp_path, ["desed"]), "desed")
    assert load_edited(tmp_path, "desed", lambda rows: rows[1].update(correct_event=event)) == whole


@pytest.mark.parametrize(("key", "spoil", "reason"), FAULTS, ids=[f"{key}: {why[:45]}" for key, _, why in FAULTS])
def test_a_bad_second_row_is_reported_with_file_and_row(
    key: str, spoil: Callable[[Any], object], reason: str, tmp_path: Path
) -> None:
    write_clip(tmp_path / "outside.wav")
    loaded = load_edited(tmp_path, key, lambda rows: spoil(rows[1]))
    (bad,) = loaded.bad_rows
    file = metadata(tmp_path / key.upper(), key)
    assert (bad.file, bad.row) == (file, 2)
    assert reason in bad.reason
    assert str(bad).startswith(f"{file}, row 2: ")
    assert len(loaded.samples) == COUNTS[key] - 1


@pytest.mark.parametrize(
    "spoil",
    [
        {"path": "x" * 5000}, {"path": "../" * 2000 + "outside.wav"}, {"answer_gt": "y" * 5000},
        {"scene_label": "tram " * 1000}, {"choice_a": "bus " * 1000}, {"choice_a": "Bus" + "\n" * 5000 + "Tram"},
    ],
    ids=["missing", "outside", "answer", "label", "twice", "line break"],
)  # fmt: skip
def test_a_long_value_is_shortened_in_the_error_message(spoil: dict[str, str], tmp_path: Path) -> None:
    (bad,) = load_edited(tmp_path, "tau", lambda rows: rows[1].update(spoil)).bad_rows
    assert "…" in bad.reason
    assert len(bad.reason.replace(str(tmp_path / "TAU"), "")) < 330


@pytest.mark.parametrize("row", [None, 3, "row", [1]])
def test_a_row_that_is_not_a_json_object_is_a_bad_row(row: object, tmp_path: Path) -> None:
    (bad,) = load_edited(tmp_path, "gtzan", lambda rows: rows.append(row)).bad_rows
    assert bad.row == 3
    assert "expected an object" in bad.reason


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda _: b"[{]", "not JSON: .* at line 1, column 3"),
        (lambda _: b'[\n{"path": 1},\n{"path" 2}]', "not JSON: .* at line 3"),
        (lambda _: b"", "not JSON"),
        (lambda text: text[: len(text) // 2], "not JSON"),
        (lambda text: text + text, "not JSON"),
        (lambda _: b"\xff\xfe\x00", "not UTF-8"),
        (lambda text: text.decode().encode("utf-16"), "not UTF-8"),
        (lambda _: b"[" * 1_000_000, "nested too deeply"),
        (lambda _: b'{"a":' * 500_000, "nested too deeply"),
        (lambda _: b"[" + b"9" * 1_000_000 + b"]", "not usable"),
        (lambda text: text.replace(b'"answer_gt"', b'"answer_gt": "B", "answer_gt"', 1), "answer_gt"),
        (lambda _: b'{"rows": []}', "expected a list .*found a dict"),
        (lambda _: b"null", "expected a list .*found nothing"),
        (lambda _: b"[]", "holds no rows"),
    ],
)
def test_an_unusable_metadata_file_is_a_one_line_error(
    spoil: Callable[[bytes], bytes], reason: str, tmp_path: Path
) -> None:
    file = metadata(build_all(tmp_path, ["gtzan"]) / "GTZAN", "gtzan")
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(DataError, match=reason) as caught:
        load(tmp_path, "gtzan")
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_desed_metadata_must_be_an_object_with_tasks(tmp_path: Path) -> None:
    folder = build_all(tmp_path, ["desed"]) / "DESED"
    write_json(metadata(folder, "desed"), [{"path": "x"}])
    with pytest.raises(DataError, match=r"object .*'tasks', found a list"):
        load(tmp_path, "desed")


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from(CHOICE_TASKS), data=st.data())
def test_no_value_in_a_row_can_crash_the_loader(key: str, data: st.DataObject, tmp_path: Path) -> None:
    folder = tmp_path / key.upper()
    if not folder.exists():
        BUILDERS[key](folder)
        metadata(folder, key).rename(folder / "whole.json")
    whole = json.loads((folder / "whole.json").read_text())
    rows = whole["tasks"] if isinstance(whole, dict) else whole
    field = data.draw(st.sampled_from(sorted(rows[0])))
    rows[0][field] = data.draw(anything)
    write_json(metadata(folder, key), whole)
    loaded = load(tmp_path, key)
    assert len(loaded.samples) + len(loaded.bad_rows) == len(rows)
    assert all("\n" not in bad.reason or "\n" in str(rows[0][field]) for bad in loaded.bad_rows)
    json.dumps([dict(s.meta) for s in loaded.samples])


# Details of single tasks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "letter"),
    [("b", "B"), ("(B)", "B"), ("B.", "B"), ("rock - ROCK", "B"), ("Rock", "B"), (" rock ", "B"), ("jazz", "D")]
    + [(two_classes, "") for two_classes in ("Pop rock", "rock/pop", "Blues, jazz")],
)
def test_an_answer_may_be_the_letter_or_the_text_of_one_option(answer: str, letter: str, tmp_path: Path) -> None:
    loaded = load_edited(tmp_path, "gtzan", lambda rows: (rows[0].update(answer_gt=answer), rows[0].pop("genre_label")))
    if letter:
        assert loaded.samples[0].answer == letter
    else:
        assert "is none of the options" in loaded.bad_rows[0].reason


def test_age_groups_are_read_in_every_spelling() -> None:
    task = get_task("vox_age")
    assert isinstance(task, MultipleChoice)
    first = dict.fromkeys(("Young Adult (18-30)", "18-30 (Young Adult)", "young adult", "18 – 30"), 0)
    spelled = first | {"Mid Career": 2, "71+": 4, "Elderly (71+ years)": 4}
    assert {text: task.label(text) for text in spelled} == {text: task.classes[at] for text, at in spelled.items()}
    odd = ("Early Career (18-30)", "18-40", "30", "Adult", "Young Adult or Senior", "(51-71)")
    assert not {*map(task.label, odd)} & {*task.classes}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Metro and street traffic", "metro_and_street_traffic"),  # names two classes
        ("Street traffic of pedestrians at the metro station", "street_traffic_of_pedestrians_at_the_metro_station"),
        ("metro", "metro"),
        ("Metro station", "metro_station"),
        ("In a metro station", "metro_station"),
        ("Travelling by underground metro", "metro"),
        ("Pedestrian street", "street_pedestrian"),
        ("station", "metro_station"),
        ("street", "street"),  # part of two scenes
        ("Beach", "beach"),
        ("??", ""),
    ],
)
def test_classes_are_recognised_from_the_text_of_options(text: str, expected: str) -> None:
    scenes = ("metro", "metro_station", "street_pedestrian", "street_traffic")
    assert class_of(text, scenes) == expected


@pytest.mark.parametrize("person", [2, 2.0, "2.0", "02", "person_02"])
def test_skip_persons_leaves_out_a_person_id_in_any_spelling(person: object, tmp_path: Path) -> None:
    loaded = load_edited(tmp_path, "vesus", lambda rows: rows[2].update(person_id=person))
    assert [s.cluster for s in loaded.samples if s.id == "wav/2_happy.wav"] == ["person 2"]
    assert load(tmp_path, "vesus", Filters(skip_persons=("2",))).left_out == {"SKIP_PERSONS": 2}


def test_a_row_number_written_as_a_float_gives_the_same_sample_id_as_a_whole_number(tmp_path: Path) -> None:
    """Tables turn a column of whole numbers with one empty cell into 0.0, 1.0, …."""
    loaded = load_edited(tmp_path, "race", lambda rows: rows[1].update(question_idx=1.0))
    assert [s.id for s in loaded.samples] == [id_ for id_, *_ in EXPECTED["race"]]


def test_nan_in_a_metadata_row_counts_as_an_empty_field(tmp_path: Path) -> None:
    """JSON tables contain NaN for empty fields. Optional fields and options beyond the last are then not set."""
    empty = {"speaker_id_original": float("nan"), "event_onset": 1e999}
    sample = load_edited(tmp_path, "vox", lambda rows: rows[0].update(empty)).samples[0]
    assert (sample.cluster, sample.meta) == ("id10270", {})  # the cluster from the path
    assert not load_edited(tmp_path, "tau", lambda rows: rows[0].update(choice_e=float("nan"))).bad_rows


def test_vesus_filters_leave_out_the_chosen_persons_and_emotion(tmp_path: Path) -> None:
    build_all(tmp_path, ["vesus"])

    for filters, ids, left_out in (
        (Filters(skip_persons=("2", "10"), skip_emotion="happy"), "1_happy 1_sad 2_sad 10_sad",
         {"SKIP_PERSONS and SKIP_EMOTION": 2}),
        (Filters(skip_persons=("02",)), "1_happy 1_sad 10_happy 10_sad", {"SKIP_PERSONS": 2}),
        (Filters(skip_emotion="Sad"), "1_happy 2_happy 10_happy", {"SKIP_EMOTION": 3}),
    ):  # fmt: skip
        loaded = load(tmp_path, "vesus", filters)
        assert ([s.id for s in loaded.samples], loaded.left_out) == (
            [f"wav/{name}.wav" for name in ids.split()],
            left_out,
        )
    with pytest.raises(SettingsError, match=r"SKIP_EMOTION=hapy: .*allowed: angry, happy"):
        load(tmp_path, "vesus", Filters(skip_emotion="hapy"))


@pytest.mark.parametrize(
    ("key", "row", "known"),
    [
        ("slue", {"path": "dev/mixed_concatenated_audio/mixed_concatenated_audio_0061.wav"}, True),
        ("slue", {"path": "mixed_concatenated_audio_0062.wav"}, False),
        ("vesus", {"path": "2/person_2_Fearful_sentences_001_2.0min.wav", "emotion_label": "Fearful"}, True),
        ("vesus", {"path": "6/person_6_Angry_words_phrases_001_2.0min.wav", "emotion_label": "anger"}, True),
        ("vesus", {"path": "2/person_2_Sad_sentences_001_2.0min.wav", "emotion_label": "sad"}, False),
        ("vesus", {"path": "2/person_2_Fearful_sentences_003_2.0min.wav", "emotion_label": "fearful"}, False),
        ("vox", {"path": "wav/id02577/id02577_segment_8.wav"}, True),
        ("vox", {"path": "wav/id02577/id02577_segment_80.wav"}, False),
        ("vox_age", {"path": "wav/id02685/id02685_segment_1.wav"}, True),
        ("gtzan", {"path": "mixed_concatenated_audio_0061.wav"}, False),
    ],
)
def test_a_missing_clip_is_left_out_if_it_is_a_known_gap_and_a_bad_row_otherwise(
    key: str, row: dict[str, Any], known: bool, tmp_path: Path
) -> None:
    if key == "vesus":
        row["person_id"] = row["path"][0]
    loaded = load_edited(tmp_path, key, lambda rows: rows.append({**rows[0], **row, "uniq_id": "gap"}))
    assert ([bad.row for bad in loaded.bad_rows], len(loaded.samples)) == ([COUNTS[key] + 1] * (not known), COUNTS[key])
    assert loaded.left_out == ({KNOWN_GAPS: 1} if known else {})
    if known:
        assert loaded.gaps[0].lower() in row["path"].lower()
        write_clip(tmp_path / key.upper() / row["path"])
        changed = {"emotion_label": "happy", "answer_gt": "B"} if key == "vesus" else {}
        edit_rows(metadata(tmp_path / key.upper(), key), lambda rows: rows[-1].update(changed))
        loaded = load(tmp_path, key)
        assert (loaded.bad_rows, loaded.left_out, len(loaded.samples)) == ((), {}, COUNTS[key] + 1)


def test_had_balance_draws_the_same_number_of_clips_from_each_class(tmp_path: Path) -> None:
    build_all(tmp_path, ["had"])
    draws = [load(tmp_path, "had", Filters(balance=True, seed=seed)) for seed in range(12)]
    for drawn in draws:
        assert Counter(s.stratum for s in drawn.samples) == {"real": 2, "fake": 2}
        assert drawn.left_out == {"BALANCE": 1}
    assert len({tuple(s.id for s in drawn.samples) for drawn in draws}) == 3  # any one of three real clips is left out
    assert load(tmp_path, "had", Filters(balance=True, seed=3)) == draws[3]


def test_had_samples_keep_the_onset_and_length_of_the_fake_part(tmp_path: Path) -> None:
    folder = build_all(tmp_path, ["had"]) / "HAD"
    write_json(folder / "events.json", [{"path": "fake/HAD_8.wav", "event_onset": 1.5, "event_seconds": 2.0}])
    assert load(tmp_path, "had").samples[0].meta == {"event_onset": 1.5, "event_seconds": 2.0}


@pytest.mark.parametrize("suffix", ["flac", "MP3"])
def test_had_clips_in_a_format_other_than_wav_are_bad_rows(suffix: str, tmp_path: Path) -> None:
    folder = build_all(tmp_path, ["had"]) / "HAD"
    clip = (folder / "fake" / "HAD_8.wav").rename(folder / "fake" / f"HAD_8.{suffix}")
    (folder / "real" / "README.txt").write_text("not audio")
    loaded = load(tmp_path, "had")
    assert loaded.bad_rows == (BadRow(clip, 0, f"is a {suffix.upper()}, expected WAV"),)
    assert len(loaded.samples) == 4
    for wav in folder.rglob("*.wav"):
        wav.rename(wav.with_suffix(".flac"))
    loaded = load(tmp_path, "had", Filters(balance=True))
    assert (len(loaded.samples), len(loaded.bad_rows)) == (0, 5)
    for file in folder.rglob("HAD*"):
        file.unlink()
    with pytest.raises(DataError, match="no WAV files"):
        load(tmp_path, "had")


def test_file_names_that_are_not_utf_8_give_ids_that_utf_8_can_hold(tmp_path: Path) -> None:
    folder = build_all(tmp_path, ["librispeech", "had"]) / "LIBRISPEECH" / "test-clean"
    odd = os.fsdecode(b"caf\xe9")
    chapter = (folder / "174" / "50561").rename((folder / odd).mkdir() or folder / odd / "1")
    clip = (chapter / "174-50561-0000.flac").rename(chapter / "a.flac")
    (chapter / "174-50561-0000.txt").rename(chapter / "a.txt")
    (chapter / f"{odd}.flac").touch()
    (tmp_path / "HAD" / "real" / f"{odd}.wav").touch()
    loaded = load(tmp_path, "librispeech")
    (sample,) = [s for s in loaded.samples if s.clips == (clip,)]
    assert (sample.id, sample.cluster) == (r"caf\udce9/1/a", r"caf\udce9")
    (bad,) = loaded.bad_rows
    assert bad.reason == "has no transcript"
    for text in (sample.id, str(bad), *map(str, load(tmp_path, "had").bad_rows)):
        assert text.encode()


def rewritten(content: bytes) -> Callable[[Path], object]:
    return lambda chapter: (chapter / "84-121123.trans.txt").write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "texts", "expected"),
    [
        (lambda chapter: write_clip(chapter.parents[2] / "dev-clean" / "26" / "495" / "26-495-0000.flac"),
         ["GO ON", "WHAT A PITY"], {("26-495-0000.flac", 0, "has no transcript")}),
        (lambda chapter: (chapter / "84-121123.trans.txt").unlink(), [],
         {(f"84-121123-000{n}.flac", 0, "has no transcript") for n in range(2)}),
        (lambda chapter: [clip.unlink() for clip in chapter.glob("*.flac")], [],
         {("121123", 0, f"clip 84-121123-000{n}.flac is missing") for n in range(2)}),
        (rewritten(b"84-121123-0000 GO ON\n\n84-121123-0000 AGAIN\n84-121123-0007 GONE\n"), ["GO ON"],
         {("84-121123-0001.flac", 0, "has no transcript"), ("121123", 0, "clip 84-121123-0007.flac is missing"),
          ("84-121123.trans.txt", 3, "second transcript of '84-121123-0000'")}),
        (rewritten(b"84-121123-0000\n84-121123-0001 \n"), [], None),
        (rewritten(b"\xff\xfe\x00"), [], None),
    ],
    ids=["split without transcripts", "chapter without transcripts", "no clips", "no counterpart", "empty", "binary"],
)  # fmt: skip
def test_librispeech_clips_and_transcripts_without_a_counterpart_are_bad_rows(
    spoil: Callable[[Path], object], texts: list[str], expected: set[tuple[str, int, str]] | None, tmp_path: Path
) -> None:
    spoil(build_all(tmp_path, ["librispeech"]) / "LIBRISPEECH" / "test-clean" / "84" / "121123")
    loaded = load(tmp_path, "librispeech")
    bad = {(row.file.name, row.row, row.reason) for row in loaded.bad_rows}
    assert bad
    assert expected in (None, bad)
    assert [sample.answer for sample in loaded.samples] == [*texts, "THE NEW YEAR"]


def test_a_clip_that_links_to_a_file_outside_the_data_folder_is_used(tmp_path: Path) -> None:
    """The hub's cache stores every clip as a link to a blob elsewhere; only the path as written must stay inside."""
    folder = build_all(tmp_path / "root", ["gtzan"]) / "GTZAN"
    blob = (folder / "wav" / "blues.wav").rename(tmp_path / "blob")
    (folder / "wav" / "blues.wav").symlink_to(blob)
    loaded = load(tmp_path / "root", "gtzan")
    assert not loaded.bad_rows
    assert loaded.samples[0].clips[0] == folder / "wav" / "blues.wav"


def test_a_clip_path_that_repeats_the_folder_name_is_found(tmp_path: Path) -> None:
    loaded = load_edited(tmp_path, "gtzan", lambda rows: rows[0].update(path="GTZAN/wav/blues.wav"))
    assert loaded.samples[0].clips[0] == tmp_path / "GTZAN" / "wav" / "blues.wav"


@pytest.mark.parametrize("uniq_id", [None, " ", True, 1.5, [], "x" * 500, "a\nb"])
def test_an_unusable_uniq_id_of_a_row_is_replaced_by_its_clip_path(uniq_id: object, tmp_path: Path) -> None:
    loaded = load_edited(tmp_path, "gtzan", lambda rows: rows[0].update(uniq_id=uniq_id))
    assert {s.id for s in loaded.samples} == {"wav/blues.wav", "gtzan_1"}


def test_the_id_of_a_clip_that_exists_in_two_places_is_the_path_in_its_row(tmp_path: Path) -> None:
    folder = build_all(tmp_path, ["tau"]) / "TAU"
    name = "airport-lisbon-1000-0-a.wav"
    os.link(folder / "concatenated_resampled" / name, folder / name)
    ids = [s.id for s in load(tmp_path, "tau").samples if "airport" in s.id]
    assert ids == [name]


def test_natural_sort_orders_numbers_within_names_by_value() -> None:
    names = ["clip 10", "clip 9", "clip 002", "clip", "clip 2b", "clip 2"]
    assert sorted(names, key=natural) == ["clip", "clip 002", "clip 2", "clip 2b", "clip 9", "clip 10"]

"""Facts of each raw corpus, and the mistakes that the public release made with it."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raw_corpora import EVENTS, MAKERS, PLACES, Noise, built, left_out, manifest

from audiomarathon.benchmarks import get_task
from audiomarathon.benchmarks.task import LETTERS
from audiomarathon.segment.registry import CORPORA

ROOT = Path(__file__).parent.parent


@pytest.fixture
def raw(tmp_path: Path, request: pytest.FixtureRequest) -> list[str]:
    """Return the arguments of the builder for the task that the test's name begins with."""
    task = next(task for task in sorted(MAKERS, key=len, reverse=True) if f"test_{task}_" in request.node.name)
    return MAKERS[task](tmp_path / "raw", Noise())


def samples(task: str, folder: Path) -> list[Any]:
    return list(get_task(task).load(folder).samples)


def answer(sample: Any) -> str:
    return str(sample.options[LETTERS.index(sample.answer)])


def sources_of(folder: Path) -> dict[Path, list[dict[str, Any]]]:
    """Return the source clips of each built clip."""
    return {folder / row["path"]: row["sources"] for row in manifest(folder)}


def used_in(folder: Path) -> list[str]:
    return [source["path"] for sources in sources_of(folder).values() for source in sources]


# --- TAU --------------------------------------------------------------------------------------------------------------


def test_tau_scenes_come_from_the_label_column_rather_than_from_the_file_name(raw: list[str], tmp_path: Path) -> None:
    """`metro_station-…` begins with `metro`; the public release took only the first word."""
    meta = Path(raw[0]) / "meta.csv"
    # The label in the column wins over the scene in the file name.
    meta.write_text(meta.read_text().replace("\tmetro\tlyon", "\tpark\tlyon"))
    folder = built("tau", raw, tmp_path / "tau")
    places = {("Metro", "metro-lisbon-1000"), ("Park", "park-lyon-1001")}
    places |= {("Metro station", f"metro_station-{place}") for place in ("lisbon-1000", "lyon-1001")}
    assert {(answer(sample), sample.cluster) for sample in samples("tau", folder)} == places
    for row in manifest(folder):
        names = {Path(source["path"]).name.rsplit("-", 2)[0] for source in row["sources"]}
        assert len(names) == 1
        scene, place = names.pop().split("-", 1)
        assert row["facts"]["identifier"] == place
        assert row["facts"]["scene"] == ("park" if place == "lyon-1001" and scene == "metro" else scene)


def test_tau_clips_of_different_devices_are_not_joined(raw: list[str], tmp_path: Path) -> None:
    meta = Path(raw[0]) / "meta.csv"
    for name in meta.read_text().splitlines()[1:5]:
        clip = name.split("\t")[0]
        shutil.copy(Path(raw[0]) / clip, Path(raw[0]) / clip.replace("-a.wav", "-b.wav"))
        meta.write_text(meta.read_text() + name.replace("-a.wav", "-b.wav")[:-1] + "b\n")
    rows = manifest(built("tau", raw, tmp_path / "tau"))
    assert {"a", "b"} == {row["facts"]["device"] for row in rows}
    assert all(source["path"][-5] == row["facts"]["device"] for row in rows for source in row["sources"])


def test_tau_metadata_with_quoted_fields_is_read_like_unquoted_metadata(raw: list[str], tmp_path: Path) -> None:
    expected = samples("tau", built("tau", raw, tmp_path / "plain"))
    meta = Path(raw[0]) / "meta.csv"
    rows = [line.split("\t") for line in meta.read_text().splitlines()]
    meta.write_text("".join("\t".join(f'"{field}"' for field in row) + "\n" for row in rows))
    quoted_samples = samples("tau", built("tau", raw, tmp_path / "quoted"))
    assert [answer(sample) for sample in quoted_samples] == [answer(sample) for sample in expected]


def test_tau_clips_are_joined_in_name_order_whatever_the_order_of_the_table(raw: list[str], tmp_path: Path) -> None:
    first = [file.read_bytes() for file in sorted(built("tau", raw, tmp_path / "first").rglob("*.wav"))]
    meta = Path(raw[0]) / "meta.csv"
    heading, *rows = meta.read_text().splitlines()
    meta.write_text("\n".join([heading, *rows[::-1]]) + "\n")
    again = built("tau", raw, tmp_path / "again")
    assert [file.read_bytes() for file in sorted(again.rglob("*.wav"))] == first != []


def test_tau_metadata_that_is_a_fifo_is_refused_and_does_not_block(raw: list[str], tmp_path: Path, capsys: Any) -> None:
    meta = Path(raw[0]) / "meta.csv"
    meta.unlink()
    os.mkfifo(meta)
    built("tau", raw, tmp_path / "tau", code=2)
    assert "meta.csv: is not a plain file" in capsys.readouterr().err
    meta.unlink()
    built("tau", raw, tmp_path / "tau", code=2)
    assert "meta.csv" in capsys.readouterr().err  # what a raw corpus holds


def test_tau_a_clip_listed_twice_or_under_two_scenes_is_used_once(raw: list[str], tmp_path: Path) -> None:
    meta = Path(raw[0]) / "meta.csv"
    lines = meta.read_text().splitlines()
    again = [lines[1], *(line.replace("\tmetro\t", "\tpark\t") for line in lines[2:])]
    meta.write_text("\n".join([*lines, *again]))
    folder = built("tau", raw, tmp_path / "tau")
    assert len(used := used_in(folder)) == len(set(used))
    reasons = [*left_out(folder).values()]
    assert reasons.count("is listed twice") == 15
    assert any("twice: as metro-" in reason for reason in reasons)


# --- GTZAN, HAD, VESUS ------------------------------------------------------------------------------------------------


def test_gtzan_a_broken_source_file_is_listed_as_left_out(raw: list[str], tmp_path: Path) -> None:
    broken = Path(raw[0]) / "blues" / "blues.00003.au"
    broken.write_bytes(b"\0" * 500)
    folder = built("gtzan", raw, tmp_path / "gtzan")
    assert {row["frames"] for row in manifest(folder)} == {4 * 22_050}
    assert "blues/blues.00003.au" in left_out(folder)
    assert {"Blues - blues", "Hiphop - hiphop"} == {answer(sample) for sample in samples("gtzan", folder)}


def test_had_only_clips_labelled_fake_contain_fake_segments(raw: list[str], tmp_path: Path) -> None:
    """The public release cut clips at the labelled segments and joined the pieces."""
    folder = built("had", raw, tmp_path / "had")
    for clip, sources in sources_of(folder).items():
        assert {bool(source["facts"]["fakes"]) for source in sources} == {clip.parent.name == "fake"}
    for sample in samples("had", folder):
        assert ("event_onset" in sample.meta) == (answer(sample) == "Fake")
    fake = next(row for row in manifest(folder) if row["path"].startswith("fake"))
    event = next(row for row in json.loads((folder / "events.json").read_text()) if row["path"] == fake["path"])
    assert (event["event_onset"], event["event_seconds"]) == (pytest.approx(0.3), pytest.approx(0.25))


def test_had_a_clip_with_a_contradictory_label_is_left_out(raw: list[str], tmp_path: Path) -> None:
    file = Path(raw[0]) / "HAD_train_label.txt"
    lines = file.read_text().splitlines()
    twice = lines[2].split()[0]
    file.write_text("\n".join([lines[0][:-1] + "0", *lines[1:], f"{twice} 0-0.3-T/0.3-0.5-F 0"]) + "\n")
    folder = built("had", raw, tmp_path / "had")
    told = left_out(folder)
    assert "labelled half-truth, but has no fake" in " ".join(told.values())
    (name,) = (name for name, reason in told.items() if reason == "is labelled genuine and half-truth")
    assert name.endswith(f"{twice}.wav")
    assert name not in used_in(folder)
    file.write_text("HAD_train_real_00000000 0.00-1 1\n")
    built("had", raw, tmp_path / "other", code=2)


def test_had_splits_under_one_folder_are_read_together(raw: list[str], tmp_path: Path) -> None:
    train, test = Path(raw[0]), Path(raw[0]).parent / "HAD_test"
    (test / "test").mkdir(parents=True)
    label = train / "HAD_train_label.txt"
    *lines, last = label.read_text().splitlines()
    label.write_text("\n".join(lines) + "\n")
    (test / "HAD_test_label.txt").write_text(last + "\n")
    next(train.rglob(f"{last.split()[0]}.wav")).rename(test / "test" / f"{last.split()[0]}.wav")
    folder = built("had", [str(train.parent)], tmp_path / "had")
    used = {*used_in(folder)} | left_out(folder).keys()
    assert f"HAD_test/test/{last.split()[0]}.wav" in used
    assert len(used) == 24


def test_vesus_clips_of_different_speakers_are_not_joined(raw: list[str], tmp_path: Path) -> None:
    folder = built("vesus", raw, tmp_path / "vesus")
    labels = {(s.meta["person"], s.meta["emotion"]) for s in samples("vesus", folder)}
    assert labels == {*itertools.product(("1", "10"), ("happy", "monotone"))}
    assert all(len({Path(source["path"]).parent for source in of}) == 1 for of in sources_of(folder).values())


# --- VoxCeleb ---------------------------------------------------------------------------------------------------------


def test_vox_gender_is_read_from_the_speaker_table(raw: list[str], tmp_path: Path) -> None:
    folder = built("vox", raw, tmp_path / "vox")
    assert {(s.cluster, answer(s)) for s in samples("vox", folder)} == {("id00012", "Male"), ("id00015", "Female")}
    assert left_out(folder)["id00016"].startswith("this speaker")


def test_vox_gender_is_read_from_the_table_of_voxceleb1_too(raw: list[str], tmp_path: Path) -> None:
    table = tmp_path / "vox1_meta.csv"
    rows = ["VoxCeleb1 ID\tVGGFace1 ID\tGender\tNationality\tSet"]
    rows += [f"{speaker}\tSome_Body\tf\tIreland\tdev" for speaker in ("id00012", "id00015", "id00016")]
    table.write_text("\n".join(rows) + "\n")
    folder = built("vox", [*raw, "--meta", str(table)], tmp_path / "vox")
    assert {(s.cluster, answer(s)) for s in samples("vox", folder)} == {(f"id000{n}", "Female") for n in (12, 15, 16)}


def test_vox_m4a_clips_that_were_not_converted_to_wav_are_listed_as_left_out(
    raw: list[str], tmp_path: Path, capsys: Any
) -> None:
    first, second, *others = sorted(Path(raw[0]).rglob("*.wav"))
    first.unlink()
    first.with_suffix(".m4a").write_bytes(b"AAC")
    second.with_suffix(".m4a").write_bytes(b"converted")
    folder = built("vox", raw, tmp_path / "vox")
    assert [name for name in left_out(folder) if name.endswith(".m4a")] == ["id00012/21Uxsk56VDQ/00001.m4a"]
    for clip in (second, *others):
        clip.rename(clip.with_suffix(".m4a"))
    built("vox", raw, tmp_path / "none", code=2)
    assert "ffmpeg -i" in capsys.readouterr().err


def test_vox_age_groups_are_split_at_30_and_children_are_left_out(raw: list[str], tmp_path: Path) -> None:
    folder = built("vox_age", raw, tmp_path / "age")
    groups = {(s.cluster, answer(s), s.meta["speaker_age"]) for s in samples("vox_age", folder)}
    assert groups == {("id00012", "Young Adult (18-30)", 30), ("id00015", "Early Career (31-40)", 31)}
    assert "id00016" in left_out(folder)


# --- LibriSpeech, DESED, SLUE -----------------------------------------------------------------------------------------


def test_librispeech_transcripts_are_joined_in_the_order_of_the_audio(raw: list[str], tmp_path: Path) -> None:
    folder = built("librispeech", raw, tmp_path / "ls")
    for sample in samples("librispeech", folder):
        sources = sources_of(folder)[sample.clips[0]]
        assert sample.answer == " ".join(source["facts"]["text"] for source in sources)
        numbers = [int(Path(source["path"]).stem[-4:]) for source in sources]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert len({Path(source["path"]).parent for source in sources}) == 1


def test_desed_questions_offer_one_event_heard_in_the_clip_and_three_not_heard(raw: list[str], tmp_path: Path) -> None:
    folder = built("desed", raw, tmp_path / "desed")
    table = (Path(raw[0]) / "metadata" / "validation" / "validation.tsv").read_text().splitlines()[1:]
    occur: dict[str, set[str]] = {}
    for name, _, _, label in (line.split("\t") for line in table):
        occur.setdefault(name, set()).add(label.lower())
    for sample in samples("desed", folder):
        sources = sources_of(folder)[sample.clips[0]]
        heard = {label for source in sources for label in occur[Path(source["path"]).name]} - {""}
        labels = dict(zip(LETTERS, sample.labels, strict=False))
        assert {letter for letter, label in labels.items() if label in heard} == {sample.answer}
        assert sorted(heard) == sample.meta["all_events"]
        events = {
            (label, round(source["offset"] / 16_000 + onset, 6), round(offset - onset, 6))
            for source in sources
            for label, onset, offset in source["facts"]["events"]
        }
        asked = (round(sample.meta["event_onset"], 6), round(sample.meta["event_seconds"], 6))
        assert (labels[sample.answer], *asked) in events  # shifted by the soundscape's offset in the clip
    assert len(samples("desed", folder)) >= 8


def test_desed_soundscapes_that_hold_nearly_every_event_are_left_out(raw: list[str], tmp_path: Path) -> None:
    table = Path(raw[0]) / "metadata" / "validation" / "validation.tsv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines, *(f"Y007.wav\t0.1\t0.2\t{label}" for label in EVENTS[:8])]) + "\n")
    reason = left_out(built("desed", raw, tmp_path / "desed"))["audio/validation/Y007.wav"]
    assert "too many kinds of event" in reason


def test_slue_questions_offer_one_entity_named_in_the_clip_and_three_not_named(raw: list[str], tmp_path: Path) -> None:
    folder = built("slue", raw, tmp_path / "slue")
    assert samples("slue", folder)
    for sample in samples("slue", folder):
        text = " ".join(source["facts"]["text"] for source in sources_of(folder)[sample.clips[0]])
        named = {place for place in PLACES if f" {place} " in f" {text} "}
        assert set(sample.options) & named == {answer(sample)}


# --- RACE -------------------------------------------------------------------------------------------------------------


def test_race_samples_keep_the_exams_questions_and_share_the_clip_of_their_passage(
    raw: list[str], tmp_path: Path
) -> None:
    folder = built("race", raw, tmp_path / "race")
    questions = samples("race", folder)
    passages = ("high/0", "high/1", "middle/2")
    assert [sample.id for sample in questions] == [f"{passage}.wav#{n}" for passage in passages for n in (0, 1)]
    assert [answer(sample) for sample in questions[:2]] == ["It.", "Neither."]
    assert {sample.meta["difficulty"] for sample in questions} == {"high", "middle"}


def test_race_a_passage_whose_speech_is_too_long_is_synthesised_only_once_and_left_out(
    raw: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    raw[2] = raw[2].replace("sh -c '", f"sh -c 'echo >> {log}; ")
    for _ in range(2):
        folder = built("race", raw, tmp_path / "race")
    assert len(log.read_text().splitlines()) == 3
    Noise().write(tmp_path / "raw" / "spoken.wav", rate=22_050, seconds=6.0)
    (folder / "high" / "0.wav").unlink()
    for _ in range(3):
        built("race", raw, folder)
    assert left_out(folder) == {"high/0.txt": "longer than a clip may be"}
    assert len(log.read_text().splitlines()) == 4
    (tmp_path / "raw" / "spoken.wav").unlink()  # the command fails
    (folder / "high" / "1.wav").unlink()
    built("race", raw, folder)
    assert "ended with exit code 1" in left_out(folder)["high/1.txt"]
    assert not (folder / "high" / "1.wav").exists()


# --- the scripts ------------------------------------------------------------------------------------------------------


def test_the_segment_folder_has_one_script_for_each_corpus_and_one_for_cutting() -> None:
    files = [file for file in (ROOT / "Segment").glob("*.py") if file.stem != "cut"]
    opened = [re.findall(r'door\("(\w+)"\)', file.read_text()) for file in files]
    assert sorted(opened) == [[task] for task in sorted(CORPORA)]


@pytest.mark.parametrize("name", ["cut", "TAU_task"])
def test_a_segment_script_without_arguments_prints_usage_with_an_example(
    name: str, script: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = script(ROOT / "Segment" / f"{name}.py")
    assert (code, out, [*tmp_path.iterdir()]) == (2, "", [])
    assert f"python {name}.py " in err.partition("example:")[2]


# --- contradictory sources, and sources of another kind -------------------------------------------------------------


#: Task, file to edit, old text ("" for all of it), new text, and words of the message.
STRANGE_TABLES = [
    ("tau", "meta.csv", b"lyon", b"ly\xf6n", "not UTF-8"),
    ("tau", "meta.csv", b"metro_station\t", b"subway\t", "meta.csv"),
    ("tau", "meta.csv", b"\tidentifier", b"\tplace", "meta.csv"),
    ("tau", "meta.csv", b"audio/metro-lisbon", b"../metro-lisbon", "lies outside the corpus"),
    ("tau", "meta.csv", b"lisbon-1000\t", b"../../../lisbon\t", "expected no '/'"),
    ("vox_age", "ages.csv", b"", b"id,age\nid00012,old\n", "ages.csv"),
    ("vox_age", "ages.csv", b"", b"id,age\nid00012,30\nid00012,31\n", "ages.csv"),
    ("vox_age", "ages.csv", b"", b"", "ages.csv"),
    ("desed", "validation.tsv", b"event_label\n", b"event_label\nY001.wav\t0.5\t0.1\tDog\n", "line 2"),
    ("desed", "validation.tsv", b"event_label\n", b"event_label\nY001.wav\t0.1\tnan\tDog\n", "line 2"),
    ("desed", "validation.tsv", b"event_label\n", b"event_label\nY001.wav\t0.1\t0.2\tThunder\n", "line 2"),
    ("slue", "slue-voxpopuli_dev.tsv", b"normalized_ner", b"other", "normalized_ner"),
]


@pytest.mark.parametrize(("task", "name", "old", "new", "told"), STRANGE_TABLES)
def test_a_corpus_table_of_unexpected_content_is_refused(
    task: str, name: str, old: bytes, new: bytes, told: str, tmp_path: Path, capsys: Any
) -> None:
    raw = MAKERS[task](tmp_path / "raw", Noise())
    (table,) = (tmp_path / "raw").rglob(name)
    table.write_bytes(table.read_bytes().replace(old, new) if old else new)
    built(task, raw, tmp_path / "built", code=2)
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "told"),
    [
        *((command, "--tts") for command in ("espeak-ng", "no-such-program -w {out} -f {text}")),
        *(
            (f"say {text} {{out}}", "each quote needs a closing quote")
            for text in ("{0} {text}", "{voice} {text}", "'{text}")
        ),
    ],
)
def test_race_with_a_wrong_speech_synthesis_command_is_refused(
    command: str, told: str, raw: list[str], tmp_path: Path, capsys: Any
) -> None:
    built("race", [raw[0], "--tts", command], tmp_path / "race", code=2)
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("change", [{"article": 5}, {"questions": [5, 6]}, {"answers": ["AB", ""]}, {"options": 5}])
def test_race_a_file_that_is_no_valid_passage_is_left_out(
    change: dict[str, Any], raw: list[str], tmp_path: Path
) -> None:
    passage = sorted(Path(raw[0]).rglob("*.txt"))[0]
    passage.write_text(json.dumps(json.loads(passage.read_text()) | change))
    passage.with_name("dangling.txt").symlink_to("nowhere")
    told = left_out(built("race", raw, tmp_path / "race"))
    assert {f"high/{passage.name}", "high/dangling.txt"} <= told.keys()

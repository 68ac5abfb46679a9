"""Finding and naming tasks, their fingerprints, and the manifest of a data root."""

from __future__ import annotations

import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from task_folders import BUILDERS, build_all, edit_rows, write_clip, write_json

from audiomarathon.benchmarks import get_task, task_folder
from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON
from audiomarathon.benchmarks.fingerprint import clip_hashes, fingerprint
from audiomarathon.benchmarks.locate import walk
from audiomarathon.benchmarks.manifest import Expected, read_manifest
from audiomarathon.benchmarks.registry import benchmark_of, facts_of
from audiomarathon.benchmarks.task import Sample
from audiomarathon.errors import DataError, SettingsError
from audiomarathon.fingerprint import by_rule_1, same

# Finding -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", BUILDERS)
@pytest.mark.parametrize("place", [".", "here", "some/deeper/folder"])
def test_the_data_folder_of_a_task_is_found_at_any_depth(key: str, place: str, tmp_path: Path) -> None:
    BUILDERS[key](tmp_path / place)
    task = get_task(key)
    folder = task.find(tmp_path)
    expected = tmp_path / place
    assert folder == (expected / "test-clean" if key == "librispeech" else expected)
    assert len(task.load(folder).samples) >= 2


def test_the_copy_of_task_data_nearest_the_root_folder_is_found(tmp_path: Path) -> None:
    for place in ("a/b/backup", ".cache/copy", "deep/data"):
        BUILDERS["vesus"](tmp_path / place)
    assert get_task("vesus").find(tmp_path) == tmp_path / "deep" / "data"


@pytest.mark.parametrize("key", BUILDERS)
def test_two_copies_of_task_data_at_equal_depth_are_refused_naming_both(key: str, tmp_path: Path) -> None:
    for place in ("first/set", "second/set"):
        BUILDERS[key](tmp_path / place)
    with pytest.raises(DataError) as caught:
        get_task(key).find(tmp_path)
    for part in (tmp_path / "first" / "set", tmp_path / "second" / "set", f"{key.upper()}_DATA_PATH"):
        assert str(part) in str(caught.value)


def test_the_search_for_task_data_follows_symbolic_links_and_stops_at_loops_of_links(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (BUILDERS["vesus"](store / "vesus") / "loop").symlink_to(store)
    (root := tmp_path / "root").mkdir()
    (root / "linked").symlink_to(store)
    (root / "broken").symlink_to(tmp_path / "nowhere")
    assert get_task("vesus").find(root) == root / "linked" / "vesus"
    assert len(list(walk(root))) == 4  # root, linked, vesus, wav


def test_a_had_folder_with_only_one_of_its_two_classes_is_found(tmp_path: Path) -> None:
    task, clip = get_task("had"), write_clip(tmp_path / "recordings" / "real" / "a.wav")
    with pytest.raises(DataError, match=r"no folder .*real/ .*fake/"):
        task.find(tmp_path)
    clip.parent.parent.rename(tmp_path / "HAD")
    assert task.find(tmp_path) == task.find(tmp_path / "HAD") == tmp_path / "HAD"
    assert [s.id for s in task.load(tmp_path / "HAD").samples] == ["real/a.wav"]


def test_librispeech_data_with_several_splits_load_as_one_task(tmp_path: Path) -> None:
    BUILDERS["librispeech"](tmp_path / "LibriSpeech")
    task = get_task("asr")
    ids = {s.id for s in task.load(task.find(tmp_path)).samples}
    chapter = tmp_path / "LibriSpeech" / "test-other" / "99" / "1"
    write_clip(chapter / "99-1-0000.flac").with_suffix(".txt").write_text("HELLO")
    assert task.find(tmp_path) == tmp_path / "LibriSpeech"
    assert {s.id for s in task.load(task.find(tmp_path)).samples} == ids | {"99/1/99-1-0000"}


def test_audio_folders_without_transcripts_are_not_taken_for_librispeech(tmp_path: Path) -> None:
    write_clip(tmp_path / "music" / "artist" / "album" / "song.flac")
    with pytest.raises(DataError, match="FLAC with transcripts"):
        get_task("librispeech").find(tmp_path)


# Where to look, and the message if nothing is found ------------------------------------------------------------------


def test_the_data_path_variable_of_a_task_overrides_the_data_option(tmp_path: Path) -> None:
    task, folders = get_task("vesus"), {name: build_all(tmp_path / name, ["vesus"]) for name in ("own", "given", "env")}
    env = {"AUDIOMARATHON_DATA": str(folders["env"]), "VESUS_DATA_PATH": " "}
    assert task_folder(task, None, env) == folders["env"] / "VESUS"
    assert task_folder(task, folders["given"], env) == folders["given"] / "VESUS"
    env["VESUS_DATA_PATH"] = str(folders["own"] / "VESUS")
    for root in (None, folders["given"]):
        assert task_folder(task, root, env) == folders["own"] / "VESUS"
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        with pytest.raises(DataError, match="audiomarathon data download"):
            task_folder(task, folders["given"], {"VESUS_DATA_PATH": str(tmp_path / name)})


@pytest.mark.parametrize("key", BUILDERS)
@pytest.mark.parametrize("root", [None, "missing", "empty"])
def test_the_error_on_missing_task_data_says_how_to_get_them(key: str, root: str | None, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError) as caught:
        task_folder(get_task(key), tmp_path / root if root else None, {})
    parts = (f"audiomarathon data download {key}", "AUDIOMARATHON_DATA", f"{key.upper()}_DATA_PATH", "VESUS")
    assert [part for part in (*parts, str(tmp_path / root) if root else "") if part not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


# Names ---------------------------------------------------------------------------------------------------------------


def test_tasks_are_found_by_key_alias_and_acronym() -> None:
    for task in AUDIOMARATHON.tasks:
        for name in (task.key, task.key.upper(), AUDIOMARATHON.facts[task.key].acronym):
            assert get_task(name) is task
    assert get_task("LibriSpeech") is get_task("asr")
    assert get_task("Vox-Age") is get_task("vox_age")


def test_the_error_on_an_unknown_task_suggests_the_nearest_name_or_lists_all() -> None:
    with pytest.raises(SettingsError, match=r"^unknown task 'gtzn' \(did you mean 'gtzan'\?\)$"):
        get_task("gtzn")
    with pytest.raises(SettingsError, match="'zzz'; allowed: librispeech, race, slue, tau, gtzan, desed, vesus"):
        get_task("zzz")


def test_sample_counts_acronyms_and_groups_match_the_published_table() -> None:
    facts = [AUDIOMARATHON.facts[task.key] for task in AUDIOMARATHON.tasks]
    assert sum(facts.count for facts in facts) == 6567
    assert [facts.acronym for facts in facts] == ["ASR", "SCR", "SER", "ASC", "MC", "SED", "ER", "SD", "SGR", "SAR"]
    assert {name: [*keys] for name, keys in AUDIOMARATHON.groups.items()} == {
        "speech content": ["librispeech", "race", "slue"], "audio classification": ["tau", "gtzan", "desed"],
        "speaker": ["vesus", "had", "vox", "vox_age"],
    }  # fmt: skip
    for task in AUDIOMARATHON.tasks:
        expected = (1100, "score") if task.key == "librispeech" else (16, "macro_f1")
        assert (task.max_new_tokens, task.scorer.figure.name) == expected
    assert all(facts_of(task.key) == row for task, row in zip(AUDIOMARATHON.tasks, facts, strict=True))
    assert {benchmark_of(task.key) for task in AUDIOMARATHON.tasks} == {"audiomarathon"}


# Fingerprints --------------------------------------------------------------------------------------------------------


def task_fingerprint(root: Path, key: str) -> str:
    task = get_task(key)
    return fingerprint(task.load(task.find(root)))


@pytest.mark.parametrize("key", BUILDERS)
def test_a_copy_of_the_data_in_any_order_has_the_same_fingerprint(key: str, tmp_path: Path) -> None:
    shutil.copytree(build_all(tmp_path / "one", [key]), tmp_path / "other" / "place")
    for path in (tmp_path / "other").rglob("*"):
        os.utime(path, (1, 1))
    assert task_fingerprint(tmp_path / "one", key) == task_fingerprint(tmp_path / "other", key)
    loaded = get_task(key).load(get_task(key).find(tmp_path / "one"))
    assert fingerprint(replace(loaded, samples=loaded.samples[::-1])) == fingerprint(loaded)


def test_any_data_change_that_can_change_a_score_changes_the_fingerprint(tmp_path: Path) -> None:
    folder = build_all(tmp_path, ["vesus"]) / "VESUS"
    file = folder / "audio_emotion_dataset.json"
    whole = file.read_text()
    prints = {task_fingerprint(tmp_path, "vesus")}
    changes: tuple[dict[str, object], ...] = (
        {"question": "Which emotion?"}, {"choice_a": "Fearful"}, {"answer_gt": "C", "emotion_label": "sad"},
        {"person_id": 7}, {"uniq_id": "first"}, {"path": "wav/2_sad.wav", "uniq_id": "first"},
    )  # fmt: skip
    for change in changes:
        file.write_text(whole)
        edit_rows(file, lambda rows, change=change: rows[0].update(change))
        prints.add(task_fingerprint(tmp_path, "vesus"))
    assert len(prints) == 1 + len(changes)


def test_a_changed_clip_changes_only_the_hash_of_the_samples_that_use_it(tmp_path: Path) -> None:
    folder = build_all(tmp_path, ["vesus"]) / "VESUS"
    loaded = get_task("vesus").load(folder)
    clip = folder / "wav" / "1_happy.wav"
    (sample_id,) = (sample.id for sample in loaded.samples if clip in sample.clips)
    before, seen = clip_hashes(loaded.samples), set()
    whole = clip.read_bytes()
    middle = whole[: len(whole) // 2] + b"\x7f" + whole[len(whole) // 2 + 1 :]
    for spoilt in (b"RIFX" + whole[4:], middle, whole[:-1] + b"\x7f", whole + b"\0"):
        clip.write_bytes(spoilt)
        after = clip_hashes(loaded.samples)
        assert {id_ for id_ in after if after[id_] != before[id_]} == {sample_id}
        seen.add(after[sample_id])
    assert len(seen) == 4
    assert task_fingerprint(tmp_path, "vesus") == fingerprint(loaded)  # the run keeps its identity


def test_the_hash_of_a_long_clip_changes_with_eight_seconds_of_noise_anywhere(tmp_path: Path) -> None:
    clip, rate = tmp_path / "long.wav", 16_000
    sample = Sample("a", (clip,), "?", "A", "here")
    silence = np.zeros(300 * rate, "int16")
    soundfile.write(clip, silence, rate)
    (before,) = clip_hashes([sample]).values()
    for second in range(2, 290, 37):
        noisy = silence.copy()
        noisy[second * rate : (second + 8) * rate] = 1
        soundfile.write(clip, noisy, rate)
        (after,) = clip_hashes([sample]).values()
        assert not same(after, before)
        assert by_rule_1(after) == by_rule_1(before)  # rule 1 read only the ends


def test_a_clip_removed_after_loading_is_a_data_error(tmp_path: Path) -> None:
    folder = build_all(tmp_path, ["vesus"]) / "VESUS"
    loaded = get_task("vesus").load(folder)
    (folder / "wav" / "1_happy.wav").unlink()
    with pytest.raises(DataError, match=r"1_happy\.wav cannot be read"):
        clip_hashes(loaded.samples)


# The manifest of a data root -----------------------------------------------------------------------------------------


def test_without_a_manifest_the_sample_counts_of_the_published_table_are_expected(tmp_path: Path) -> None:
    manifest = read_manifest(tmp_path)
    assert manifest.expected(get_task("tau")) == Expected(1145, (90.0, 210.0))
    assert (manifest.licence, manifest.file) == ("CC-BY-NC-4.0", None)


def test_a_manifest_in_the_data_root_is_found_from_the_folder_of_a_task(tmp_path: Path) -> None:
    tasks = {"tau": {"count": 10, "min_seconds": 90.5, "max_seconds": 119}}
    file = write_json(tmp_path / "audiomarathon.json", {"name": "mini", "licence": "CC0-1.0", "tasks": tasks})
    for place in (tmp_path, tmp_path / "TAU", tmp_path / "data" / "TAU"):
        place.mkdir(parents=True, exist_ok=True)
        manifest = read_manifest(place)
        assert (manifest.name, manifest.licence, manifest.file) == ("mini", "CC0-1.0", file)
        assert manifest.expected(get_task("tau")) == Expected(10, (90.5, 119.0))
        assert manifest.expected(get_task("vox")).count == 1614


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([], "expected an object"),
        ({"tasks": []}, "expected an object"),
        ({"tasks": {"tau": 3}}, "'tau' needs .*numbers"),
        ({"tasks": {"tau": {"count": 3}}}, "'tau' needs .*numbers"),
        ({"tasks": {"tau": {"count": 3, "min_seconds": "x", "max_seconds": 2}}}, "'tau' needs .*numbers"),
        ({"tasks": {"tau": {"count": -3, "min_seconds": 1, "max_seconds": 2}}}, "min_seconds <= max_seconds"),
        ({"tasks": {"tau": {"count": 3, "min_seconds": 3, "max_seconds": 2}}}, "min_seconds <= max_seconds"),
    ],
)
def test_a_malformed_manifest_is_refused(content: object, reason: str, tmp_path: Path) -> None:
    write_json(tmp_path / "audiomarathon.json", content)
    with pytest.raises(DataError, match=reason):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("name", "warned"),
    [("TAU_DATA", True), ("TUA_DATA_PATH", True), ("tau_data_path", True), ("GTZAN_DATA_PATH", False)],
)
def test_an_env_var_named_almost_like_the_data_path_of_a_task_warns(
    name: str, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "")  # an empty variable counts too
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(DataError):
            task_folder(get_task("tau"), tmp_path, {})
    wanted = [f"unknown env var {name} is ignored (did you mean 'TAU_DATA_PATH'?)"] if warned else []
    assert [str(warning.message) for warning in told] == wanted

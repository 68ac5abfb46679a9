"""X-ARES' tars: their index, and the clips, classes and clusters that a task reads."""

from __future__ import annotations

import os
import random
import re
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from xares_tars import clips, write_tar

from audiomarathon.errors import DataError, MissingDataError, SettingsError
from audiomarathon.wings.encoders.xares.tars import read_tar
from audiomarathon.wings.encoders.xares.task import EncoderTask
from audiomarathon.wings.encoders.xares.tasks import named

EMOTIONS = ("H", "S", "A", "F", "D", "N")


def task_of(name: str, **changes: Any) -> EncoderTask:
    return replace(named([name])[0], **changes)


def write_cremad(root: Path, per_class: int = 4) -> Path:
    for part in ("train", "valid", "test"):
        rows = [(f"{1000 + n}_{part}_{e}", {"label": e}) for n in range(per_class) for e in EMOTIONS]
        half = len(rows) // 2
        write_tar(root / "cremad" / f"wds-audio-{part}-000001.tar", clips(rows[half:]))
        write_tar(root / "cremad" / f"wds-audio-{part}-000000.tar", clips(rows[:half]))
    return root


def with_more(root: Path, rows: list[tuple[str, Any]]) -> None:
    """Write CREMA-D with a third tar of test clips."""
    write_tar(write_cremad(root) / "cremad" / "wds-audio-test-000002.tar", clips(rows))


def test_the_index_of_a_tar_gives_the_clip_bytes_that_python_tarfile_reads(tmp_path: Path) -> None:
    rows = [(f"a/{'é' * 60}{number}", {"n": number}) for number in range(20)]  # long names: extended headers
    others = [("a/readme", b"x"), ("a/.hidden.json", b"{"), ("a/x.txt", b"y"), ("a/1.16k.wav", b"z")]
    tar = write_tar(tmp_path / "x.tar", [*clips(rows, "OGG"), *others])
    entries, bad = read_tar(tar)
    assert bad == []
    assert [(entry.key, entry.meta) for entry in entries] == rows
    with tarfile.open(tar) as opened:
        for entry in entries:
            assert entry.audio.read_bytes() == opened.extractfile(entry.audio.name).read() == entry.key.encode()
            assert entry.audio.stat().st_size == entry.audio.size


@pytest.mark.parametrize(
    ("glob", "kept", "absent"),
    [("wds-audio-test-00000{0..1}.tar", "wds-audio-test-000000.tar", "wds-audio-test-000001.tar"),
     ("wds-audio-test-*.tar", "wds-audio-test-00000-of-00002.tar", "wds-audio-test-00001-of-00002.tar")],
)  # fmt: skip
def test_missing_tars_of_a_numbered_series_are_named(glob: str, kept: str, absent: str, tmp_path: Path) -> None:
    folder = write_cremad(tmp_path) / "cremad"
    (folder / "wds-audio-test-000000.tar").rename(folder / kept)
    (folder / "wds-audio-test-000001.tar").unlink()
    task = task_of("cremad")
    with pytest.raises(DataError, match=absent):
        replace(task, globs={**task.globs, "test": glob}).read(tmp_path)


def _link(kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo("linked.wav")
    member.type, member.linkname = kind, "/etc/passwd"
    return member


ODD: dict[str, tuple[list[tuple[str | tarfile.TarInfo, bytes]], str]] = {
    "second audio": ([("a.wav", b"2"), ("a.flac", b"2")], "'a' has a second"),
    "second json": ([("a.json", b'{"n": 2}')], "'a' has a second json"),
    "no json": ([("b.wav", b"x")], "'b' has audio but no JSON"),
    "no audio": ([("b.json", b"{}"), ("b.16k.wav", b"x")], "'b' has JSON but no audio"),
    "not json": ([("b.wav", b"x"), ("b.json", b"{")], "'b.json' is not JSON"),
    "null": ([("b.wav", b"x"), ("b.json", b"null")], "'b.json' is not JSON"),
    "not text": ([("b.wav", b"x"), ("b.json", b"\xff\xfe\x00")], "'b.json' is not JSON"),
    "field twice": ([("b.wav", b"x"), ("b.json", b'{"n": 1, "n": 2}')], "'b.json' is not JSON .*duplicate field 'n'"),
    "too large": ([("b.wav", b"x"), ("b.json", b"[" + b" " * (16 << 20) + b"]")], "allowed: up to 16,777,216"),
    "deep": ([("b.wav", b"x"), ("b.json", b"[" * 100_000)], "'b.json' is not JSON"),
    "absolute": ([("/b.wav", b"x"), ("/b.json", b"{}")], "'/b.wav' is not allowed"),
    "above": ([("../b.wav", b"x"), ("../b.json", b"{}")], "'../b.wav' is not allowed"),
    "not utf-8": ([("\udcff.wav", b"x"), ("\udcff.json", b"{}")], "not UTF-8"),
    "link": ([(_link(tarfile.SYMTYPE), b"")], "'linked.wav' is not a plain file"),
    "hard link": ([(_link(tarfile.LNKTYPE), b"")], "'linked.wav' is not a plain file"),
}


@pytest.mark.parametrize("name", ODD)
def test_unusable_members_of_a_tar_are_bad_rows_and_the_other_members_stay(name: str, tmp_path: Path) -> None:
    members, reason = ODD[name]
    entries, bad = read_tar(write_tar(tmp_path / "x.tar", [*clips([("a", {"n": 1})], "wav"), *members]))
    assert [(entry.key, entry.meta, entry.audio.read_bytes()) for entry in entries] == [("a", {"n": 1}, b"a")]
    assert re.search(reason, bad[0].reason)
    assert all(row.row >= 3 and "\n" not in str(row) for row in bad)


def test_a_damaged_or_truncated_tar_loses_only_clips_after_the_damage_and_gives_a_bad_row(tmp_path: Path) -> None:
    rows = [(f"k{number}", {"n": number}) for number in range(5)]
    whole = write_tar(tmp_path / "x.tar", clips(rows)).read_bytes()
    blocks = 5 * 2 * 1024
    for length in (0, 100, 512, 700, 1024, 3000, blocks - 600, blocks):
        (tmp_path / "x.tar").write_bytes(whole[:length])
        entries, bad = read_tar(tmp_path / "x.tar")
        assert [entry.key for entry in entries] == [key for key, _ in rows][: length // 2048 + (length % 2048 > 1536)]
        assert bad, length
    damaged = bytearray(whole)
    damaged[4 * 1024 : 4 * 1024 + 300] = random.Random(0).randbytes(300)  # the header of k2.flac
    (tmp_path / "x.tar").write_bytes(damaged)
    entries, bad = read_tar(tmp_path / "x.tar")
    assert [entry.key for entry in entries] == ["k0", "k1"]
    assert "after 4 members" in bad[-1].reason
    (tmp_path / "x.tar").write_bytes(b"no tar at all" * 100)
    assert read_tar(tmp_path / "x.tar")[1]
    assert read_tar(tmp_path / "missing.tar")[1]


@pytest.mark.parametrize(
    ("size", "record", "reason"),
    [(3 << 30, b"", "more than 65,536 bytes in one header"), (14, b"14 size=-1536\n", "a negative size")],
)
def test_a_tar_header_with_a_huge_or_negative_size_is_refused(
    tmp_path: Path, size: int, record: bytes, reason: str
) -> None:
    """A tar of 3 GB can be a sparse file, and a negative size makes a reader read the same header forever."""
    header, file = tarfile.TarInfo("PaxHeader"), tarfile.TarInfo("a.json")
    header.type, header.size = tarfile.XHDTYPE, size
    blocks = header.tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0") + file.tobuf(tarfile.USTAR_FORMAT)
    with (tmp_path / "x.tar").open("wb") as stream:
        stream.write(blocks + bytes(1024))
        stream.truncate(max(2048, size + 1024))
    entries, bad = read_tar(tmp_path / "x.tar")
    assert entries == []
    assert len(bad) == 1
    assert reason in bad[0].reason


def test_a_fifo_in_place_of_a_tar_is_a_bad_row_and_is_not_waited_for(tmp_path: Path) -> None:
    write_cremad(tmp_path)
    os.mkfifo(tmp_path / "cremad" / "wds-audio-test-000002.tar")
    (bad,) = task_of("cremad").read(tmp_path).bad_rows
    assert "a FIFO, not a plain file" in bad.reason


def test_a_clip_in_two_tars_of_a_split_part_counts_once_unless_its_content_differs(tmp_path: Path) -> None:
    folder = write_cremad(tmp_path) / "cremad"
    (folder / "wds-audio-test-000002.tar").write_bytes((folder / "wds-audio-test-000000.tar").read_bytes())
    dataset = task_of("cremad").read(tmp_path)
    assert (len(dataset.clips), len(dataset.bad_rows)) == (72, 12)
    assert "is also in wds-audio-test-000000.tar" in dataset.bad_rows[0].reason
    with_more(tmp_path, [("1000_test_H", {"label": "S"})])
    dataset = task_of("cremad").read(tmp_path)
    assert len({clip.id for clip in dataset.clips}) == len(dataset.clips) == 73
    assert dataset.clips[-1].id == "test/wds-audio-test-000002/1000_test_H"


def test_clips_of_cremad_are_read_with_label_and_split_part_and_the_actor_as_cluster(tmp_path: Path) -> None:
    dataset = task_of("cremad").read(write_cremad(tmp_path))
    assert dataset.folder == tmp_path / "cremad"
    assert (dataset.classes, dataset.clustered, dataset.bad_rows) == (tuple(sorted(EMOTIONS)), True, ())
    assert [clip.part for clip in dataset.clips] == ["train"] * 24 + ["valid"] * 24 + ["test"] * 24
    first = dataset.clips[0]
    assert (first.id, first.labels, first.cluster) == ("train/1000_train_H", ("H",), "1000")
    assert first.audio.read_bytes() == b"1000_train_H"
    assert task_of("cremad").read(tmp_path / "cremad").clips == dataset.clips


def test_a_clip_whose_key_lacks_the_cluster_pattern_is_a_cluster_of_its_own(tmp_path: Path) -> None:
    with_more(tmp_path, [("odd", {"label": "H"})])
    dataset = task_of("cremad").read(tmp_path)
    assert not dataset.clustered
    assert (dataset.clips[-1].cluster, dataset.clips[0].cluster) == ("test/odd", "1000")


@pytest.mark.parametrize(
    ("task", "key", "meta", "cluster"),
    [
        ("asvspoof2015", "x/T12_1000001", {"binary_spoof": "human"}, "T12"),
        ("asvspoof2015", "1000001", {"binary_spoof": "spoof", "speaker": 7}, "7"),
        ("esc50", "1-100032-A-0", {"label": 0}, "100032"),
        ("fluentspeechcommands", "uuid", {"transcription": "Stop", "speakerId": "s1"}, "s1"),
        ("freemusicarchive", "000/000002", {"genre": "Pop", "artist": "Z"}, "Z"),
        ("librispeechmalefemale", "1089-134686-0000", {"gender": "M"}, "1089"),
        ("ravdess", "03-01-05-01-02-01-12", {"emotion": "calm"}, "12"),
        ("speechcommandsv1", "bed_0a7c2a8d_nohash_0", {"labels": "bed"}, "0a7c2a8d"),
        ("urbansound8k", "100032-3-0-0", {"soundevent": "siren"}, "100032"),
        ("vocalsound", "f0003_0_cough", {"label": "cough"}, "f0003"),
        ("voxceleb1", "id10001/1zcIwhmdeo4/00001", {"speakerid": "id10001"}, "1zcIwhmdeo4"),
        ("voxlingua33", "a_B-c__U__S0---0010", {"labels": "uk"}, "a_B-c"),
        ("gtzan_genre", "blues.00001", {"genre": "blues"}, ""),
    ],
)
def test_cluster_of_a_clip_is_read_from_key_or_metadata(
    task: str, key: str, meta: dict[str, Any], cluster: str
) -> None:
    assert task_of(task).described(key, meta)[1] == cluster


@pytest.mark.parametrize(
    ("task", "meta", "labels"),
    [
        ("esc50", {"label": 7}, ("7",)),
        ("libricount", {"num_speakers": 10.0}, ("10",)),
        ("fsd50k", {"soundevent": "Bark;Animal;Bark"}, ("Animal", "Bark")),
        ("librispeechmalefemale", {"gender": "female"}, ("F",)),
        ("subway_broadcast", {"broadcasting": True}, ("1",)),
        ("cremad", {"label": "X"}, None),
        ("cremad", {"Label": "H"}, None),
        ("cremad", ["H"], None),
        ("voxceleb1", {"speakerid": None}, None),
        ("voxceleb1", {"speakerid": ["id1"]}, None),
        ("esc50", {"label": 50}, None),
        *(("librispeech", odd, None) for odd in ({}, {"trans": ""}, {"trans": 3}, [], "text")),
        *(("clotho", odd, None) for odd in ({}, {"caption_1": ""}, {"caption_1": 3}, ["a"])),
    ],
)
def test_labels_of_a_clip_are_read_from_metadata_or_refused(
    task: str, meta: Any, labels: tuple[str, ...] | None
) -> None:
    if labels is None:
        with pytest.raises(ValueError, match="'k' has no usable label"):
            task_of(task).described("k", meta)
    else:
        assert task_of(task).described("k", meta)[0] == labels


def test_an_unknown_label_is_a_bad_row_and_a_missing_class_is_refused(tmp_path: Path) -> None:
    with_more(tmp_path, [("1001_x", {"label": "X"})])
    dataset = task_of("cremad").read(tmp_path)
    assert [(row.row, "'X'" in row.reason) for row in dataset.bad_rows] == [(1, True)]
    assert (len(dataset.clips), dataset.rows) == (72, 73)
    seven = task_of("cremad", classes=frozenset((*EMOTIONS, "Z")))
    with pytest.raises(DataError, match=r"6 classes .* must be 7; missing: Z"):
        seven.read(tmp_path)
    assert "Z" in replace(seven, exact=False).read(tmp_path).classes


def test_the_error_on_a_wrong_number_of_classes_names_the_rarest_classes(tmp_path: Path) -> None:
    with_more(tmp_path, [("1001_x", {"label": "H "})])
    for classes, mini in ((6, False), (6, True), (8, False)):  # a small variant may lack classes, never have more
        with pytest.raises(DataError, match=rf"7 classes .* must be {classes}; rarest: \['H '"):
            task_of("cremad", classes=classes).read(tmp_path, mini=mini)
    assert len(task_of("cremad", classes=8).read(tmp_path, mini=True).classes) == 7


def test_the_error_on_missing_tars_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"no wds-audio-train\*\.tar, .*next: audiomarathon encoder download"):
        task_of("cremad").read(tmp_path)
    with pytest.raises(MissingDataError, match="liveenv: private task, no public data"):
        task_of("liveenv").read(tmp_path)
    write_tar(tmp_path / "esc50" / "wds-audio-fold-1-000000.tar", clips([("1-1-A-0", {"label": 0})]))
    with pytest.raises(MissingDataError, match=r"no wds-audio-fold-2-\*\.tar"):
        task_of("esc50").read(tmp_path)
    write_tar(write_cremad(tmp_path) / "cremad" / "wds-audio-valid-000000.tar", [("a.wav", b"")])
    (tmp_path / "cremad" / "wds-audio-valid-000001.tar").write_bytes(b"")
    with pytest.raises(DataError, match=r"no usable clip in .*; first of 2 bad rows"):
        task_of("cremad").read(tmp_path)


def test_a_smaller_clip_limit_selects_a_class_balanced_subset_of_a_larger_limit(tmp_path: Path) -> None:
    task, root = task_of("cremad"), write_cremad(tmp_path)
    whole, before = task.read(root), set[str]()
    for limit in (1, 6, 9, 12, 20, 24, 100):
        dataset = task.read(root, limit=limit)
        assert dataset.classes == whole.classes
        assert list(dataset.clips) == [clip for clip in whole.clips if clip in set(dataset.clips)]
        assert before <= (before := {clip.id for clip in dataset.clips})
        for part in ("train", "valid", "test"):
            counts = Counter(clip.labels for clip in dataset.clips if clip.part == part)
            assert sum(counts.values()) == min(24, max(limit, 6))
            assert max(counts.values()) - min(counts.values()) <= 1
            assert len(counts) == 6
    with pytest.raises(SettingsError, match="limit -1"):
        task.read(root, limit=-1)


def test_a_sample_limit_keeps_every_tag_of_a_multi_label_task(tmp_path: Path) -> None:
    rng, tags = random.Random(1), [f"t{number}" for number in range(12)]
    for part in ("train", "validation", "eval"):
        rows = [(f"{n}", {"soundevent": ";".join({*rng.sample(tags, 3), tags[n % 12]})}) for n in range(60)]
        write_tar(tmp_path / "fsd50k" / f"fsd50k_{part}0.tar", clips(rows))
    dataset = task_of("fsd50k", classes=12).read(tmp_path, limit=1)
    for part in ("train", "valid", "test"):
        assert {label for clip in dataset.clips if clip.part == part for label in clip.labels} == set(tags)
    assert len(dataset.clips) < 60


def test_split_parts_with_equal_file_patterns_become_one_part(tmp_path: Path) -> None:
    kaggle, subway, lingua = task_of("fsdkaggle2018"), task_of("subway_broadcast"), task_of("voxlingua33")
    assert [kaggle.part(role) for role in ("train", "valid", "test")] == ["train", "test", "test"]
    assert ([*kaggle.parts], [*subway.parts]) == (["train", "test"], ["test"])
    assert "as_published only" in subway.note
    assert kaggle.note == ""
    for shard, count in (("2k_0000000", 3), ("2k_0000001", 2), ("8k_0000000", 4)):
        rows = [(f"v{n}__U__{shard}", {"labels": "uk"}) for n in range(count)]
        write_tar(tmp_path / "voxlingua33" / f"train_subset_{shard}.tar", clips(rows))
    write_tar(tmp_path / "voxlingua33" / "dev-0.tar", clips([("w__1", {"labels": "zh"})]))
    small = replace(lingua, exact=False)
    assert [len(small.read(tmp_path, mini=mini).clips) for mini in (False, True)] == [10, 6]

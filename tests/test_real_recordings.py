from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import real_recordings as real
import soundfile

from audiomarathon.audio.decode import decode, probe
from audiomarathon.benchmarks.registry import get_task

ALL = [path for folder in ("speech", "music", "ambience") for path in real.recordings(folder)]


def power(samples: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(samples))))


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_every_real_recording_decodes_to_the_length_in_its_header(path: Path) -> None:
    decoded, info = decode(path, 16_000), probe(path)
    assert info.frames == soundfile.info(path).frames
    assert len(decoded) == np.ceil(info.frames * 16_000 / info.sampling_rate)
    assert power(decoded) > 1e-4


@pytest.mark.parametrize(
    ("name", "rate", "channels", "options"),
    [
        ("a.wav", 11_025, 6, {}),
        ("a.wav", 8_000, 1, {"subtype": "ULAW"}),
        ("a.wav", 22_050, 1, {}),
        ("a.wav", 44_100, 2, {"subtype": "DOUBLE"}),
        ("a.flac", 96_000, 2, {"subtype": "PCM_24"}),
        ("a.opus", 48_000, 2, {"format": "OGG", "subtype": "OPUS"}),
        ("a.ogg", 37_800, 3, {}),
        ("a.mp3", 32_000, 1, {}),
        ("a.mp3", 44_100, 2, {}),
    ],
)
def test_real_speech_stored_in_other_rates_channels_or_codecs_decodes_to_the_same_sound(
    tmp_path: Path, name: str, rate: int, channels: int, options: dict[str, str]
) -> None:
    original = real.recordings("speech")[0]
    columns = np.repeat(decode(original, rate)[:, None], channels, axis=1)
    with soundfile.SoundFile(tmp_path / name, "w", rate, channels, **options) as file:
        file.write(columns)
    assert probe(tmp_path / name).seconds == pytest.approx(probe(original).seconds, abs=1 / rate)
    expected, decoded = decode(original, 8_000), decode(tmp_path / name, 8_000)
    assert len(decoded) == pytest.approx(len(expected), abs=1)
    length = min(len(expected), len(decoded))
    assert np.corrcoef(expected[:length], decoded[:length])[0, 1] > 0.98


@pytest.mark.parametrize(
    ("key", "build", "parts"),
    [
        ("librispeech", real.build_librispeech, lambda: [*real.chapters(), real.recordings("speech")]),
        ("gtzan", real.build_gtzan, lambda: [real.recordings("music")]),
        ("tau", real.build_tau, lambda: [real.recordings("ambience")]),
    ],
)
def test_clips_joined_from_real_recordings_load_as_their_task_with_the_summed_length(
    tmp_path: Path, key: str, build: Callable[[Path], Path], parts: Callable[[], list[list[Path]]]
) -> None:
    build(tmp_path / "data")
    task = get_task(key)
    loaded = task.load(task.find(tmp_path))
    assert not loaded.bad_rows
    if key == "librispeech":
        assert [sample.cluster for sample in loaded.samples] == ["1", "1", "2"]
    for sample, paths in zip(loaded.samples, parts(), strict=True):
        (clip,) = sample.clips
        expected = real.joined_seconds(paths)
        assert len(set(paths)) == len(paths)
        assert expected >= (25 if sample.cluster == "2" else 90)
        lengths = [probe(clip).seconds, len(decode(clip, 16_000)) / 16_000]
        assert lengths == pytest.approx([expected] * 2, abs=len(paths) / 16_000)

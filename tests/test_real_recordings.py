from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import real_recordings as real
import soundfile

from audiomarathon.audio.decode import decode, probe
from audiomarathon.benchmarks.registry import get_task
from audiomarathon.metrics.wer import transcript_errors

ALL = [path for folder in ("speech", "music", "ambience") for path in real.recordings(folder)]


def power(samples: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(samples))))


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_every_recording_decodes_to_the_length_its_header_says(path: Path) -> None:
    decoded, info = decode(path, 16_000), probe(path)
    assert info.frames == soundfile.info(path).frames
    assert len(decoded) == np.ceil(info.frames * 16_000 / info.sampling_rate)
    assert power(decoded) > 1e-4


def test_every_voice_prompt_decodes_to_twice_its_frames_and_none_is_there_twice() -> None:
    paths = [path for chapter in real.chapters() for path in chapter]
    for path in paths:
        decoded, info = decode(path, 16_000), probe(path)
        assert (info.sampling_rate, info.channels, info.frames) == (8_000, 1, soundfile.info(path).frames)
        assert len(decoded) == 2 * info.frames
        assert power(decoded) > 1e-4
    assert len({path.read_bytes() for path in paths}) == len(paths)


def test_there_are_both_mono_and_stereo_and_two_rates() -> None:
    infos = [probe(path) for path in ALL]
    assert {info.channels for info in infos} == {1, 2}
    assert {info.sampling_rate for info in infos} == {16_000, 44_100}


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
def test_speech_survives_odd_rates_channels_and_codecs(
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
def test_joined_clips_load_as_the_task_and_have_the_length_of_their_parts(
    tmp_path: Path, key: str, build: Callable[[Path], Path], parts: Callable[[], list[list[Path]]]
) -> None:
    build(tmp_path / "data")
    task = get_task(key)
    loaded = task.load(task.find(tmp_path))
    assert not loaded.bad_rows
    if key == "librispeech":
        assert [sample.cluster for sample in loaded.samples] == ["1", "1", "2"]
    for sample, paths in zip(loaded.samples, parts(), strict=True):
        assert len(set(paths)) == len(paths)
        (clip,) = sample.clips
        expected = real.joined_seconds(paths)
        assert expected >= (25 if sample.cluster == "2" else 90)
        assert probe(clip).seconds == pytest.approx(expected, abs=len(paths) / 16_000)
        assert len(decode(clip, 16_000)) / 16_000 == pytest.approx(expected, abs=len(paths) / 16_000)


def test_a_transcript_has_no_error_against_itself_in_librispeech_spelling() -> None:
    for text in [*real.sentences().values(), *real.prompts().values()]:
        spoken = text.replace("...", "")  # of three dots Whisper's normaliser leaves one, as a word
        found = transcript_errors(spoken, real.librispeech_text(text))
        assert found.words > 0
        assert found.errors == transcript_errors(text, text).errors == 0, text


def test_known_edits_of_a_real_transcript_are_counted() -> None:
    """The first three sentences, 22 + 8 + 14 words: mister = Mr., wasn't = was not, hyphens and case are nothing."""
    reference = " ".join(list(real.sentences().values())[:3])
    hypothesis = (
        "And Mr. John Dashwood had then leisures to consider how much there might be prudently in his powers to do for "
        "them. He wasn't an ill-disposed young man, unless to be rather cold-hearted and to be rather selfish is "
        "ill-disposed."
    )
    found = transcript_errors(reference, hypothesis)
    # leisure -> leisures, power -> powers; "to be" inserted before "rather selfish" and deleted after "is".
    assert (found.substitutions, found.insertions, found.deletions) == (2, 2, 2)
    assert found.words == 22 + 8 + 14
    assert not found.insertion_loop

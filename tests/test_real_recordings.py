from pathlib import Path

import numpy as np
import pytest
import real_recordings as real
import soundfile

from audiomarathon.audio import decode, probe
from audiomarathon.metrics.wer import transcript_errors
from audiomarathon.tasks.registry import get_task

ALL = [path for folder in ("speech", "music", "ambience") for path in real.recordings(folder)]


def power(samples: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(samples))))


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_every_recording_decodes_to_the_length_its_header_says(path: Path) -> None:
    decoded, info = decode(path, 16_000), probe(path)
    assert info.frames == soundfile.info(path).frames
    assert len(decoded) == np.ceil(info.frames * 16_000 / info.sampling_rate)
    assert power(decoded) > 1e-4


def test_there_are_both_mono_and_stereo_and_several_rates() -> None:
    infos = [probe(path) for path in ALL]
    assert {info.channels for info in infos} == {1, 2}
    assert {info.sampling_rate for info in infos} == {16_000, 22_050, 44_100}


@pytest.mark.parametrize(
    ("name", "rate", "channels", "options"),
    [
        ("a.wav", 11_025, 6, {}),
        ("a.wav", 8_000, 1, {"subtype": "ULAW"}),
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
    original = real.speech(["LJ001-0002"])[0]
    columns = np.repeat(decode(original, rate)[:, None], channels, axis=1)
    with soundfile.SoundFile(tmp_path / name, "w", rate, channels, **options) as file:
        file.write(columns)
    assert probe(tmp_path / name).seconds == pytest.approx(probe(original).seconds, abs=1 / rate)
    expected, decoded = decode(original, 8_000), decode(tmp_path / name, 8_000)
    assert len(decoded) == pytest.approx(len(expected), abs=1)
    length = min(len(expected), len(decoded))
    assert np.corrcoef(expected[:length], decoded[:length])[0, 1] > 0.98


@pytest.mark.parametrize(
    ("key", "build", "sources"),
    [
        ("librispeech", real.build_librispeech, [real.speech(names) for names in real.CHAPTERS]),
        ("gtzan", real.build_gtzan, [real.recordings("music")]),
        ("tau", real.build_tau, [real.recordings("ambience")]),
    ],
)
def test_joined_clips_load_as_the_task_and_have_the_length_of_their_parts(
    tmp_path: Path, key: str, build: object, sources: list[list[Path]]
) -> None:
    build(tmp_path / "data")
    task = get_task(key)
    loaded = task.load(task.find(tmp_path))
    assert not loaded.bad_rows
    assert len(loaded.samples) == len(sources)
    for sample, paths in zip(loaded.samples, sources, strict=True):
        assert len(set(paths)) == len(paths)
        (clip,) = sample.clips
        expected = real.joined_seconds(paths)
        assert expected >= 90
        assert probe(clip).seconds == pytest.approx(expected, abs=len(paths) / 16_000)
        assert len(decode(clip, 16_000)) / 16_000 == pytest.approx(expected, abs=len(paths) / 16_000)


def test_both_speakers_load(tmp_path: Path) -> None:
    task = get_task("librispeech")
    real.build_librispeech(tmp_path, second_speaker=True)
    assert [sample.cluster for sample in task.load(task.find(tmp_path)).samples] == ["1", "1", "2"]


@pytest.mark.parametrize(("name", "text"), real.transcripts().items(), ids=real.transcripts())
def test_a_transcript_has_no_error_against_itself_in_librispeech_spelling(name: str, text: str) -> None:
    found = transcript_errors(text, text)
    assert found.words > 0
    assert found.errors == 0
    if "(" not in text and "i.e." not in text:  # Whisper's normaliser drops brackets with what is in them
        assert transcript_errors(text, real.librispeech_text(text)).errors == 0


def test_known_edits_of_a_real_transcript_are_counted() -> None:
    """0002 and 0006 to 0008, 4 + 14 + 16 + 4 words after normalisation ("forty-two" is 42, "fourteen fifty-five" 1455).

    in being comparatively modern. And it is worth mention in passing that, as an example of fine typography, the
    earliest book printed with movable types, the Gutenberg, or "42 line Bible" of about 1455, has never been surpassed.
    """
    texts = real.transcripts()
    reference = " ".join(texts[f"LJ001-{number}"] for number in ("0002", "0006", "0007", "0008"))
    hypothesis = (
        "In being comparatively modern and it's worth mentioning in passing that as an example of fine typography "
        "the earliest of books printed with movable types, the Gutenberg or 42-line Bible of about 1455 "
        "has been surpassed."
    )
    found = transcript_errors(reference, hypothesis)
    # mention -> mentioning, book -> books; "of" inserted; "never" deleted; it's = it is.
    assert (found.substitutions, found.insertions, found.deletions) == (2, 1, 1)
    assert found.words == 4 + 14 + 16 + 4
    assert not found.insertion_loop

import contextlib
import functools
import io
import os
import pickle
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile
from builders import counting_opens
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from audiomarathon.audio.decode import ClipInfo, as_pcm, decode, probe
from audiomarathon.errors import AudioError

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@functools.cache
def sweep(seconds: float, rate: int, channels: int = 1) -> np.ndarray:
    """A rising tone with a little noise, different in each channel; shape (frames, channels)."""
    time = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(0).standard_normal((len(time), channels))
    tones = [np.sin(2 * np.pi * (200 + 100 * channel + 50 * time) * time) for channel in range(channels)]
    samples = (0.3 * np.stack(tones, axis=1) + 0.02 * noise).astype(np.float32)
    samples.flags.writeable = False
    return samples


def write(path: Path, samples: np.ndarray, rate: int, **options: object) -> Path:
    soundfile.write(path, samples, rate, **options)
    return path


def cut(path: Path, keep: float) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    return path


def patch(path: Path, offset: int, data: bytes) -> Path:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(content)
    return path


def without_xing_header(path: Path) -> Path:
    """Drop an MP3's first frame, which states its length."""
    data = path.read_bytes()
    tag = max(data.find(b"Xing"), data.find(b"Info"))  # "Info" at a constant bit rate
    second_frame = data.index(data[:2], tag)
    path.write_bytes(data[second_frame:])
    return path


# --- decoding ---------------------------------------------------------------------------------------------------------


def test_a_wav_decoded_at_its_native_rate_keeps_every_sample_and_averages_channels(tmp_path: Path) -> None:
    for rows, expected in (([0.0, 0.5, -0.25, 1.0, -1.0], [0.0, 0.5, -0.25, 1.0, -1.0]),
                           ([[0.5, -0.25], [1.0, 0.0]], [0.125, 0.5]),
                           ([[0.25, 0.75, -0.25], [0.75, 0.0, 0.0]], [0.25, 0.25])):  # fmt: skip
        decoded = decode(write(tmp_path / "a.wav", np.array(rows, np.float32), 8_000, subtype="FLOAT"), 8_000)
        assert decoded.dtype == np.float32
        assert decoded.tolist() == expected


def test_resampling_keeps_an_audible_tone_and_removes_one_above_the_nyquist_limit(tmp_path: Path) -> None:
    time = np.arange(44_100) / 44_100
    kept, dropped = np.sin(2 * np.pi * 1_000 * time), np.sin(2 * np.pi * 12_000 * time)
    decoded = decode(write(tmp_path / "a.wav", 0.4 * kept + 0.4 * dropped, 44_100), 16_000)
    expected = 0.4 * np.sin(2 * np.pi * 1_000 * np.arange(16_000) / 16_000)
    np.testing.assert_allclose(decoded[500:-500], expected[500:-500], atol=1e-3)


OPUS = {"format": "OGG", "subtype": "OPUS"}
FORMATS = [("wav", {}), ("wav", {"subtype": "FLOAT"}), ("wav", {"subtype": "PCM_24"}), ("flac", {}), ("mp3", {})]
FORMATS += [("ogg", {}), ("ogg", OPUS)]


@pytest.mark.parametrize(("ending", "options"), FORMATS)
@pytest.mark.parametrize(("rate", "channels"), [(16_000, 2), (48_000, 1)])
def test_decode_gives_the_same_samples_as_librosa(
    tmp_path: Path, ending: str, options: dict[str, str], rate: int, channels: int
) -> None:
    librosa = pytest.importorskip("librosa")
    path = write(tmp_path / f"a.{ending}", sweep(0.5, rate, channels), rate, **options)
    for wanted in (16_000, 44_100):
        np.testing.assert_array_equal(decode(path, wanted), librosa.load(path, sr=wanted)[0])


@same_folder
@given(
    rate=st.sampled_from([8_000, 11_025, 16_000, 22_050, 32_000, 44_100, 48_000, 96_000]),
    wanted=st.integers(4_000, 96_000),
    channels=st.integers(1, 8),
    frames=st.integers(1, 20_000),
)
def test_a_decoded_clip_has_the_duration_of_the_file_to_within_one_sample_at_any_rate(
    tmp_path: Path, rate: int, wanted: int, channels: int, frames: int
) -> None:
    path = write(tmp_path / "a.wav", np.full((frames, channels), 0.25, np.float32), rate)
    info = probe(path)
    assert (info.frames, info.sampling_rate, info.channels) == (frames, rate, channels)
    assert 0 <= len(decode(path, wanted)) - frames * wanted / rate < 1 + 1e-6


def test_decode_memory_depends_on_the_mono_output_and_not_on_the_source(tmp_path: Path) -> None:
    """One minute of 8 channels at 48 kHz is 92 MB of float32; the 16 kHz mono result is 4 MB."""
    path = tmp_path / "a.wav"
    with soundfile.SoundFile(path, "w", 48_000, 8, subtype="PCM_16") as file:
        for _ in range(6):
            file.write(np.zeros((480_000, 8), np.int16))
    tracemalloc.start()
    decoded = decode(path, 16_000)
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(decoded) == 60 * 16_000
    assert peak < 15_000_000


# --- probing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ending", "options"), FORMATS)
def test_probe_and_decode_agree_on_the_length_of_a_clip(tmp_path: Path, ending: str, options: dict[str, str]) -> None:
    path = write(tmp_path / f"a.{ending}", sweep(0.5, 48_000, 2), 48_000, **options)
    floats = options.get("subtype") in ("FLOAT", "DOUBLE")
    assert probe(path) == ClipInfo(0.5, 48_000, 2, 24_000, ending.upper(), floats)
    assert len(decode(path, 48_000)) == 24_000


def test_id3_tags_before_and_after_mp3_audio_do_not_change_the_decoded_samples(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp3", sweep(2.0, 44_100), 44_100)
    plain = decode(path, 16_000)
    id3v2 = b"ID3\x03\x00\x00" + bytes([0, 0, 8, 0]) + bytes(1024)
    path.write_bytes(id3v2 + path.read_bytes() + b"TAG" + b" " * 125)
    assert probe(path).frames == 88_200
    np.testing.assert_array_equal(decode(path, 16_000), plain)


def test_a_constant_rate_mp3_without_a_xing_header_is_probed_within_0_2_s(tmp_path: Path) -> None:
    path = tmp_path / "a.mp3"
    options = {"bitrate_mode": "CONSTANT", "compression_level": 0.6}
    without_xing_header(write(path, sweep(4.0, 44_100, 2), 44_100, **options))
    assert probe(path).seconds == pytest.approx(4.0, abs=0.2)
    assert len(decode(path, 16_000)) / 16_000 == pytest.approx(4.0, abs=0.2)


def test_a_variable_rate_mp3_without_a_xing_header_is_refused(tmp_path: Path) -> None:
    """libsndfile assumes the first frames' bit rate for all frames, so it silently drops silence after noise."""
    path = tmp_path / "a.mp3"
    noise = 0.2 * np.random.default_rng(0).standard_normal((44_100, 2))
    samples = np.concatenate([noise, np.zeros((5 * 44_100, 2))])
    without_xing_header(write(path, samples, 44_100, bitrate_mode="VARIABLE", compression_level=0.5))
    assert soundfile.info(path).duration < 4.8
    with pytest.raises(AudioError, match="without a Xing header"):
        decode(path, 16_000)


@pytest.mark.parametrize(("ending", "reason"), [("mp3", "joined from several files"), ("ogg", "chain of OGG streams")])
def test_audio_files_joined_end_to_end_are_refused(tmp_path: Path, ending: str, reason: str) -> None:
    """libsndfile reads only the first file."""
    path, second = (write(tmp_path / f"{n}.{ending}", sweep(n, 44_100), 44_100) for n in (2, 1))
    path.write_bytes(path.read_bytes() + second.read_bytes())
    assert len(soundfile.read(path)[0]) == 88_200
    assert_refused(path, reason)


@pytest.mark.parametrize("seconds", [0.01, 0.3])
@pytest.mark.parametrize(
    ("rate", "mode"),
    [(rate, "VARIABLE") for rate in (8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)]
    + [(rate, mode) for rate in (16_000, 44_100) for mode in ("CONSTANT", "AVERAGE")],
)
def test_an_mp3_of_any_rate_and_bitrate_mode_decodes_to_full_length(
    tmp_path: Path, rate: int, mode: str, seconds: float
) -> None:
    path = write(tmp_path / "a.mp3", sweep(seconds, rate), rate, bitrate_mode=mode, compression_level=0.5)
    assert probe(path).frames == len(decode(path, rate)) == round(seconds * rate)


# --- faults -----------------------------------------------------------------------------------------------------------


def assert_refused(path: Path, reason: str, also_by_probe: bool = True) -> None:
    with pytest.raises(AudioError, match=reason) as caught:
        decode(path, 16_000)
    assert caught.value.path == path
    assert str(path) in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # workers send errors by pickle
    if also_by_probe:
        with pytest.raises(AudioError, match=reason):
            probe(path)


def test_a_missing_file_a_folder_or_an_empty_file_is_refused_as_a_clip(tmp_path: Path) -> None:
    (empty := tmp_path / "empty.wav").touch()
    assert_refused(tmp_path / "none.wav", "does not exist")
    assert_refused(tmp_path, "is a folder")
    assert_refused(empty, "0 bytes")
    assert_refused(empty / "below.wav", "cannot be read")


def test_a_clip_without_read_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.wav", sweep(0.1, 16_000), 16_000)
    if os.geteuid() == 0:  # root reads everything

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied")

        def fail(*_: object) -> None:
            raise soundfile.LibsndfileError(2)  # system error

        monkeypatch.setattr(Path, "open", refuse)
        monkeypatch.setattr("audiomarathon.audio.decode._SequentialFile", fail)
    else:
        path.chmod(0)
    assert_refused(path, "permission denied")


@pytest.mark.parametrize("name", ["a.wav", "a.mp3", "a.raw", "a", "a.json"])
def test_a_text_file_is_refused_as_not_audio(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("RIFF" + "this is not audio " * 500)
    assert_refused(tmp_path / name, "not audio")


@pytest.mark.parametrize("keep", [0.5, 0.999])
@pytest.mark.parametrize(("ending", "options"), [*FORMATS, ("aiff", {})])
def test_a_truncated_clip_is_refused(tmp_path: Path, ending: str, options: dict[str, str], keep: float) -> None:
    path = cut(write(tmp_path / f"a.{ending}", sweep(0.5, 48_000, 2), 48_000, **options), keep)
    assert_refused(path, "truncated", also_by_probe=ending not in ("flac", "mp3"))  # their headers do not show it


def test_a_wav_that_lacks_only_its_last_sample_is_refused_as_truncated(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", sweep(1.0, 16_000), 16_000)
    path.write_bytes(path.read_bytes()[:-2])
    assert_refused(path, "truncated: the data chunk announces 32000 bytes, 31998 are there")


def test_a_flac_damaged_in_the_middle_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.flac", sweep(5.0, 16_000), 16_000)
    patch(path, path.stat().st_size // 2, bytes(2_000))
    assert_refused(path, "damaged or truncated", also_by_probe=False)


@pytest.mark.parametrize(
    ("ending", "subtype", "channels"),
    [("wav", "FLOAT", 1), ("wav", "FLOAT", 2), ("aiff", "DOUBLE", 2), ("au", "FLOAT", 1)],
)
def test_16_bit_integers_stored_as_floats_are_refused(tmp_path: Path, ending: str, subtype: str, channels: int) -> None:
    samples = 32_768 * sweep(1.0, 16_000) * np.array([1, -1])[:channels]  # two channels cancel each other
    path = write(tmp_path / f"a.{ending}", samples, 16_000, subtype=subtype)
    assert_refused(path, "samples far outside −1…1.* divide 16-bit samples by 32,768", also_by_probe=False)


@pytest.mark.parametrize("peak", [1.5, 4.0])
def test_a_sample_louder_than_full_scale_is_decoded_unchanged(tmp_path: Path, peak: float) -> None:
    samples = sweep(1.0, 16_000).copy()
    samples[5000] = peak
    assert decode(write(tmp_path / "a.wav", samples, 16_000, subtype="FLOAT"), 16_000)[5000] == peak


@pytest.mark.parametrize(("factor", "named"), [(1 / 32_768, "as if it was scaled twice"), (30, "above loud mixes")])
def test_a_clip_with_a_suspiciously_quiet_or_loud_peak_is_decoded_with_a_warning(
    tmp_path: Path, factor: float, named: str
) -> None:
    path = write(tmp_path / "a.wav", factor * sweep(1.0, 16_000), 16_000, subtype="FLOAT")
    with pytest.warns(UserWarning, match=rf"a\.wav: its loudest sample is .* {named}"):
        assert len(decode(path, 16_000)) == 16_000


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_nan_or_infinite_sample_is_refused_with_its_time(tmp_path: Path, value: float) -> None:
    samples = sweep(10.0, 16_000, 2).copy()
    samples[136_000, 1] = value
    path = write(tmp_path / "a.wav", samples, 16_000, subtype="FLOAT")
    assert_refused(path, r"NaN or infinite samples, the first at 8\.500 s", also_by_probe=False)


@pytest.mark.parametrize("ending", ["wav", "ogg"])
def test_a_clip_without_samples_is_refused(tmp_path: Path, ending: str) -> None:
    assert_refused(write(tmp_path / f"a.{ending}", np.zeros((0, 1)), 16_000), "holds no samples")


@pytest.mark.parametrize("rate", [1, 999, 2**31 - 1])
def test_an_absurd_sampling_rate_is_refused(tmp_path: Path, rate: int) -> None:
    path = patch(write(tmp_path / "a.wav", sweep(0.5, 16_000), 16_000), 24, struct.pack("<I", rate))
    assert_refused(path, f"absurd sampling rate of {rate} Hz")


HEADERS = [b"", b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00", b"fLaC\x00\x00\x00\x22"]
HEADERS += [b"OggS\x00\x02", b"ID3\x03\x00\x00\x00\x00\x00\x10", b"\xff\xfb\x90\x64"]


@same_folder
@given(header=st.sampled_from(HEADERS), body=st.binary())
def test_random_bytes_raise_nothing_but_audio_errors(tmp_path: Path, header: bytes, body: bytes) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(header + body)
    for read in (probe, lambda clip: decode(clip, 16_000)):
        with contextlib.suppress(AudioError):
            read(path)


@functools.cache
def half_a_second(ending: str) -> bytes:
    soundfile.write(content := io.BytesIO(), sweep(0.5, 16_000), 16_000, format=ending)
    return content.getvalue()


@same_folder
@given(ending=st.sampled_from(["wav", "flac", "ogg", "mp3"]), where=st.floats(0, 1), junk=st.binary(max_size=64))
def test_a_damaged_clip_is_refused_or_decodes_to_at_least_the_probed_length(
    tmp_path: Path, ending: str, where: float, junk: bytes
) -> None:
    path = tmp_path / f"a.{ending}"
    path.write_bytes(half_a_second(ending))
    patch(path, int(where * max(0, path.stat().st_size - len(junk))), junk)
    try:
        promised = probe(path)
        decoded = decode(path, promised.sampling_rate)
    except AudioError:
        return
    # If no header counts an MP3's frames (bit 0 of its flags), its length is that of the frames found, with padding.
    flags = path.read_bytes().partition(b"Xing\0\0\0")[2][:1]
    assert len(decoded) >= promised.frames or not flags or not flags[0] & 1
    assert np.isfinite(decoded).all()


def test_pcm_conversion_rounds_to_nearest_and_clips() -> None:
    samples = np.array([1.6, -1.6, 0.4, 32_768, -32_768, 70_000, -70_000], np.float32) / 32_768
    assert as_pcm(samples).tolist() == [2, -2, 0, 32_767, -32_768, 32_767, -32_768]


@pytest.mark.parametrize(("ending", "options"), FORMATS)
def test_decoding_a_clip_opens_its_file_only_once(tmp_path: Path, ending: str, options: dict[str, str]) -> None:
    clip = write(tmp_path / f"a.{ending}", sweep(0.5, 48_000), 48_000, **options)
    for tag in (b"", b"TAG".ljust(128, b"\0")):
        clip.write_bytes(clip.read_bytes() + tag)
        with counting_opens() as opened:
            assert len(decode(clip, 48_000)) == 24_000
        assert opened == {str(clip): 1}
        probe(clip)

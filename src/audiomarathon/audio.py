"""Decode a clip to mono float32 at a model's rate, or say exactly why that is not possible.

libsndfile does the decoding (WAV, FLAC, OGG, MP3 and whatever else it knows), soxr the resampling. The result is
bit-identical to `librosa.load`, without librosa, and made in blocks, so that memory grows with the mono output only.
What libsndfile passes over in silence is checked here: a clip is never shorter than its header promises.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from audiomarathon.errors import AudioError

Samples = npt.NDArray[np.float32]

BLOCK_FRAMES = 1 << 16
RATES_HZ = (1_000, 768_000)  # what converters run at; a header beyond this is damaged, not exotic
UNKNOWN_FRAMES = 1 << 62  # libsndfile reports 2^63 − 1 frames for a FLAC stream whose header leaves the count open
STREAMED_WAV_BYTES = {
    0x7FFFF000,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
}  # placeholders of writers that could not seek back
OGG_MAX_PAGE_BYTES = 65_307


@dataclass(frozen=True)
class ClipInfo:
    """What a clip's header says.

    Attributes
    ----------
    seconds
        Duration, `frames / sampling_rate`.
    sampling_rate
        Native rate in Hz.
    channels
        Native number of channels.
    frames
        Samples per channel. Exact but for an MP3 without a Xing/Info header: there the stream's frames are counted,
        which includes the encoder's padding (a few thousand samples, under 0.2 s) and any damaged frame.
    format
        libsndfile's name of the container: `WAV`, `FLAC`, `OGG`, `MP3`, …
    """

    seconds: float
    sampling_rate: int
    channels: int
    frames: int
    format: str


class _SequentialFile(soundfile.SoundFile):  # type: ignore[misc]  # soundfile is untyped
    """A sound file read from front to back.

    soundfile seeks after every block to where it already is. In an MP3 that seek loses the decoder's state: blocks then
    differ from one whole read by up to 0.06 at their edges. A file that says it cannot seek is spared that.
    """

    def seekable(self) -> bool:
        return False


def probe(path: str | Path) -> ClipInfo:
    """Return a clip's duration and format from its header.

    Only a FLAC stream whose header leaves the length open is decoded (and counted). Damage that shows without decoding
    is reported: a WAV shorter than its data chunk, an OGG without its last page. A cut FLAC or MP3 shows in
    :func:`decode` only.

    Raises
    ------
    AudioError
        The clip is missing, unreadable, empty, not audio, visibly truncated, or has an absurd sampling rate.
    """
    path = Path(path)
    with _open(path) as clip:
        frames, _ = _length(path, clip)
        if frames is None:
            frames = sum(len(block) for block in _mono_blocks(path, clip))
        if frames == 0:
            raise AudioError(path, "holds no samples")
        return ClipInfo(frames / clip.samplerate, clip.samplerate, clip.channels, frames, clip.format)


def decode(path: str | Path, sampling_rate: int) -> Samples:
    """Return the whole clip as mono float32.

    Parameters
    ----------
    path
        Any file libsndfile reads, at any rate and with any number of channels (averaged).
    sampling_rate
        The rate wanted, in Hz; soxr's HQ recipe resamples, as `librosa.load` does by default.

    Returns
    -------
    ndarray of float32, shape (ceil(frames x sampling_rate / native rate),)
        Nominally in −1…1; silence is a valid clip. Peak memory is about twice this array, whatever the source.

    Raises
    ------
    AudioError
        As :func:`probe`; and where decoding fails, ends before the header's frame count, or yields NaN or infinity.
        An MP3 without a Xing/Info header promises no count, so one that is cut between two frames cannot be told.
    """
    if sampling_rate <= 0:
        raise ValueError(f"sampling_rate must be positive, got {sampling_rate}")
    path = Path(path)
    with _open(path) as clip:
        promised, binding = _length(path, clip)
        resampler = (
            soxr.ResampleStream(clip.samplerate, sampling_rate, 1, dtype="float32", quality="HQ")
            if clip.samplerate != sampling_rate
            else None
        )
        frames = 0
        pieces: list[Samples] = []
        for block in _mono_blocks(path, clip):
            frames += len(block)
            pieces.append(resampler.resample_chunk(block) if resampler else block)
        if promised is not None and binding and frames < promised:
            wanted = f"{promised} samples ({promised / clip.samplerate:.2f} s)"
            raise AudioError(path, f"truncated: the header promises {wanted}, {frames} are there")
        if frames == 0:
            raise AudioError(path, "holds no samples")
        if resampler:
            pieces.append(resampler.resample_chunk(np.empty(0, np.float32), last=True))
            # soxr rounds the length to nearest; a last sample of 0 makes it librosa's.
            length = math.ceil(frames * (float(sampling_rate) / clip.samplerate))
            pieces.append(np.zeros(max(0, length - sum(map(len, pieces))), np.float32))
            return np.concatenate(pieces)[:length]
        return np.concatenate(pieces)


def _mono_blocks(path: Path, clip: soundfile.SoundFile) -> Iterator[Samples]:
    """Read from front to back, each block averaged over its channels."""
    position = 0
    while True:
        try:
            block = clip.read(BLOCK_FRAMES, dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            where = position / clip.samplerate
            raise AudioError(
                path, f"damaged or truncated: {clip.format} decoding stops after {where:.2f} s ({_why(error)})"
            ) from error
        if not len(block):
            return
        # Two columns added are np.mean's own sum, at a tenth of its time; from 8 channels on numpy adds pairwise.
        mono = (block[:, 0] + block[:, 1]) / 2 if clip.channels == 2 else block.mean(axis=1)
        finite = np.isfinite(mono)
        if not finite.all():
            where = (position + int(np.argmin(finite))) / clip.samplerate
            raise AudioError(path, f"holds NaN or infinite samples, the first at {where:.3f} s")
        position += len(block)
        yield mono


def _open(path: Path) -> soundfile.SoundFile:
    try:
        size = path.stat().st_size
        if path.is_dir():
            raise AudioError(path, "is a folder, not an audio file")
        if size == 0:
            raise AudioError(path, "is empty (0 bytes)")
        with path.open("rb"):
            pass  # libsndfile reports every failure to open as "system error"; Python names it
    except FileNotFoundError:
        raise AudioError(path, "does not exist") from None
    except PermissionError:
        raise AudioError(path, "cannot be read: permission denied") from None
    except (OSError, ValueError) as error:  # a file in the place of a folder, a name with a NUL, an I/O error
        raise AudioError(path, f"cannot be read: {error}") from error
    try:
        clip = _SequentialFile(path)
    except (soundfile.LibsndfileError, TypeError) as error:  # TypeError: headerless formats such as .raw
        raise AudioError(path, f"is not audio that can be decoded ({_why(error)})") from error
    if not RATES_HZ[0] <= clip.samplerate <= RATES_HZ[1]:
        rate = clip.samplerate
        clip.close()
        raise AudioError(path, f"has an absurd sampling rate of {rate} Hz; is the header damaged?")
    return clip


def _why(error: Exception) -> str:
    text = error.error_string if isinstance(error, soundfile.LibsndfileError) else str(error)
    if "does not exist" in text:  # libsndfile's words for an MP3 without one valid frame
        return "no valid MP3 frame"
    return str(text).strip().rstrip(".") or "no reason given"


def _length(path: Path, clip: soundfile.SoundFile) -> tuple[int | None, bool]:
    """Return the clip's frames (None: only decoding can tell) and whether decoding must yield them all.

    Raises where truncation shows without decoding.
    """
    if clip.format == "MP3":
        return _mp3_length(path, clip)
    if clip.format == "OGG":
        _check_ogg_end(path)
    # libsndfile shortens a cut WAV to what is there and notes that in its log only.
    for chunk, declared, found in re.findall(
        r"^\s*(data|SSND|Data Size|Riff size|riff)\s*: (\d+) \(should be (\d+)\)", clip.extra_info, re.MULTILINE
    ):
        if int(declared) > int(found) and int(declared) not in STREAMED_WAV_BYTES:
            raise AudioError(path, f"truncated: the {chunk} chunk announces {declared} bytes, {found} are there")
    return (clip.frames, True) if clip.frames < UNKNOWN_FRAMES else (None, False)


def _check_ogg_end(path: Path) -> None:
    """Require the last page to be whole and marked as the stream's end (RFC 3533, section 6).

    An OGG header holds no length, and libsndfile takes the last page it finds for the end.
    """
    with path.open("rb") as file:
        start = max(0, path.stat().st_size - 2 * OGG_MAX_PAGE_BYTES)
        file.seek(start)
        tail = file.read()
    page = tail.rfind(b"OggS")
    header = tail[page : page + 27]
    whole = page >= 0 and len(header) == 27 and len(tail) >= page + 27 + header[26]
    whole = whole and len(tail) >= page + 27 + header[26] + sum(tail[page + 27 : page + 27 + header[26]])
    if not (whole and header[5] & 0x04):
        raise AudioError(path, "truncated: the OGG stream ends without its last page")


def _mp3_length(path: Path, clip: soundfile.SoundFile) -> tuple[int, bool]:
    """Return the Xing/Info header's length, which binds; without one, that of the frames found, which does not.

    libsndfile decodes no further than its own estimate, which is wrong by any factor for a variable bit rate. Where
    that would cut the clip short, refuse it.
    """
    data = path.read_bytes()
    frames = _mp3_frames(data)
    first = next(frames, None)
    if first is None:
        return int(clip.frames), False
    offset, size, samples = first
    tag = re.search(rb"(?:Xing|Info)\0\0\0(.)", data[offset : offset + size], re.DOTALL)
    if tag and tag[1][0] & 0x01:  # the flag for "a frame count follows"
        return int(clip.frames), True
    held = samples + sum(samples for _, _, samples in frames)
    if held - clip.frames > 2 * 1152:
        raise AudioError(
            path,
            f"is an MP3 of variable bit rate without a Xing header, of which {clip.frames / clip.samplerate:.2f} s of "
            f"{held / clip.samplerate:.2f} s would be decoded; convert it (ffmpeg -i IN.mp3 OUT.flac)",
        )
    return held, False


def _mp3_frames(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (offset, bytes, samples) of each layer-III frame (ISO 11172-3, section 2.4.1.3; 13818-3 for low rates)."""
    mpeg1_kbps = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
    mpeg2_kbps = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
    offset = 0
    if data[:3] == b"ID3" and len(data) > 10:
        offset = 10 + sum((byte & 0x7F) << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=True))
    while 0 <= offset <= len(data) - 4:
        _, second, third, _ = data[offset : offset + 4]
        version, layer = second >> 3 & 3, second >> 1 & 3
        bitrate, rate = third >> 4, third >> 2 & 3
        if data[offset] != 0xFF or second < 0xE0 or version == 1 or layer != 1 or bitrate in (0, 15) or rate == 3:
            offset = data.find(b"\xff", offset + 1)  # junk between frames: look for the next sync word
            continue
        hertz = (44_100, 48_000, 32_000)[rate] >> {3: 0, 2: 1, 0: 2}[version]
        samples = 1152 if version == 3 else 576
        kbps = (mpeg1_kbps if version == 3 else mpeg2_kbps)[bitrate]
        size = samples // 8 * kbps * 1000 // hertz + (third >> 1 & 1)
        yield offset, size, samples
        offset += size

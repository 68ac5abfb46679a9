"""Decode a clip to mono float32 at a model's rate, or raise an error that names the damage.

libsndfile decodes (WAV, AIFF, AU, FLAC, OGG, MP3), soxr resamples. The result is bit-identical to `librosa.load`,
without librosa. Clips are read in blocks, so that memory grows with the mono output only. containers.py finds damage
that libsndfile does not report: a clip is never shorter than its header states.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from audiomarathon.audio.containers import promised_length, without_tags
from audiomarathon.audio.member import Clip, Member
from audiomarathon.errors import AudioError, RecordError, warn
from audiomarathon.files import writing

Samples = npt.NDArray[np.float32]
Pcm = npt.NDArray[np.int16]

BLOCK_FRAMES = 1 << 16
MOST_SECONDS = 3600.0  # the longest clip in memory, in seconds: 230 MB at 16 kHz; the tasks' clips have 90 to 300 s
# Float mixes have peaks up to 4, and ten stems in full scale add up to 10. Integers written as floats without scaling
# pass 16 unless they are quieter than −66 dB.
HIGHEST_PEAK, LOUD_PEAK, LOWEST_PEAK = 16.0, 4.0, 2.0**-15
_FLOATS = ("FLOAT", "DOUBLE")
RATES_HZ = (1_000, 768_000)  # rates of real converters; a header outside this range is damaged


@dataclass(frozen=True)
class ClipInfo:
    """Length and format of a clip, as its header states them.

    Attributes
    ----------
    seconds
        Duration, `frames / sampling_rate`.
    sampling_rate
        Native rate in Hz.
    channels
        Native number of channels.
    frames
        Samples per channel. Exact, except for an MP3 without a Xing/Info header: this count then includes the encoder's
        padding (a few thousand samples, under 0.2 s) and damaged frames.
    format
        libsndfile's name for the container: `WAV`, `FLAC`, `OGG`, `MP3`, …
    floats
        Whether the clip stores floating-point samples, which no format keeps within −1…1.
    """

    seconds: float
    sampling_rate: int
    channels: int
    frames: int
    format: str
    floats: bool = False


class _SequentialFile(soundfile.SoundFile):  # type: ignore[misc]  # soundfile is untyped
    """A sound file to read from front to back.

    After every block, soundfile seeks to the current position. In an MP3, this seek loses the decoder's state, and
    samples at the edges of blocks are off by up to 0.06. The class says that it cannot seek, so soundfile does not.
    """

    def seekable(self) -> bool:
        return False


def probe(path: str | Clip, file: IO[bytes] | None = None) -> ClipInfo:
    """Return a clip's duration and format from its header, without decoding it.

    `file` is the clip's open file, if it is open already. Damage that is visible without decoding raises an error: a
    WAV whose chunks do not fill the file, an OGG with a damaged page, a FLAC that does not end where its header says.
    :func:`decode` finds a truncated MP3 and damage inside a FLAC.

    Raises
    ------
    AudioError
        The clip is missing, unreadable, empty, not audio, visibly damaged, in a format whose length cannot be checked
        (containers.py), or has an absurd sampling rate.
    """
    with _open(path, file) as (place, clip, frames, _):
        if frames == 0:
            raise AudioError(place, "holds no samples")
        seconds, floats = frames / clip.samplerate, clip.subtype in _FLOATS
        return ClipInfo(seconds, clip.samplerate, clip.channels, frames, clip.format, floats)


def decode(path: str | Clip, sampling_rate: int) -> Samples:
    """Return the whole clip as mono float32 samples.

    Parameters
    ----------
    path
        A WAV, AIFF, AU, FLAC, OGG or MP3, also inside a tar, at any rate, with any number of channels (averaged).
    sampling_rate
        The rate of the result, in Hz, resampled by soxr's HQ recipe as `librosa.load` does by default.

    Returns
    -------
    ndarray of float32, shape (ceil(frames x sampling_rate / native rate),)
        Nominally in −1…1; no source sample is beyond `HIGHEST_PEAK`. Silence is a valid clip. Peak memory is about
        twice this array, whatever the source.

    Raises
    ------
    AudioError
        As :func:`probe`; or the clip is longer than `MOST_SECONDS`, or decoding fails, ends before the header's frame
        count, or yields NaN, infinity or samples beyond `HIGHEST_PEAK`. An MP3 without a Xing/Info header states no
        count, so a cut between two of its frames is not found.
    """
    return np.concatenate(list(blocks(path, sampling_rate, MOST_SECONDS)))


def blocks(path: str | Clip, sampling_rate: int, most_seconds: float = math.inf) -> Iterator[Samples]:
    """Yield a clip's mono float32 samples (see :func:`decode`) in pieces, in constant memory.

    Damage raises an error only when decoding reaches it. So treat the pieces as provisional until the end.
    """
    if sampling_rate <= 0:
        raise ValueError(f"sampling_rate must be positive, got {sampling_rate}")
    with _open(path) as opened:
        yield from _resampled(*opened, sampling_rate, most_seconds)


def pcm_blocks(path: str | Clip, sampling_rate: int) -> Iterator[Pcm]:
    """Yield a clip's mono samples in pieces, as 16-bit integers, rounded to nearest and clipped.

    Mono 16-bit audio at `sampling_rate` passes through unchanged. Other audio is decoded as by :func:`blocks`, then
    rounded.
    """
    with _open(path) as (place, clip, promised, binding):
        if (clip.samplerate, clip.channels, clip.subtype) == (sampling_rate, 1, "PCM_16"):
            position = 0
            while len(block := _read(place, clip, position, "int16")):
                position += len(block)
                yield block[:, 0]
            _check_length(place, clip, position, promised)
        else:
            for samples in _resampled(place, clip, promised, binding, sampling_rate, math.inf):
                yield as_pcm(samples)


def as_pcm(samples: Samples) -> Pcm:
    """Return float samples as 16-bit integers, rounded to nearest and clipped.

    Decoded 16-bit audio comes back unchanged.
    """
    return np.clip(np.rint(samples * 32_768), -32_768, 32_767).astype(np.int16)


def write_pcm(path: Path, samples: Pcm, rate: int, container: str | None = None) -> None:
    """Write 16-bit samples to an audio file, and create its folder if needed.

    By default, the path's suffix selects the container.

    Raises
    ------
    RecordError
        The file cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        soundfile.write(path, samples, rate, subtype="PCM_16", format=container)
    except soundfile.LibsndfileError as error:
        raise RecordError(f"{path}: cannot be written ({error.error_string}); is the disk full?") from error


def _resampled(
    path: Clip, clip: soundfile.SoundFile, promised: int, binding: bool, sampling_rate: int, most_seconds: float
) -> Iterator[Samples]:
    _check_most(path, promised / clip.samplerate, most_seconds)
    resampler = (
        soxr.ResampleStream(clip.samplerate, sampling_rate, 1, dtype="float32", quality="HQ")
        if clip.samplerate != sampling_rate
        else None
    )
    frames = made = 0
    for block in _mono_blocks(path, clip):
        frames += len(block)
        _check_most(path, frames / clip.samplerate, most_seconds)
        samples = resampler.resample_chunk(block) if resampler else block
        made += len(samples)
        yield samples
    _check_length(path, clip, frames, promised if binding else None)
    if resampler:
        rest = resampler.resample_chunk(np.empty(0, np.float32), last=True)
        # soxr rounds the length to nearest; librosa rounds up, with a last sample of 0.
        missing = max(0, math.ceil(frames * (float(sampling_rate) / clip.samplerate)) - made)
        yield np.pad(rest, (0, max(0, missing - len(rest))))[:missing]


def _check_most(path: Clip, seconds: float, most: float) -> None:
    if seconds > most:
        raise AudioError(path, f"is {seconds:.0f} s long or longer; a clip may have at most {most:.0f} s")


def _check_length(path: Clip, clip: soundfile.SoundFile, frames: int, promised: int | None) -> None:
    if promised is not None and frames < promised:
        length = f"{promised} samples ({promised / clip.samplerate:.2f} s)"
        raise AudioError(path, f"truncated: the header promises {length}, but {frames} are there")
    if frames == 0:
        raise AudioError(path, "holds no samples")


def _mono_blocks(path: Clip, clip: soundfile.SoundFile) -> Iterator[Samples]:
    """Yield the clip's samples in blocks from front to back, averaged over channels.

    Raise AudioError for NaN, infinity and samples far outside −1…1; warn of a clip that is louder or quieter than real
    audio.
    """
    position, peak = 0, 0.0
    while len(block := _read(path, clip, position, "float32")):
        low, high = float(block.min()), float(block.max())
        if not (low >= -HIGHEST_PEAK and high <= HIGHEST_PEAK):  # also true of NaN
            _refuse(path, block, position / clip.samplerate, clip.samplerate)
        peak = max(peak, high, -low)
        # Equal to np.mean for two channels, in a tenth of its time.
        mono = (block[:, 0] + block[:, 1]) / 2 if clip.channels == 2 else block.mean(axis=1)
        position += len(block)
        yield mono
    if clip.subtype in _FLOATS and (peak > LOUD_PEAK or 0 < peak < LOWEST_PEAK):
        why = "above loud mixes" if peak > 1 else "below the smallest step of 16-bit audio, as if it was scaled twice"
        warn(f"{path}: its loudest sample is {peak:.2g}, {why}; is it scaled to −1…1?")


def _refuse(path: Clip, block: npt.NDArray[np.float32], begin: float, rate: int) -> None:
    finite = np.isfinite(block)
    if not finite.all():
        first = int(np.argmin(finite.all(axis=1)))
        raise AudioError(path, f"holds NaN or infinite samples, the first at {begin + first / rate:.3f} s")
    loudest = np.abs(block).max(axis=1)
    first = int(np.argmax(loudest > HIGHEST_PEAK))
    problem = f"holds samples far outside −1…1, the first is {loudest[first]:,.6g} at {begin + first / rate:.3f} s"
    advice = "if integers were written as floats, divide 16-bit samples by 32,768"
    raise AudioError(path, f"{problem} (allowed: up to {HIGHEST_PEAK:g}); {advice}")


def _read(path: Clip, clip: soundfile.SoundFile, position: int, dtype: str) -> Any:
    """Return the next block of samples, shape (frames, channels); `position` is its first frame, for error messages."""
    try:
        return clip.read(BLOCK_FRAMES, dtype=dtype, always_2d=True)
    except soundfile.LibsndfileError as error:
        where = position / clip.samplerate
        raise AudioError(
            path, f"damaged or truncated: {clip.format} decoding stops after {where:.2f} s ({_why(error)})"
        ) from error


@contextlib.contextmanager
def _open(path: str | Clip, file: IO[bytes] | None = None) -> Iterator[tuple[Clip, soundfile.SoundFile, int, bool]]:
    """Open a clip, and read from its header how much audio it must hold; close it when the `with` block ends.

    Yields
    ------
    tuple
        The clip without the tags after its audio, the open sound file, the clip's number of frames, and whether
        decoding must yield all of them.
    """
    path = Path(path) if isinstance(path, str) else path
    with contextlib.ExitStack() as stack:
        try:
            size = path.stat().st_size
            if path.is_dir():
                raise AudioError(path, "is a folder, not an audio file")
            if size == 0:
                raise AudioError(path, "is empty (0 bytes)")
            file = file or stack.enter_context(path.open("rb", 0))
            path, file = without_tags(path, file)
            clip = stack.enter_context(_opened(path, file))
            if not RATES_HZ[0] <= clip.samplerate <= RATES_HZ[1]:
                raise AudioError(path, f"has an absurd sampling rate of {clip.samplerate} Hz; is the header damaged?")
            at = file.tell()
            promised, binding = promised_length(path, clip, file)
            file.seek(at)  # libsndfile reads on from there
        except FileNotFoundError:
            raise AudioError(path, "does not exist") from None
        except PermissionError:
            raise AudioError(path, "cannot be read: permission denied") from None
        except (OSError, ValueError) as error:  # such as a file in place of a folder, a NUL in the name, an I/O error
            raise AudioError(path, f"cannot be read: {error}") from error
        yield path, clip, promised, binding


def _opened(path: Clip, file: IO[bytes]) -> soundfile.SoundFile:
    file.seek(0)
    try:
        if isinstance(path, Member):
            return _SequentialFile(file)
        with contextlib.suppress(soundfile.LibsndfileError):
            return _SequentialFile(file.fileno(), closefd=False)
        return _SequentialFile(path)  # by its name, which tells libsndfile of formats that the first bytes do not
    except (soundfile.LibsndfileError, TypeError) as error:  # TypeError: headerless formats such as .raw
        raise AudioError(path, f"is not audio that can be decoded ({_why(error)})") from error


def _why(error: Exception) -> str:
    text = error.error_string if isinstance(error, soundfile.LibsndfileError) else str(error)
    if "does not exist" in text:  # libsndfile says this of an MP3 without a valid frame
        return "no valid MP3 frame"
    return str(text).strip().rstrip(".") or "no reason given"

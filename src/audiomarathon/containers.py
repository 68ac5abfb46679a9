"""What a file's container promises about its length, and where libsndfile would decode less without a word.

libsndfile shortens a cut WAV or OGG to what is there, and stops an MP3 at a count that may be wrong; nothing that it
returns tells. Each check here reads the few bytes that do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import soundfile

from audiomarathon.errors import AudioError

_UNKNOWN_FRAMES = 1 << 62  # libsndfile reports 2^63 − 1 frames for a FLAC stream whose header leaves the count open
_STREAMED_WAV_BYTES = {0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF}  # of writers that could not seek back
_OGG_HEADER_BYTES = 27
_OGG_MAX_PAGE_BYTES = 65_307
_MP3_PADDING_FRAMES = 5  # the frame of the Xing header, and the encoder's delay and padding


def promised_length(path: Path, clip: soundfile.SoundFile) -> tuple[int | None, bool]:
    """Return the clip's frames (None: only decoding can tell) and whether decoding must yield them all.

    Raises
    ------
    AudioError
        Decoding would not yield all that the file holds, or held before it was cut.
    """
    if clip.format == "MP3":
        return _mp3_length(path, clip)
    if clip.format == "OGG":
        _check_ogg(path)
    # libsndfile shortens a cut WAV to what is there and notes that in its log only.
    for chunk, declared, found in re.findall(
        r"^\s*(data|SSND|Data Size|Riff size|riff)\s*: (\d+) \(should be (\d+)\)", clip.extra_info, re.MULTILINE
    ):
        if int(declared) > int(found) and int(declared) not in _STREAMED_WAV_BYTES:
            raise AudioError(path, f"truncated: the {chunk} chunk announces {declared} bytes, {found} are there")
    return (clip.frames, True) if clip.frames < _UNKNOWN_FRAMES else (None, False)


def _check_ogg(path: Path) -> None:
    """Require the last page to be whole, marked as the stream's end (RFC 3533, section 6), and of the first stream.

    An OGG header holds no length: libsndfile takes the last page it finds for the end. Of streams that were chained one
    behind the other it decodes the first only.
    """
    with path.open("rb") as file:
        first = file.read(_OGG_HEADER_BYTES)
        file.seek(max(0, path.stat().st_size - 2 * _OGG_MAX_PAGE_BYTES))
        tail = file.read()
    page = tail[max(0, tail.rfind(b"OggS")) :]
    header, segments = page[:_OGG_HEADER_BYTES], page[_OGG_HEADER_BYTES:]
    whole = len(header) == _OGG_HEADER_BYTES
    whole = whole and len(segments) >= header[26] + sum(segments[: header[26]])  # a table of lengths, then the content
    if not (whole and header[5] & 0x04):
        raise AudioError(path, "truncated: the OGG stream ends without its last page")
    if header[14:18] != first[14:18]:  # the streams' serial numbers
        raise AudioError(
            path, "is a chain of OGG streams, of which only the first would be decoded; convert it to FLAC"
        )


def _mp3_length(path: Path, clip: soundfile.SoundFile) -> tuple[int, bool]:
    """Return the Xing/Info header's length, which binds; without one, that of the frames found, which does not.

    libsndfile decodes no further than the header's count, or else its own estimate, which is wrong by any factor for a
    variable bit rate. Where that would cut the clip short, refuse it.
    """
    data = path.read_bytes()
    frames = list(_mp3_frames(data))
    if not frames:
        return int(clip.frames), False
    offset, size, _ = frames[0]
    tag = re.search(rb"(?:Xing|Info)\0\0\0(.)", data[offset : offset + size], re.DOTALL)
    binding = bool(tag and tag[1][0] & 0x01)  # the flag for "a frame count follows"
    held = sum(samples for _, _, samples in frames)
    if held - clip.frames > _MP3_PADDING_FRAMES * 1152:
        cause = "joined from several files" if binding else "of variable bit rate without a Xing header"
        raise AudioError(
            path,
            f"is an MP3 {cause}, of which {clip.frames / clip.samplerate:.2f} s of {held / clip.samplerate:.2f} s "
            f"would be decoded; convert it (ffmpeg -i IN.mp3 OUT.flac)",
        )
    return (int(clip.frames) if binding else held), binding


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

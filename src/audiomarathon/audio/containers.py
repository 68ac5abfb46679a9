"""Read the length that a file's header states, and raise an error for files that libsndfile would silently shorten.

libsndfile believes a length that is too small, shortens a truncated WAV, skips damaged OGG pages, and stops an MP3 at a
count that may be wrong, all without an error. The functions here find such damage in the file's bytes.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import IO, Literal

import soundfile

from audiomarathon.audio.member import Clip, Member
from audiomarathon.errors import AudioError

_SIZED = (b"RIFF", b"RIFX", b"FORM")  # first bytes of containers that state their own size
_CHUNKED = {"WAV", "WAVEX", "RF64", "AIFF"}
# Sizes written by programs that could not seek back to state the real size.
_STREAMED_BYTES = {0, 0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF}
_SAMPLE_BYTES = {"PCM_S8": 1, "PCM_U8": 1, "ULAW": 1, "ALAW": 1, "PCM_16": 2, "PCM_24": 3, "PCM_32": 4}
_SAMPLE_BYTES |= {"FLOAT": 4, "DOUBLE": 8}
_FLAC_CANDIDATES = 100
_FLAC_HERTZ = (0, 88_200, 176_400, 192_000, 8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000) + 4 * (0,)
_BITS_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_MOST_TAIL = 355  # a file's last bytes show its tag; the extended form of ID3v1 is the longest
_MP3_PADDING_FRAMES = 5  # the frame of the Xing header, and the encoder's delay and padding


def promised_length(path: Clip, clip: soundfile.SoundFile, file: IO[bytes]) -> tuple[int, bool]:
    """Return (the clip's number of frames, whether decoding must yield all of them).

    `file` holds the clip's bytes; reading them here moves its position.

    Raises
    ------
    AudioError
        Decoding would yield less than the file holds, or held before it was truncated; or the format states no length.
    """
    if clip.format == "MP3":
        return _mp3_length(path, clip, _all_of(file))
    if clip.format == "FLAC":
        return _flac_length(path, clip, file), True
    if clip.format == "OGG":
        _check_ogg(path, _all_of(file))
    elif clip.format == "AU":
        _check_au(path, clip, file)
    elif clip.format in _CHUNKED:
        _check_chunks(path, clip, file)
    else:
        raise AudioError(
            path,
            f"is {clip.format_info}, whose length cannot be checked; allowed: WAV, AIFF, AU, FLAC, OGG or MP3; "
            f"convert it (ffmpeg -i IN OUT.flac)",
        )
    return int(clip.frames), True


def without_tags(path: Clip, file: IO[bytes]) -> tuple[Clip, IO[bytes]]:
    """Return (clip, its bytes) without the tags after the audio: players ignore tags, but libsndfile reports damage.

    Tags are ID3v1 (also its extended form), APE (versions 1 and 2), Lyrics3 (version 2) and ID3v2.4 with a footer, in
    any order. Other bytes stay, so that they are reported as damage. A WAV or AIFF may hold a tag in a chunk, so no
    bytes within the size in its header are removed.
    """
    if (end := _tags_at(file, whole := path.stat().st_size)) == whole:
        return path, file
    file.seek(0)
    kind, stated = struct.unpack("4s4s", file.read(8).ljust(8))
    size = int.from_bytes(stated, "little" if kind == b"RIFF" else "big") if kind in _SIZED else 0
    if size not in _STREAMED_BYTES and end < 8 + size:
        return path, file
    bare = replace(path, size=end) if isinstance(path, Member) else Member(path, "", 0, end)
    return bare, io.BytesIO(_all_of(file)[:end])


def _all_of(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _tags_at(file: IO[bytes], end: int) -> int:
    """Return the byte at which the tags at the end of a file begin; the file's size (`end`) if it has no tags."""
    while end:
        file.seek(max(0, end - _MOST_TAIL))
        tag = _tag_bytes(file.read(min(end, _MOST_TAIL)))
        if not 0 < tag < end:
            break
        end -= tag
    return end


def _tag_bytes(tail: bytes) -> int:
    """Return the length of the tag that ends a file, from the file's last bytes; 0 if there is no tag."""
    if tail[-128:-125] == b"TAG":
        return 128 + 227 * (tail[-355:-351] == b"TAG+")
    if tail[-32:-24] == b"APETAGEX":
        size, _items, flags = struct.unpack("<III", tail[-20:-8])
        return int(size) + 32 * (flags >> 31) if size >= 32 else 0
    if tail[-9:] == b"LYRICS200" and tail[-15:-9].isdigit():
        return int(tail[-15:-9]) + 15
    return 10 + _id3_bytes(b"ID3" + tail[-7:]) if tail[-10:-7] == b"3DI" else 0


def _check_chunks(path: Clip, clip: soundfile.SoundFile, file: IO[bytes]) -> None:
    """Raise AudioError unless the chunks of a WAV or AIFF fill the file, up to its tags, and one of them is audio."""
    size, position, held, long = path.stat().st_size, 12, 0, 0
    tags = _tags_at(file, size)
    file.seek(0)
    order: Literal["big", "little"] = "big" if file.read(4) in (b"FORM", b"RIFX") else "little"
    while position < size and position != tags:
        file.seek(position)
        header, body = file.read(8), file.read(16)
        if len(header) < 8 or not (header[:4].isascii() and header[:4].decode("ascii").isprintable()):
            raise AudioError(path, f"its chunks end at byte {position}, but {size - position} more bytes follow")
        name, announced = header[:4], int.from_bytes(header[4:], order)
        there = length = size - position - 8
        if name not in (b"data", b"SSND") or announced not in _STREAMED_BYTES:
            length = announced
        elif long:
            length = long
        if length > there:
            chunk = name.decode()
            raise AudioError(path, f"truncated: the {chunk} chunk announces {length} bytes, {there} are there")
        if name == b"ds64":
            long = int.from_bytes(body[8:16], "little")
        elif name == b"fmt " and clip.subtype in _SAMPLE_BYTES:
            pace = int.from_bytes(body[8:12], order)
            if pace != clip.samplerate * clip.channels * _SAMPLE_BYTES[clip.subtype]:
                raise AudioError(
                    path,
                    f"its header contradicts itself: {pace} bytes a second, but {clip.samplerate} Hz, "
                    f"{clip.channels} channels, {clip.subtype}",
                )
        elif name == b"COMM" and clip.subtype in _SAMPLE_BYTES:
            frames = int.from_bytes(body[2:6])
            if frames not in (0, clip.frames):
                raise AudioError(path, f"its header promises {frames} samples, but {clip.frames} would be decoded")
        elif name in (b"data", b"SSND"):
            if held:
                raise AudioError(path, "has two chunks of audio, but only one would be decoded")
            held = length if name == b"data" else length - 8 - int.from_bytes(body[:4])
        position += 8 + length
        file.seek(position)
        position += length % 2 and file.read(1) == b"\0"  # some writers omit the padding
    _check_held(path, clip, held)


def _check_au(path: Clip, clip: soundfile.SoundFile, file: IO[bytes]) -> None:
    file.seek(0)
    order = ">" if file.read(4) == b".snd" else "<"
    offset, announced = struct.unpack(f"{order}II", file.read(8))
    there = path.stat().st_size - offset
    if announced not in (there, 0xFFFFFFFF):
        what = "truncated" if announced > there else "more data than stated"
        raise AudioError(path, f"{what}: the header announces {announced} bytes, {there} are there")
    _check_held(path, clip, there)


def _check_held(path: Clip, clip: soundfile.SoundFile, held: int) -> None:
    """Raise AudioError unless libsndfile's number of samples matches `held`, the bytes of audio in the file.

    Compressed audio is not checked: libsndfile counts its blocks.
    """
    width = _SAMPLE_BYTES.get(clip.subtype, 0) * clip.channels
    if width and clip.frames != held / width:
        raise AudioError(
            path, f"holds {held} bytes of audio at {width} bytes a sample, but {clip.frames} samples would be decoded"
        )


def _flac_length(path: Clip, clip: soundfile.SoundFile, file: IO[bytes]) -> int:
    """Return the number of samples up to the end of the last FLAC frame (RFC 9639).

    Raise AudioError if the file does not end with a whole frame, or if its header states another sampling rate or
    another sample count (0: unknown).
    """
    file.seek(0)
    start = _id3_bytes(file.read(10))
    file.seek(start + 8)
    info = file.read(18)
    block_size, total = int.from_bytes(info[2:4]), int.from_bytes(info[13:18]) & (1 << 36) - 1
    file.seek(max(start + 42, path.stat().st_size - 64 - block_size * clip.channels * 5))
    tail = file.read()
    candidates = [match.start() for match in re.finditer(rb"\xff[\xf8\xf9]", tail)][::-1]
    frames = (tail[offset:] for offset in candidates[:_FLAC_CANDIDATES])
    frame = next((frame for frame in frames if len(frame) >= 10 and _crc16(frame) == 0), None)
    if frame is None:
        raise AudioError(path, "damaged or truncated: does not end with a whole FLAC frame")
    end, rate = _flac_frame(frame, block_size)
    if rate not in (0, clip.samplerate):
        raise AudioError(path, f"its header says {clip.samplerate} Hz, but its last frame {rate} Hz")
    if total not in (0, end):
        what = "truncated" if end < total else "not all of it would be decoded"
        raise AudioError(path, f"{what}: the header promises {total} samples, but the last frame ends after {end}")
    return end


def _flac_frame(frame: bytes, block_size: int) -> tuple[int, int]:
    """Return (number of samples up to the end of a FLAC frame, the frame's rate in Hz).

    The rate 0 means that of the file's header. `block_size` is the header's number of samples per frame.
    """
    ones = 8 - (frame[4] ^ 0xFF).bit_length()
    number, after = frame[4] & 0x7F >> ones, 4 + max(1, ones)
    for byte in frame[5:after]:
        number = number << 6 | byte & 0x3F
    code, rate = frame[2] >> 4, frame[2] & 15
    samples = 192 if code == 1 else 576 << code - 2 if 1 < code < 6 else 256 << code - 8 if code > 7 else 0
    if not samples:
        samples = int.from_bytes(frame[after : after + code - 5]) + 1
        after += code - 5
    fields = {12: (1, 1000), 13: (2, 1), 14: (2, 10)}
    width, unit = fields.get(rate, (0, 0))
    hertz = int.from_bytes(frame[after : after + width]) * unit if width else _FLAC_HERTZ[rate]
    return (number if frame[1] & 1 else number * block_size) + samples, hertz


def _crc16(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc = (crc << 8 & 0xFFFF) ^ _CRC16[crc >> 8 ^ byte]
    return crc


def _crc16_table() -> Iterator[int]:
    for byte in range(256):
        crc = byte << 8
        for _ in range(8):
            crc = crc << 1 ^ (crc >> 15) * 0x18005
        yield crc


_CRC16 = tuple(_crc16_table())


def _check_ogg(path: Clip, data: bytes) -> None:
    """Raise AudioError unless an OGG is one stream of whole pages in order, the last marked as the end.

    See RFC 3533, section 6. An OGG header holds no length. libsndfile takes the last readable page as the end, skips
    pages with wrong checksums, and decodes only the first of several chained streams.
    """
    offset, last, serial, number, granule = 0, False, None, -1, 0
    while offset < len(data):
        header = data[offset : offset + 27].ljust(27, b"\0")
        page = data[offset : offset + 27 + header[26] + sum(data[offset + 27 : offset + 27 + header[26]])]
        if header[:4] != b"OggS" or _ogg_checksum(page) != header[22:26]:
            raise AudioError(path, f"damaged or truncated: no whole OGG page at byte {offset}")
        flags, reached, stream, place = struct.unpack("<5xBqII", header[:22])
        if last or stream != (stream if serial is None else serial):
            raise AudioError(path, "is a chain of OGG streams, but only the first would be decoded; convert it to FLAC")
        if place != number + 1 or -1 < reached < granule:
            raise AudioError(path, f"damaged: OGG pages are missing or out of order at byte {offset}")
        last, serial, number, granule, offset = flags & 4, stream, place, max(reached, granule), offset + len(page)
    if not last:
        raise AudioError(path, "truncated: the OGG stream ends without its last page")


def _ogg_checksum(page: bytes) -> bytes:
    """Return the checksum that an OGG page's header should hold.

    The checksum is zlib's CRC-32 with the bits of each byte reversed, and without inversion.
    """
    bare = page[:22] + bytes(4) + page[26:]
    return (zlib.crc32(bare.translate(_BITS_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF).to_bytes(4).translate(_BITS_REVERSED)


def _mp3_length(path: Clip, clip: soundfile.SoundFile, data: bytes) -> tuple[int, bool]:
    """Return (number of samples of an MP3, whether its header states it, so that decoding must yield exactly as many).

    libsndfile stops decoding at the header's count, or at an estimate that is far off for a variable bit rate. Raise
    AudioError if the clip has more samples than libsndfile would decode.
    """
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
            f"is an MP3 {cause}; only {clip.frames / clip.samplerate:.2f} s of {held / clip.samplerate:.2f} s "
            f"would be decoded; convert it (ffmpeg -i IN.mp3 OUT.flac)",
        )
    return (int(clip.frames) if binding else held), binding


def _mp3_frames(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield each MP3 frame's (offset, bytes, samples); see ISO 11172-3, section 2.4.1.3, and 13818-3 for low rates."""
    mpeg1_kbps = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
    mpeg2_kbps = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
    offset = _id3_bytes(data[:10])
    while 0 <= offset <= len(data) - 4:
        _, second, third, _ = data[offset : offset + 4]
        version, layer = second >> 3 & 3, second >> 1 & 3
        bitrate, rate = third >> 4, third >> 2 & 3
        if data[offset] != 0xFF or second < 0xE0 or version == 1 or layer != 1 or bitrate in (0, 15) or rate == 3:
            offset = data.find(b"\xff", offset + 1)  # junk between frames: search the next sync word
            continue
        hertz = (44_100, 48_000, 32_000)[rate] >> {3: 0, 2: 1, 0: 2}[version]
        samples = 1152 if version == 3 else 576
        kbps = (mpeg1_kbps if version == 3 else mpeg2_kbps)[bitrate]
        size = samples // 8 * kbps * 1000 // hertz + (third >> 1 & 1)
        yield offset, size, samples
        offset += size


def _id3_bytes(header: bytes) -> int:
    """Return the length of an ID3v2 tag, from a file's first ten bytes; 0 if there is no tag."""
    if header[:3] != b"ID3" or len(header) < 10:
        return 0
    return 10 + sum((byte & 0x7F) << shift for byte, shift in zip(header[6:10], (21, 14, 7, 0), strict=True))

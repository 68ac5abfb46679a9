"""Files that libsndfile would decode only in part are refused. Whole files are accepted."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile

from audiomarathon.audio import decode as audio
from audiomarathon.errors import AudioError

RATE, FRAMES, LONGER = 16_000, 24_000, 48_000


def encoded(path: Path, frames: int = FRAMES, **options: str) -> bytes:
    wave = 0.3 * np.sin(np.arange(frames) * 0.17) + 0.02 * np.random.default_rng(0).standard_normal(frames)
    soundfile.write(path, wave, RATE, **options)
    return path.read_bytes()


def refused(path: Path, data: bytes, reason: str) -> None:
    path.write_bytes(data)
    for read in (audio.probe, lambda clip: audio.decode(clip, RATE), lambda clip: list(audio.pcm_blocks(clip, RATE))):
        with pytest.raises(AudioError, match=reason):
            read(path)


def whole(path: Path, data: bytes, frames: int = FRAMES) -> None:
    path.write_bytes(data)
    assert audio.probe(path).frames == len(audio.decode(path, RATE)) == frames


def patched(data: bytes, place: int, new: bytes) -> bytes:
    return data[:place] + new + data[place + len(new) :]


# --- tags behind the audio --------------------------------------------------------------------------------------------

ID3V1 = b"TAG" + b"x" * 125
ART = np.random.default_rng(0).bytes(50_000)  # random bytes that include frame sync words


def ape(*, version: int = 2000, header: bool = True, value: bytes = b"EAC") -> bytes:
    item = struct.pack("<II", len(value), 0) + b"Title\0" + value
    marks = [struct.pack("<IIIIQ", version, len(item) + 32, 1, flags, 0) for flags in (0xA0000000, 0x80000000 * header)]
    start, end = (b"APETAGEX" + mark for mark in marks)
    return start * header + item + end


LYRICS = b"LYRICSBEGININD0000200" + b"000021LYRICS200"
ID3V2 = b"\x04\0\x10\0\0\0\x14"
TAGS = {
    "ID3v1": ID3V1,
    "ID3v1 in its extended form": b"TAG+" + bytes(223) + ID3V1,
    "APE": ape(),
    "APE without header": ape(header=False),
    "APE 1": ape(version=1000, header=False),
    "APE with a picture": ape(value=ART),
    "ID3v1 behind APE": ape(value=ART) + ID3V1,
    "APE behind ID3v1": ID3V1 + ape(),
    "Lyrics3": LYRICS + ID3V1,
    "ID3v2.4": b"ID3" + ID3V2 + bytes(20) + b"3DI" + ID3V2,
}
ENCODINGS = {
    "flac": {}, "wav": {}, "aiff": {}, "au": {}, "ogg": {}, "opus": {"format": "OGG", "subtype": "OPUS"}, "mp3": {},
}  # fmt: skip


@pytest.mark.parametrize("ending", ENCODINGS)
def test_tags_after_the_audio_do_not_change_the_samples(ending: str, tmp_path: Path) -> None:
    data = encoded(path := tmp_path / f"a.{ending}", **ENCODINGS[ending])
    plain = audio.decode(path, RATE)
    for name, tag in TAGS.items():
        whole(path, data + tag)
        np.testing.assert_array_equal(audio.decode(path, RATE), plain, name)


@pytest.mark.parametrize("ending", ["flac", "wav", "ogg"])
def test_a_truncated_clip_with_a_tag_after_the_audio_is_still_refused(ending: str, tmp_path: Path) -> None:
    data = encoded(path := tmp_path / f"a.{ending}")
    for tag in TAGS.values():
        refused(path, data[:-200] + tag, "truncated|more bytes follow")
    too_long = ape().replace(struct.pack("<I", len(ape()) - 32), struct.pack("<I", 10**9))
    refused(path, data + too_long, "damaged|truncated")


@pytest.mark.parametrize(
    "tag", [b"id3 " + struct.pack("<I", len(TAGS["ID3v2.4"])) + TAGS["ID3v2.4"], ID3V1], ids=["in a chunk", "bare"]
)
def test_a_wav_whose_header_size_includes_an_id3_tag_is_accepted(tag: bytes, tmp_path: Path) -> None:
    data = encoded(path := tmp_path / "a.wav") + tag
    whole(path, patched(data, 4, struct.pack("<I", len(data) - 8)))


# --- WAV, AIFF, AU ----------------------------------------------------------------------------------------------------


def with_size(data: bytes, size: int) -> bytes:
    return patched(data, data.index(b"data") + 4, struct.pack("<I", size))


def test_a_wav_with_audio_beyond_its_data_chunk_is_refused(tmp_path: Path) -> None:
    data = encoded(path := tmp_path / "a.wav")
    refused(path, with_size(data, 64), "more bytes follow")
    refused(path, data + b"\0" * 64, "more bytes follow")
    refused(path, with_size(data, 0), "0 samples would be decoded")
    refused(path, data + data[36:], "not audio|samples would be decoded")


@pytest.mark.parametrize("subtype", ["MS_ADPCM", "GSM610"])
def test_a_compressed_wav_with_two_data_chunks_is_refused(tmp_path: Path, subtype: str) -> None:
    data = encoded(path := tmp_path / "a.wav", subtype=subtype)
    audio.decode(path, RATE)
    refused(path, data + data[data.index(b"data") :], "two chunks of audio")


@pytest.mark.parametrize("size", [0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_a_wav_streamed_with_a_placeholder_size_in_its_header_is_read_to_its_end(tmp_path: Path, size: int) -> None:
    data = with_size(encoded(path := tmp_path / "a.wav"), size)
    whole(path, data)
    refused(path, data[:-1], "samples would be decoded")


def test_chunks_after_the_audio_of_a_wav_are_accepted_with_or_without_a_padding_byte(tmp_path: Path) -> None:
    data = encoded(path := tmp_path / "a.wav", subtype="PCM_U8")
    odd, tags = with_size(data[:-1], FRAMES - 1), b"LIST\x05\0\0\0INFO!"
    whole(path, data + tags + b"\0")
    whole(path, data + tags + b"id3 \x02\0\0\0ab")
    whole(path, odd + b"\0" + tags, FRAMES - 1)
    whole(path, odd, FRAMES - 1)
    refused(path, data + tags[:-1], "truncated: the LIST chunk")


@pytest.mark.parametrize("place", [22, 24, 28, 34])
def test_a_wav_header_that_contradicts_itself_is_refused(tmp_path: Path, place: int) -> None:
    """The places contain channels, rate, bytes per second and bits per sample."""
    data = encoded(path := tmp_path / "a.wav")
    refused(path, patched(data, place, bytes([data[place] ^ 8])), "contradicts itself|not audio")


def test_an_aiff_or_au_header_shorter_than_its_audio_is_refused(tmp_path: Path) -> None:
    data = encoded(aiff := tmp_path / "a.aiff")
    refused(aiff, patched(data, data.index(b"COMM") + 10, struct.pack(">I", 500)), "promises 500 samples")
    refused(aiff, patched(data, data.index(b"COMM") + 8, b"\0\x03"), "would be decoded")
    whole(aiff, patched(data, data.index(b"SSND") + 4, bytes(4)))  # as ffmpeg writes to a pipe
    data = encoded(au := tmp_path / "a.au")
    refused(au, patched(data, 8, struct.pack(">I", 64)), "announces 64 bytes")
    whole(au, patched(data, 8, b"\xff" * 4))


@pytest.mark.parametrize("kind", ["CAF", "W64", "NIST", "VOC", "SVX", "MAT5", "IRCAM", "PAF"])
def test_audio_formats_whose_clip_length_cannot_be_checked_are_refused(tmp_path: Path, kind: str) -> None:
    refused(tmp_path / "a", encoded(tmp_path / "a", format=kind), "length cannot be checked.*ffmpeg")


@pytest.mark.parametrize("ending", ["vox", "gsm", "au"])
def test_audio_files_without_a_header_are_refused(tmp_path: Path, ending: str) -> None:
    refused(tmp_path / f"a.{ending}", b"\x11\x22\x33\x44" * 500, "header-less")


# --- FLAC -------------------------------------------------------------------------------------------------------------


def with_total(data: bytes, total: int) -> bytes:
    return patched(data, 21, bytes([data[21] & 0xF0]) + struct.pack(">I", total))


def test_a_flac_whose_length_differs_from_its_header_is_refused(tmp_path: Path) -> None:
    data = encoded(path := tmp_path / "a.flac")
    refused(path, with_total(data, 20_000), "not all of it would be decoded")
    refused(path, with_total(data, FRAMES + 1), "truncated: the header promises 24001 samples")
    whole(path, with_total(data, 0))
    refused(path, with_total(data, 0)[:-1], "does not end with a whole FLAC frame")


@pytest.mark.parametrize("rate", [8_000, 11_025, 44_099, 44_100, 65_540, 96_000])
def test_a_flac_whose_header_has_another_rate_than_its_frames_is_refused(tmp_path: Path, rate: int) -> None:
    path = tmp_path / "a.flac"
    soundfile.write(path, np.zeros(5_000), rate)
    assert audio.probe(path).frames == 5_000
    data = path.read_bytes()
    refused(path, patched(data, 19, bytes([data[19] ^ 1])), f"last frame {rate} Hz")


# --- OGG --------------------------------------------------------------------------------------------------------------


def checksum(page: bytes) -> bytes:
    """Return the CRC-32 of RFC 3533, bit by bit."""
    crc = 0
    for byte in page:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1) ^ (0x104C11DB7 if crc >> 31 else 0)
    return struct.pack("<I", crc)


def pages(data: bytes) -> list[bytes]:
    return [b"OggS" + page for page in data.split(b"OggS")[1:]]


def page(old: bytes, **fields: int) -> bytes:
    """Return a page with changed flags, granule or number, and its new checksum."""
    for key, new in fields.items():
        place, form = {"flags": (5, "<B"), "granule": (6, "<q"), "number": (18, "<I")}[key]
        old = patched(old, place, struct.pack(form, new))
    return patched(old, 22, checksum(patched(old, 22, bytes(4))))


@pytest.fixture(params=["VORBIS", "OPUS"])
def ogg(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[bytes]]:
    """Return the path and the pages of a whole OGG file."""
    path = tmp_path / "a.ogg"
    return path, pages(encoded(path, LONGER, format="OGG", subtype=request.param))


def test_an_ogg_whose_last_page_is_damaged_is_refused(ogg: tuple[Path, list[bytes]]) -> None:
    path, parts = ogg
    whole(path, b"".join(parts), LONGER)
    for place in (0, 6, 22, 26, len(parts[-1]) - 1):
        last = patched(parts[-1], place, bytes([parts[-1][place] ^ 1]))
        refused(path, b"".join([*parts[:-1], last]), "no whole OGG page|not audio")


def test_an_ogg_with_a_missing_page_or_a_too_small_final_granule_position_is_refused(
    ogg: tuple[Path, list[bytes]],
) -> None:
    path, parts = ogg
    for pages_ in (parts[:2] + parts[3:], [*parts[:-1], page(parts[-1], granule=5_000)]):
        refused(path, b"".join(pages_), "missing or out of order")


def test_an_ogg_vorbis_without_a_last_page_is_refused_but_an_empty_last_page_is_accepted(tmp_path: Path) -> None:
    parts = pages(encoded(path := tmp_path / "a.ogg"))
    open_end = b"".join([*parts[:-1], page(parts[-1], flags=parts[-1][5] & ~4)])
    number = struct.unpack("<I", parts[-1][18:22])[0] + 1
    whole(path, open_end + page(parts[-1][:26] + b"\0", flags=4, number=number))
    refused(path, open_end, "ends without its last page")


# --- the longest clip -------------------------------------------------------------------------------------------------


def test_a_clip_that_is_too_long_by_its_header_is_refused_without_decoding_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.flac"
    soundfile.write(path, np.zeros(3_601 * 1_000, np.int16), 1_000)
    monkeypatch.setattr(audio, "_read", lambda *_: pytest.fail("decoded"))
    with pytest.raises(AudioError, match=r"\b3601 s .*longer.*\b3600 s"):
        audio.decode(path, RATE)


def test_decoding_a_clip_longer_than_its_header_says_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audio, "promised_length", lambda *_: (1, False))
    monkeypatch.setattr(audio, "MOST_SECONDS", 1.0)
    monkeypatch.setattr(audio, "BLOCK_FRAMES", 4_096)
    encoded(tmp_path / "a.wav")
    with pytest.raises(AudioError, match="1 s long or longer"):
        audio.decode(tmp_path / "a.wav", RATE)

"""Fingerprints of checkpoints and clips: any change is detected, and old fingerprints by rule 1 still match."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from audiomarathon.fingerprint import blocks, by_rule_1, is_weak, same, short, stronger
from audiomarathon.models.checkpoint import find_checkpoint

MB = 1 << 20
#: One tensor of each kind with its size in bytes. Large tensors surround the small ones.
TENSORS = {
    "audio_tower.layers.0.fc1.weight": 4 * MB,
    "layers.0.self_attn.k_proj.bias": 2048,
    "layers.0.self_attn.k_proj.weight": 2 * MB,
    "layers.0.input_layernorm.weight": 14336,
    "layers.0.mlp.up_proj.weight": 130 * MB,
    "layers.0.lora_A.weight": 51_200,
    "lm_head.weight": 9 * MB,
}
RULE_1 = "0b1865b6e6ba4ffb"  # the folder's fingerprint in commit 8983bac
RULE_2 = "180bd8eb044e5326"  # its fingerprint in later versions


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of 145 MB that takes a few kB on disk."""
    offsets = [*accumulate(TENSORS.values(), initial=0)]
    tensors = {
        name: {"dtype": "U8", "shape": [size], "data_offsets": [first, first + size]}
        for (name, size), first in zip(TENSORS.items(), offsets, strict=False)
    }
    header = json.dumps(tensors).encode()
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + offsets[-1])
    return tmp_path


def change(checkpoint: Path, name: str, where: float) -> None:
    """Set one byte of a tensor at a fraction of its length."""
    file = checkpoint / "model.safetensors"
    with file.open("r+b") as stream:
        header = int.from_bytes(stream.read(8), "little")
        first, last = json.loads(stream.read(header))[name]["data_offsets"]
        stream.seek(8 + header + first + int((last - first - 1) * where))
        stream.write(b"\1")


@pytest.mark.parametrize("where", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", TENSORS)
def test_a_one_byte_change_in_any_tensor_changes_the_checkpoint_fingerprint(
    checkpoint: Path, name: str, where: float
) -> None:
    before = find_checkpoint(str(checkpoint)).fingerprint()
    change(checkpoint, name, where)
    after = find_checkpoint(str(checkpoint)).fingerprint()
    assert not same(before, after)


def test_the_weak_part_of_a_checkpoint_fingerprint_equals_a_recorded_value(checkpoint: Path) -> None:
    """Rule 1 reads little of a large file, but its old fingerprints must still match."""
    before = find_checkpoint(str(checkpoint)).fingerprint()
    assert before == f"2:{RULE_1}:{RULE_2}"  # with another hash, no earlier run could be resumed
    change(checkpoint, "layers.0.input_layernorm.weight", 0.5)
    after = find_checkpoint(str(checkpoint)).fingerprint()
    assert by_rule_1(after) == RULE_1
    assert same(RULE_1, after)
    assert not same(before, after)


@pytest.mark.parametrize("name", ["chat_template.jinja", "merges.txt", "speech-lora/adapter_model.safetensors"])
def test_a_changed_small_file_or_adapter_changes_the_checkpoint_fingerprint(checkpoint: Path, name: str) -> None:
    file = checkpoint / name
    file.parent.mkdir(exist_ok=True)
    prints = set()
    for content in (b"one", b"two"):
        file.write_bytes(content)
        prints.add(find_checkpoint(str(checkpoint)).fingerprint())
    assert len(prints) == 2


def test_files_that_are_never_downloaded_do_not_change_the_checkpoint_fingerprint(checkpoint: Path) -> None:
    before = find_checkpoint(str(checkpoint)).fingerprint()
    for name in ("params.json", "consolidated.safetensors"):
        (checkpoint / name).write_text("{}")
    assert find_checkpoint(str(checkpoint)).fingerprint() == before


def test_two_variants_of_one_checkpoint_have_different_fingerprints(checkpoint: Path) -> None:
    found_checkpoint = find_checkpoint(str(checkpoint))
    assert not same(found_checkpoint.fingerprint(), replace(found_checkpoint, variant="30s").fingerprint())


@pytest.mark.parametrize("damage", [b"", b"\xff" * 8, b"\x05\0\0\0\0\0\0\0[[1]]", b'\2\0\0\0\0\0\0\0{"'])
def test_the_fingerprint_of_damaged_weights_depends_on_the_file_size(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "config.json").write_text("{}")
    file = tmp_path / "model.safetensors"
    file.write_bytes(damage)
    prints = {find_checkpoint(str(tmp_path)).fingerprint()}
    with file.open("r+b") as stream:
        stream.truncate(5 * MB)
        prints.add(find_checkpoint(str(tmp_path)).fingerprint())
    assert len(prints) == 2


def test_the_checkpoint_fingerprint_hashes_65_blocks_of_a_large_tensor_from_start_to_end() -> None:
    spans = list(blocks(1000, 1000 + (1 << 33), MB))
    assert (spans[0][0], spans[-1][1], len(spans)) == (1000, 1000 + (1 << 33), 65)


WEAK = "0123456789abcdef"
STRONG = f"2:{WEAK}:fedcba9876543210"
OTHER = f"2:{WEAK}:0000000000000000"


@pytest.mark.parametrize(
    ("fingerprint", "other", "equal"),
    [
        (WEAK, WEAK, True),
        (WEAK, STRONG, True),
        (STRONG, STRONG, True),
        (STRONG, OTHER, False),
        ("0123456789abcdee", STRONG, False),
        ("https://host:1 model", "https://host:1 model", True),
        (None, WEAK, False),
    ],
)
def test_a_weak_and_a_full_fingerprint_match_if_their_common_part_is_equal(
    fingerprint: str | None, other: str | None, equal: bool
) -> None:
    assert same(fingerprint, other) is same(other, fingerprint) is equal


def test_a_checkpoint_fingerprint_without_the_full_hash_counts_as_weak() -> None:
    assert (is_weak(WEAK), is_weak(STRONG)) == (True, False)
    assert (short(WEAK), short(STRONG)) == ("012345", "fedcba")


def test_a_weak_fingerprint_is_replaced_by_a_full_one_only_if_exactly_one_matches() -> None:
    assert stronger(WEAK, [WEAK, STRONG]) == STRONG
    assert stronger(WEAK, [WEAK, STRONG, OTHER]) == WEAK
    assert stronger(STRONG, [WEAK, STRONG, OTHER]) == STRONG

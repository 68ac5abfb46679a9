"""A hostile checkpoint folder is refused in one line that names the file, before any library opens it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from audiomarathon.engine.engine import open_local
from audiomarathon.errors import ConfigError, ModelError, WeightsError
from audiomarathon.models.checkpoint import find_checkpoint, header_of
from audiomarathon.models.checkpoint_files import check_files
from audiomarathon.models.loading import check_finite
from audiomarathon.settings import own_settings

DEEP = "[" * 100_000 + "]" * 100_000
NAMES = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.json", "chat_template.jinja",
    "preprocessor_config.json", "extra.json", "model.safetensors", "model-00001-of-00001.safetensors", "merges.txt",
)  # fmt: skip
KINDS: dict[str, Callable[[Path], Any]] = {
    "a directory": Path.mkdir,
    "a pipe": os.mkfifo,
    "a pipe or device": lambda path: path.symlink_to("/dev/zero"),
    "broken link": lambda path: path.symlink_to("nowhere"),
    "symbolic links": lambda path: path.symlink_to(path.name),
}


@pytest.fixture
def folder(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """Return a checkpoint that a test may damage."""
    return shutil.copytree(tiny_checkpoint, tmp_path / "spoilt")


def refused(folder: Path, kind: type[ModelError], *said: str) -> None:
    with pytest.raises(kind) as caught:
        find_checkpoint(str(folder))
    assert "\n" not in str(caught.value)
    for words in (str(folder), *said):
        assert words in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_file_that_is_no_plain_file_is_refused(folder: Path, name: str, kind: str) -> None:
    (folder / name).unlink(missing_ok=True)
    KINDS[kind](folder / name)
    refused(folder, WeightsError if name.endswith("safetensors") else ConfigError, name, kind)


@pytest.mark.parametrize("content", ["[1]", '"x"', "null", "", "{", DEEP, '{"a":' * 3000 + "1" + "}" * 3000, "\ufeff"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"])
def test_a_json_file_that_holds_no_object_is_refused(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    refused(folder, ConfigError, name)


def config_with(folder: Path, part: str, name: str, value: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (config["thinker_config"][part] if part else config["thinker_config"])[name] = value
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("value", [0, -1, 10**8, 10**30, "4", 4.5, True, [4], {}])
@pytest.mark.parametrize(
    "size",
    [f"text.{name}" for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")]
    + ["audio.encoder_layers", "audio.d_model", "vision.depth"],
)
def test_impossible_sizes_in_the_config_are_refused(folder: Path, size: str, value: object) -> None:
    part, name = size.replace(".", "_config.").split(".")
    config_with(folder, part, name, value)
    refused(folder, ConfigError, "config.json", f"{name} is ")


@pytest.mark.parametrize(
    ("name", "value"), [("vocab_size", 10**8), ("intermediate_size", 10**6), ("hidden_size", 10**6)]
)
def test_config_sizes_larger_than_the_weights_are_refused(folder: Path, name: str, value: int) -> None:
    """Otherwise random weights of that size would fill the memory."""
    config_with(folder, "text_config", name, value)
    refused(folder, ConfigError, "config.json", "parameters")


@pytest.mark.parametrize("value", [[], "x", 5, None])
@pytest.mark.parametrize("name", ["text_config", "audio_config"])
def test_a_config_section_that_is_no_object_is_refused(folder: Path, name: str, value: object) -> None:
    config_with(folder, "", name, value)
    refused(folder, ConfigError, "config.json", name)


def test_the_config_sizes_of_published_models_are_accepted() -> None:
    folders = sorted((Path(__file__).parents[1] / "src/audiomarathon/models/configs").iterdir())
    assert folders
    for folder in folders:
        check_files(folder, [])


@pytest.mark.parametrize(
    "shards", [["x"], None, {"a": 5}, {"a": "../spoilt/model.safetensors"}, {"a": "/etc/passwd"}, {"a": "sub/x"}]
)
def test_a_weights_index_that_leads_out_of_the_folder_is_refused(folder: Path, shards: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    refused(folder, WeightsError, "model.safetensors.index.json")


def test_weights_stored_only_as_pickle_are_refused(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    find_checkpoint(str(folder))  # beside safetensors a pickle is never opened
    (folder / "model.safetensors").unlink()
    refused(folder, WeightsError, "pytorch_model.bin", "safetensors")


@pytest.mark.parametrize("value", [None, 10**8])
def test_an_error_of_a_library_while_loading_a_checkpoint_is_one_line(folder: Path, value: object) -> None:
    config_with(folder, "text_config", "num_key_value_heads" if value else "hidden_act", value)
    with pytest.raises(ModelError, match=r"^[^\n]*$"):
        open_local("qwen2.5-omni-3b", own_settings(model_path=str(folder)))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_with_nan_or_infinity_are_refused(folder: Path, value: float) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["thinker.model.layers.2.mlp.up_proj.weight"][3, 4] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsError, match=r"^[^\n]*spoilt: .*layers\.2\.mlp\.up_proj\.weight .*NaN"):
        open_local("qwen2.5-omni-3b", own_settings(model_path=str(folder)))


def test_finite_weights_of_every_precision_are_accepted() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        module = torch.nn.Linear(4, 4).to(dtype)
        module.register_parameter("empty", torch.nn.Parameter(torch.empty(0, dtype=dtype)))
        module.register_parameter("whole", torch.nn.Parameter(torch.ones(3, dtype=torch.long), requires_grad=False))
        check_finite(Path("x"), module)


@pytest.mark.parametrize("content", [b"\xff" * 8, b"\x10" + bytes(7) + b"[" * 16, b"\2" + bytes(7) + b"[]", b""])
def test_a_safetensors_file_with_an_unreadable_header_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(WeightsError, match=r"model\.safetensors: not a safetensors file, or cut short"):
        header_of(tmp_path / "model.safetensors")

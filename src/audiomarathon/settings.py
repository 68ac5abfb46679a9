"""The settings of a run: one frozen dataclass, filled from flags, then env vars, then defaults.

Nothing here imports torch, so that a bad value is refused at once.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from audiomarathon.errors import DataError, SettingsError
from audiomarathon.files import named_folder
from audiomarathon.text import did_you_mean, nearly, plain

DEVICES = "auto, cpu, cuda, cuda:N"
DTYPES = ("auto", "float32", "float16", "bfloat16")
ATTENTION = ("sdpa", "eager", "flash_attention_2")
DEVICE_MAPS = ("", "auto", "balanced", "balanced_low_0", "sequential")
_READ_ELSEWHERE = ("AUDIOMARATHON_CACHE", "CUDA_VISIBLE_DEVICES", "HF_TOKEN", "OPENAI_BASE_URL")
_LONG_ENOUGH = 6  # letters of an env var that may be one of ours misspelt: shorter ones are others' too often
_PREFIX = "PRUNE_"  # of the env vars that say what is pruned
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_LONGEST, _SHOWN = 1000, 60  # characters of a value, and of one that is refused
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _integer(low: int, beyond: float = math.inf) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not _WHOLE.fullmatch(text) or not low <= int(text) < beyond:
            raise ValueError
        return int(text)

    return parse


def _place(text: str) -> str:
    named_folder(text)
    return text


def _ratio(text: str) -> float:
    if not text.isascii() or not 0 <= float(text) < 1:
        raise ValueError
    return float(text)


def _switch(text: str) -> bool:
    lowered = text.lower()
    if lowered not in _TRUE + _FALSE:
        raise ValueError
    return lowered in _TRUE


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError
        return text

    return parse


def _device(text: str) -> str:
    if text not in ("auto", "cpu", "cuda") and not (text.startswith("cuda:") and text[5:].isdigit()):
        raise ValueError
    return text


def _persons(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _setting(default: Any, env: str, parse: Callable[[str], Any], allowed: str) -> Any:
    return field(default=default, metadata={"env": env, "parse": parse, "allowed": allowed})


@dataclass(frozen=True)
class RunSettings:
    """Every setting of a run, with its env var, what is allowed, and its default.

    Attributes are documented in the README, "Settings"; `RunSettings.read` fills them.
    """

    method: str = _setting("base", "PRUNE_METHOD", str, "a method's name (audiomarathon list methods)")
    ratio: float | None = _setting(None, "PRUNE_RATIO", _ratio, "a fraction of audio tokens to remove, 0 to below 1")
    layer: int = _setting(2, "PRUNE_LAYER_IDX", _integer(0), "a whole number from 0")
    scope: str = _setting("audio", "PRUNE_SCOPE", _one_of("audio", "all"), "audio; all (presses only)")
    limit: int = _setting(0, "SAMPLE_LIMIT", _integer(0), "a whole number; 0 = all samples")
    results: Path = _setting(Path("results"), "RESULTS_DIR", named_folder, "a folder")
    model_path: str = _setting("", "MODEL_PATH", _place, "a hub id or a folder; empty = the model's default")
    data: str = _setting("", "AUDIOMARATHON_DATA", _place, "the tasks' folder; mini = the mini benchmark")
    device: str = _setting("auto", "DEVICE", _device, DEVICES)
    device_map: str = _setting(
        "", "DEVICE_MAP", _one_of(*DEVICE_MAPS), "empty, auto, balanced, balanced_low_0, sequential"
    )
    dtype: str = _setting("auto", "DTYPE", _one_of(*DTYPES), ", ".join(DTYPES))
    attn_implementation: str = _setting("sdpa", "ATTN_IMPLEMENTATION", _one_of(*ATTENTION), ", ".join(ATTENTION))
    batch_size: int = _setting(1, "BATCH_SIZE", _integer(1), "a whole number from 1")
    timing: bool = _setting(True, "TIMING", _switch, "1 or 0")
    max_new_tokens: int = _setting(0, "MAX_NEW_TOKENS", _integer(0), "a whole number; 0 = the task's own limit")
    decode_tokens: int = _setting(0, "DECODE_TOKENS", _integer(0), "a whole number; 0 = no forced decode run")
    seed: int = _setting(42, "SEED", _integer(0, 2**32), "a whole number from 0 to 4294967295")
    skip_persons: tuple[str, ...] = _setting((), "SKIP_PERSONS", _persons, "person ids joined by commas")
    skip_emotion: str = _setting("", "SKIP_EMOTION", str, "an emotion")
    balance: bool = _setting(False, "BALANCE", _switch, "1 or 0")
    allow_bad_rows: bool = _setting(False, "ALLOW_BAD_ROWS", _switch, "1 or 0")

    data_paths: tuple[tuple[str, str], ...] = ()
    """`<TASK>_DATA_PATH` variables by name, for the tasks' own folders."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.batch_size > 1 and self.timing:
            raise SettingsError(
                f"BATCH_SIZE={self.batch_size}: times are measured at batch 1; use --no-timing (TIMING=0) for batches"
            )
        if self.decode_tokens and not self.timing:
            raise SettingsError(
                f"DECODE_TOKENS={self.decode_tokens}: the forced decode run is for timing; leave it 0 with --no-timing"
            )
        if self.device_map and self.device != "auto":
            raise SettingsError(
                f"DEVICE={self.device} with DEVICE_MAP={self.device_map}: a device map chooses the devices itself; "
                "leave DEVICE out, and limit GPUs by CUDA_VISIBLE_DEVICES"
            )
        if self.ratio and self.method.count(":") > self.method.count("+"):
            raise SettingsError(f"PRUNE_RATIO={self.ratio:g} with PRUNE_METHOD={self.method}: give one ratio, not two")
        if self.decode_tokens == 1:
            raise SettingsError("DECODE_TOKENS=1: time per token needs at least 2 tokens; 64 is usual, 0 is off")

    @classmethod
    def read(cls, env: Mapping[str, str] | None = None, **flags: Any) -> RunSettings:
        """Fill settings: a flag that is not None wins over the env var, which wins over the default.

        Parameters
        ----------
        env
            Environment to read; `os.environ` when None.
        **flags
            Values by field name, as text or already of the field's type.

        Raises
        ------
        SettingsError
            For a value that is not allowed: its name, the value and what is allowed, in one line. For a misspelt
            `PRUNE_` variable: ignored, it would let the wrong method run.
        """
        env = os.environ if env is None else env
        _check_names(env)
        values: dict[str, Any] = {}
        if flags.get("data") is None:  # a flag wins over every env var, so over those of single tasks too
            values["data_paths"] = tuple(sorted((k, v) for k, v in env.items() if k.endswith("_DATA_PATH") and v))
        for setting in _settings():
            name, text = setting.metadata["env"], env.get(setting.metadata["env"], "")
            if (flag := flags.pop(setting.name, None)) is not None:
                name, text = f"--{setting.name.replace('_', '-')}", flag
            if isinstance(text, str) and not (text := text.strip()):  # a file of env vars may end its lines in a CR
                continue
            try:
                if len(str(text)) > _LONGEST or plain(str(text)) != str(text) or "\n" in str(text):
                    raise ValueError
                values[setting.name] = setting.metadata["parse"](text) if isinstance(text, str) else text
                if isinstance(text, (int, float)) and not isinstance(text, bool):
                    setting.metadata["parse"](str(text))  # the same bounds for a number given as a number
            except (ValueError, DataError):
                shown = plain(str(text)).replace("\n", "\\n")
                shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}… ({len(shown):,} characters)"
                lists = setting.name == "ratio" and "," in str(text)
                several = "; a sweep takes several: audiomarathon sweep --ratios" if lists else ""
                raise SettingsError(
                    f"{name}={shown}: not allowed; allowed: {setting.metadata['allowed']}{several}"
                ) from None
        if flags:
            raise SettingsError(f"unknown setting {sorted(flags)[0]!r}")
        return cls(**values)


def env_names() -> dict[str, str]:
    """Return each setting's env var and what it allows."""
    return {setting.metadata["env"]: setting.metadata["allowed"] for setting in _settings()}


def cache_folder() -> Path:
    """Return the folder for what is kept between runs: `AUDIOMARATHON_CACHE`, else `~/.cache/audiomarathon`."""
    return Path(os.environ.get("AUDIOMARATHON_CACHE") or Path.home() / ".cache" / "audiomarathon")


def _settings() -> list[dataclasses.Field[Any]]:
    return [field_ for field_ in dataclasses.fields(RunSettings) if "env" in field_.metadata]


def _check_names(env: Mapping[str, str]) -> None:
    """Refuse `PRUNE_RATOI`, ignored it would let the wrong method run; warn of other names close to ours."""
    known = [*env_names(), *_READ_ELSEWHERE]
    for name in sorted(set(env) - set(known)):
        near = [one for one in known if len(name) >= _LONG_ENOUGH and nearly(name.upper(), one)]
        ours = [one for one in known if one.startswith(_PREFIX)]
        if name.startswith(_PREFIX) or set(near) & set(ours):
            raise SettingsError(
                f"unknown env var {name}{did_you_mean(name, near or ours)}; allowed: {', '.join(ours)}; unset it"
            )
        if near:
            warnings.warn(f"unknown env var {name} is ignored{did_you_mean(name, near)}", stacklevel=3)

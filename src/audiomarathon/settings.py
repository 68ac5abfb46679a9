"""The settings of a run: one frozen dataclass, filled from flags, then env vars, then a config file, then defaults.

Nothing here imports torch, so that a bad value is refused at once.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
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
PATH_ENDING = "_DATA_PATH"  # of the env vars that name a single task's folder
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


def _layers(text: str) -> tuple[int, ...]:
    return () if text == "all" else tuple(sorted({_integer(0)(part.strip()) for part in text.split(",")}))


def _setting(
    group: str,
    default: Any,
    env: str,
    parse: Callable[[str], Any] | Sequence[str],
    help_: str,
    allowed: str = "",
) -> Any:
    """Declare a setting: `parse` is the values there are where these are a list, and then says what is allowed."""
    facts: dict[str, Any] = {"group": group, "env": env, "help": help_, "values": ()}
    if not callable(parse):
        facts["values"], allowed, parse = parse, ", ".join(value or "empty" for value in parse), _one_of(*parse)
    return field(default=default, metadata={**facts, "parse": parse, "allowed": allowed})


_METHOD, _DATA, _MODEL = "Method", "Data and results", "Model and machine"
_TIMING, _TASKS, _ATTENTION = "Timing and replies", "Single tasks", "Attention"
_WHOLE_NUMBER, _ON_OFF = "a whole number from 0", "1 or 0"


@dataclass(frozen=True)
class RunSettings:
    """Every setting of a run. It is declared here only: options, help and error messages are made from its metadata.

    Attributes are documented in the README, "Settings"; `RunSettings.read` fills them.
    """

    method: str = _setting(
        _METHOD, "base", "PRUNE_METHOD", str, "Method", "a method's name (audiomarathon list methods); a:ratio+b:ratio"
    )
    ratio: float | None = _setting(
        _METHOD, None, "PRUNE_RATIO", _ratio, "Audio tokens removed", "a fraction from 0 to below 1"
    )
    layer: int = _setting(
        _METHOD, 2, "PRUNE_LAYER_IDX", _integer(0), "Layer at which token pruning drops tokens", _WHOLE_NUMBER
    )
    at: str = _setting(
        _METHOD, "layer", "PRUNE_AT", ("layer", "input"), "Where token pruning drops tokens; input is before the LLM"
    )
    scope: str = _setting(_METHOD, "audio", "PRUNE_SCOPE", ("audio", "all"), "What presses may remove; all is text too")
    limit: int = _setting(
        _DATA, 0, "SAMPLE_LIMIT", _integer(0), "Samples a task, stratified", "a whole number; 0 = all samples"
    )
    results: Path = _setting(_DATA, Path("results"), "RESULTS_DIR", named_folder, "Where results go", "a folder")
    model_path: str = _setting(
        _MODEL, "", "MODEL_PATH", _place, "Checkpoint to load", "a hub id or a folder; empty = the model's default"
    )
    data: str = _setting(
        _DATA, "", "AUDIOMARATHON_DATA", _place, "Root of the tasks' data", "a folder; mini = the mini benchmark"
    )
    device: str = _setting(_MODEL, "auto", "DEVICE", _device, "Device to run on", DEVICES)
    device_map: str = _setting(_MODEL, "", "DEVICE_MAP", DEVICE_MAPS, "How to spread the model over several GPUs")
    dtype: str = _setting(_MODEL, "auto", "DTYPE", DTYPES, "Precision; auto is bfloat16 on a GPU and float32 on a CPU")
    attn_implementation: str = _setting(_MODEL, "sdpa", "ATTN_IMPLEMENTATION", ATTENTION, "Attention implementation")
    batch_size: int = _setting(
        _TIMING, 1, "BATCH_SIZE", _integer(1), "Samples a batch, above 1 only without timing", "a whole number from 1"
    )
    timing: bool = _setting(
        _TIMING, True, "TIMING", _switch, "Time samples one by one, or leave times out and batch them", _ON_OFF
    )
    max_new_tokens: int = _setting(
        _TIMING, 0, "MAX_NEW_TOKENS", _integer(0), "Token limit of a reply", "a whole number; 0 = the task's own limit"
    )
    decode_tokens: int = _setting(
        _TIMING, 0, "DECODE_TOKENS", _integer(0), "Decode exactly N tokens too, to time it", "a whole number; 0 = off"
    )
    seed: int = _setting(
        _DATA, 42, "SEED", _integer(0, 2**32), "Seed of samples and intervals", "a whole number from 0 to 4294967295"
    )
    skip_persons: tuple[str, ...] = _setting(
        _TASKS, (), "SKIP_PERSONS", _persons, "Persons to leave out (vesus)", "ids joined by commas"
    )
    skip_emotion: str = _setting(
        _TASKS, "", "SKIP_EMOTION", str, "Emotion to leave out (vesus), with persons only theirs", "an emotion"
    )
    balance: bool = _setting(_TASKS, False, "BALANCE", _switch, "Take as many real clips as fake ones (had)", _ON_OFF)
    split: str = _setting(
        _TASKS,
        "",
        "TASK_SPLIT",
        str,
        "Part of the data (lalm/clotho)",
        "development, validation, evaluation (the default) or all",
    )
    prompt: str = _setting(
        _TASKS, "", "TASK_PROMPT", str, "Which prompt (lalm/…)", "see docs/lalm-bench.md; empty = the task's own"
    )
    allow_bad_rows: bool = _setting(
        _DATA, False, "ALLOW_BAD_ROWS", _switch, "Leave out wrong rows of metadata, and count them", _ON_OFF
    )
    save_attn: bool = _setting(
        _ATTENTION, False, "SAVE_ATTN", _switch, "Keep each sample's attention, captured in a call of its own", _ON_OFF
    )
    attn_layers: tuple[int, ...] = _setting(
        _ATTENTION, (), "ATTN_LAYERS", _layers, "Layers whose attention is kept", "numbers joined by commas, or all"
    )

    data_paths: tuple[tuple[str, str], ...] = ()
    """`<TASK>_DATA_PATH` variables by name, for the tasks' own folders."""

    samples: tuple[str, ...] = ()
    """Ids of the samples to run, in this order; empty: as `limit` says."""

    attn_full: int = 0
    """Prompt tokens up to which whole attention maps are kept too; 0: none."""

    attn_only: bool = False
    """Whether a run that holds the samples already stays as it is, and attention is added to it."""

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
        if self.attn_layers and not self.save_attn:
            layers = ",".join(map(str, self.attn_layers))
            raise SettingsError(f"ATTN_LAYERS={layers}: nothing is kept of attention; add --save-attn (SAVE_ATTN=1)")
        if self.save_attn and "flash" in self.attn_implementation:
            raise SettingsError(
                f"SAVE_ATTN=1: ATTN_IMPLEMENTATION={self.attn_implementation} does not tell which positions a "
                "layer sees; allowed: sdpa, eager"
            )
        if self.device_map and self.device != "auto":
            raise SettingsError(
                f"DEVICE={self.device} with DEVICE_MAP={self.device_map}: a device map chooses the devices itself; "
                "leave DEVICE out, and limit GPUs by CUDA_VISIBLE_DEVICES"
            )
        if self.ratio and len(re.findall(r":\s*[\d.]", self.method)) > self.method.count("+"):
            raise SettingsError(f"PRUNE_RATIO={self.ratio:g} with PRUNE_METHOD={self.method}: give one ratio, not two")
        if self.decode_tokens == 1:
            raise SettingsError("DECODE_TOKENS=1: time per token needs at least 2 tokens; 64 is usual, 0 is off")

    @property
    def places(self) -> dict[str, Any]:
        """Where methods work: what `get_method` takes beside a name and a ratio."""
        return {"layer": self.layer, "scope": self.scope, "at": self.at}

    @classmethod
    def read(
        cls,
        env: Mapping[str, str] | None = None,
        *,
        file: Mapping[str, Any] | None = None,
        where: str = "file",
        **flags: Any,
    ) -> RunSettings:
        """Fill settings: a flag wins over the env var, which wins over the file, which wins over the default.

        Parameters
        ----------
        env
            Environment to read; `os.environ` when None.
        file
            What a config file holds, by field name.
        where
            The file's name, for messages.
        **flags
            Values by field name, as text or already of the field's type. None is not given.

        Raises
        ------
        SettingsError
            For a value that is not allowed: its name, the value and what is allowed, in one line. For a misspelt
            `PRUNE_` variable: ignored, it would let the wrong method run.
        """
        env, file = os.environ if env is None else env, dict(file or {})
        _check_names(env)
        values: dict[str, Any] = {}
        paths = file.pop("data_paths", {})
        if flags.get("data") is None:  # a flag wins over every env var, so over those of single tasks too
            paths = {} if env.get("AUDIOMARATHON_DATA", "").strip() else paths  # and an env var over all of the file
            paths = {**paths, **{name: text for name, text in env.items() if name.endswith(PATH_ENDING) and text}}
            values["data_paths"] = tuple(sorted(paths.items()))
        for setting in settings_fields():
            name, text = setting.metadata["env"], env.get(setting.metadata["env"], "")
            flag, written = flags.pop(setting.name, None), file.pop(setting.name, None)
            if flag is not None:
                name, text = flag_of(setting), flag
            elif written is not None and not text.strip():
                name, text = f"{where}: {flag_of(setting)[2:]}", written
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
        if unknown := sorted({*flags, *file}):
            raise SettingsError(f"unknown setting {unknown[0]!r}")
        return cls(**values)


def settings_fields() -> list[dataclasses.Field[Any]]:
    """Return the settings; each one's metadata has `group`, `env`, `help`, `parse`, `allowed` and `values`."""
    return [field_ for field_ in dataclasses.fields(RunSettings) if "env" in field_.metadata]


def flag_of(setting: dataclasses.Field[Any]) -> str:
    """Return a setting's flag, such as `--model-path`."""
    return f"--{setting.name.replace('_', '-')}"


def described(setting: dataclasses.Field[Any]) -> str:
    """Return what a setting is and, unless a flag switches it, what is allowed."""
    help_, allowed = setting.metadata["help"], setting.metadata["allowed"]
    return str(help_) if allowed == _ON_OFF else f"{help_}: {allowed}"


def env_names() -> dict[str, str]:
    """Return each setting's env var and what it allows."""
    return {setting.metadata["env"]: setting.metadata["allowed"] for setting in settings_fields()}


def cache_folder() -> Path:
    """Return the folder for what is kept between runs: `AUDIOMARATHON_CACHE`, else `~/.cache/audiomarathon`."""
    return Path(os.environ.get("AUDIOMARATHON_CACHE") or Path.home() / ".cache" / "audiomarathon")


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

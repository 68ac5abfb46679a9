"""The settings of a run: one frozen dataclass, filled from flags, env vars, a config file and defaults.

If several of these sources name a setting, the first wins. The module does not import torch, so that a bad value is
refused at once.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from audiomarathon.errors import DataError, SettingsError
from audiomarathon.files import named_folder
from audiomarathon.languages import LANGUAGES
from audiomarathon.text import did_you_mean, nearly, plain

SEED = 42  # default of the setting `seed`, and of every other seed that a caller may choose
DEVICES = "auto, cpu, cuda, cuda:N"
_SPLITS = "development, validation, evaluation (the default) or all"
DTYPES = ("auto", "float32", "float16", "bfloat16")
ATTENTION = ("sdpa", "eager", "flash_attention_2")
SDPA_BACKENDS = "flash,efficient,math"
_BACKENDS = (*SDPA_BACKENDS.split(","), "cudnn")
GRAPH, EAGER = "graph", "eager"
PLACES = ("layer", "input", "tower")  # values of the setting `at`
AUTO = "auto"  # value of the settings `batch_size` and `decode`
COLD = "cold"  # value of the setting `timing`
DEVICE_MAPS = ("", "auto", "balanced", "balanced_low_0", "sequential")
_READ_ELSEWHERE = ("AUDIOMARATHON_CACHE", "CUDA_VISIBLE_DEVICES", "HF_TOKEN", "OPENAI_BASE_URL")
_LONG_ENOUGH = 6  # check only longer names for typos: shorter names often belong to other programs
PATH_ENDING = "_DATA_PATH"  # ending of env vars that name one task's folder
_PREFIX = "PRUNE_"  # prefix of env vars that say what to prune
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_LONGEST, _SHOWN = 1000, 60  # limits in characters: of a value, and of a refused value in a message
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _integer(low: int, beyond: float = math.inf) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not _WHOLE.fullmatch(text) or not low <= int(text) < beyond:
            raise ValueError
        return int(text)

    return parse


def _batch_size(text: str) -> int | str:
    return AUTO if text == AUTO else _integer(1)(text)


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


def _matching(pattern: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError
        return text

    return parse


def _persons(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _backends(text: str) -> str:
    names = {part.strip().lower() for part in text.split(",")}
    if not names <= {*_BACKENDS}:
        raise ValueError
    return ",".join(name for name in _BACKENDS if name in names)


#: What desktops set LANGUAGE to: locales such as en_US:en, de: or C. They say nothing about the speech.
_LOCALES = re.compile(r"C|POSIX|(?=.*[_:.@-])[A-Za-z:][A-Za-z0-9_:.@-]*")


def _language(text: str) -> str:
    if text.lower() not in LANGUAGES:
        raise ValueError
    return text.lower()


def _timing(text: str) -> bool | str:
    return COLD if text.lower() == COLD else _switch(text)


def _layers(text: str) -> tuple[int, ...]:
    return () if text == "all" else tuple(sorted({_integer(0)(part.strip()) for part in text.split(",")}))


#: Pairs of an LLM layer and the fraction of audio tokens that are removed from this layer on.
Schedule = tuple[tuple[int, float], ...]
RISING = "LAYER:RATIO,…, both rising, up to the ratio, such as 2:0.3,8:0.7"


def schedule_of(text: str) -> Schedule:
    """Parse a schedule such as `2:0.3,8:0.5`: 0.3 of the audio tokens are removed from layer 2 on, 0.5 from layer 8 on.

    Return pairs (layer, fraction). Raise ValueError unless both rise from pair to pair.
    """
    parts = [part.partition(":") for part in text.split(",")] if text else []
    schedule = tuple((_integer(0)(layer.strip()), _ratio(ratio.strip())) for layer, _colon, ratio in parts)
    steps = [(0, 0.0), *schedule]
    if any(not ratio > before for (_, before), (_, ratio) in zip(steps, schedule, strict=False)):
        raise ValueError
    if any(not layer > before for (before, _), (layer, _) in pairwise(schedule)):
        raise ValueError
    return schedule


def as_text(schedule: Schedule) -> str:
    """Write a schedule (from which layer on which fraction of the tokens is removed) as text such as `2:0.3,8:0.5`.

    :func:`schedule_of` parses it back.
    """
    return ",".join(f"{layer}:{float(ratio)!r}" for layer, ratio in schedule)


def _schedule(text: str) -> str:
    return as_text(schedule_of(text))


_natural, _device = _integer(0), _matching("auto|cpu|cuda(:[0-9]+)?")
_ALLOWED: dict[object, str] = {_switch: "1 or 0", _natural: "a whole number from 0", _device: DEVICES}


def _setting(
    group: str, default: Any, env: str, parse: Callable[[str], Any] | Sequence[str], help_: str, allowed: str = ""
) -> Any:
    """Declare a setting: return a dataclass field whose metadata describes it.

    Parameters
    ----------
    group
        Heading in the help.
    env
        Name of the env var.
    parse
        Either a function that turns text into a value, or the list of allowed values.
    help_, allowed
        Description of the setting, and of its allowed values, for help and errors.
    """
    facts: dict[str, Any] = {"group": group, "env": env, "help": help_, "values": ()}
    if not callable(parse):
        facts["values"], allowed = parse, ", ".join(value or "empty" for value in parse)
        parse = _matching("|".join(map(re.escape, parse)))
    return field(default=default, metadata={**facts, "parse": parse, "allowed": allowed or _ALLOWED[parse]})


_METHOD, _DATA, _MODEL = "Method", "Data and results", "Model and machine"
_TIMING, _TASKS, _ATTENTION = "Timing and replies", "Single tasks", "Attention"


@dataclass(frozen=True)
class RunSettings:
    """Every setting of a run. Command-line options, help and errors are made from the metadata of these fields.

    docs/reference.md documents the attributes; :meth:`read` makes an object from flags and env vars.
    """

    method: str = _setting(
        _METHOD, "base", "PRUNE_METHOD", str, "Method", "a name (audiomarathon list methods), or a:ratio+b:ratio"
    )
    ratio: float | None = _setting(
        _METHOD, None, "PRUNE_RATIO", _ratio, "Fraction of audio tokens to remove", "a number from 0 to below 1"
    )
    layer: int = _setting(_METHOD, 2, "PRUNE_LAYER_IDX", _natural, "Layer at which a token pruner drops tokens")
    at: str = _setting(
        _METHOD,
        "layer",
        "PRUNE_AT",
        PLACES,
        "Where a token pruner drops tokens: in the LLM, before it, in the audio tower",
    )
    tower_layer: int | None = _setting(
        _METHOD, None, "PRUNE_TOWER_LAYER", _natural, "Layer of the tower from which --at tower drops",
        "a whole number; empty = half of its layers",
    )  # fmt: skip
    schedule: str = _setting(
        _METHOD, "", "PRUNE_SCHEDULE", _schedule, "Layers at which a token pruner drops in steps, in place of --layer",
        RISING,
    )  # fmt: skip
    scope: str = _setting(
        _METHOD, "audio", "PRUNE_SCOPE", ("audio", "all"), "Cache entries that a press may remove; all includes text"
    )
    limit: int = _setting(
        _DATA, 0, "SAMPLE_LIMIT", _natural, "Samples per task, stratified", "a whole number; 0 = all samples"
    )
    results: Path = _setting(_DATA, Path("results"), "RESULTS_DIR", named_folder, "Where to write results", "a folder")
    model_path: str = _setting(
        _MODEL, "", "MODEL_PATH", _place, "Checkpoint to load", "a hub id or a folder; empty = the model's default"
    )
    data: str = _setting(
        _DATA, "", "AUDIOMARATHON_DATA", _place, "Where the tasks' data is", "a folder; mini = the mini benchmark"
    )
    device: str = _setting(_MODEL, "auto", "DEVICE", _device, "Device of the model")
    device_map: str = _setting(_MODEL, "", "DEVICE_MAP", DEVICE_MAPS, "How to spread the model over several GPUs")
    dtype: str = _setting(_MODEL, "auto", "DTYPE", DTYPES, "Precision; auto is bfloat16 on a GPU, float32 on a CPU")
    attn_implementation: str = _setting(_MODEL, "sdpa", "ATTN_IMPLEMENTATION", ATTENTION, "Attention implementation")
    sdpa_backends: str = _setting(
        _MODEL,
        SDPA_BACKENDS,
        "SDPA_BACKENDS",
        _backends,
        "Kernels that sdpa may use on a GPU; cudnn makes a plan for every new length, which is slow",
        f"{', '.join(_BACKENDS)}, joined by commas",
    )
    decode: str = _setting(
        _MODEL,
        AUTO,
        "DECODE",
        (AUTO, GRAPH, EAGER),
        "How to decode: graph replays one captured step where model and method allow it; auto is graph on one GPU, "
        "eager elsewhere",
    )
    prefill_chunk: int = _setting(
        _MODEL,
        0,
        "PREFILL_CHUNK",
        _natural,
        "Tokens that each layer takes at a time in prefill, which saves memory with long audio",
        "a whole number; 0 = the whole prompt",
    )
    batch_size: int | str = _setting(
        _TIMING,
        1,
        "BATCH_SIZE",
        _batch_size,
        "Samples per batch; above 1 needs --no-timing. auto: for each setting, the most that fit into memory",
        "a whole number from 1, or auto",
    )
    timing: bool | str = _setting(
        _TIMING,
        True,
        "TIMING",
        _timing,
        "Measure times, which needs batch size 1; TIMING=cold leaves out a GPU's warm pass",
        "1, 0 or cold",
    )
    busy_samples: int = _setting(
        _TIMING, 2, "BUSY_SAMPLES", _natural, "On a GPU, samples of a task whose kernels are also timed, in extra calls"
    )
    max_new_tokens: int = _setting(
        _TIMING, 0, "MAX_NEW_TOKENS", _natural, "Token limit of a reply", "a whole number; 0 = the task's limit"
    )
    language: str = _setting(
        _TASKS,
        "",
        "LANGUAGE",
        _language,
        "Language of the speech, for transcripts (Whisper, Voxtral)",
        "a code such as en, de or yue; empty = the task's",
    )
    decode_tokens: int = _setting(
        _TIMING, 0, "DECODE_TOKENS", _natural, "Also decode exactly N tokens, to time it", "a whole number; 0 = off"
    )
    seed: int = _setting(
        _DATA, SEED, "SEED", _integer(0, 2**32), "Seed of samples and intervals", "a whole number from 0 to 4294967295"
    )
    skip_persons: tuple[str, ...] = _setting(
        _TASKS, (), "SKIP_PERSONS", _persons, "Persons to skip (vesus)", "ids joined by commas"
    )
    skip_emotion: str = _setting(
        _TASKS,
        "",
        "SKIP_EMOTION",
        str,
        "Emotion to skip (vesus); with --skip-persons, only where these persons show it",
        "an emotion",
    )
    balance: bool = _setting(_TASKS, False, "BALANCE", _switch, "Balance real and fake clips (had)")
    beyond_limits: bool = _setting(
        _DATA, False, "BEYOND_LIMITS", _switch, "Also run samples whose audio is longer than the model takes"
    )
    split: str = _setting(_TASKS, "", "TASK_SPLIT", str, "Part of the data (lalm/clotho)", _SPLITS)
    prompt: str = _setting(
        _TASKS, "", "TASK_PROMPT", str, "Prompt (lalm/…)", "a name in docs/lalm-bench.md; empty = the task's default"
    )
    allow_bad_rows: bool = _setting(
        _DATA, False, "ALLOW_BAD_ROWS", _switch, "Skip invalid rows of metadata, and count them"
    )
    save_attn: bool = _setting(
        _ATTENTION, False, "SAVE_ATTN", _switch, "Save each sample's attention, in a separate call"
    )
    attn_layers: tuple[int, ...] = _setting(
        _ATTENTION, (), "ATTN_LAYERS", _layers, "Layers whose attention is saved", "numbers joined by commas, or all"
    )

    data_paths: tuple[tuple[str, str], ...] = ()
    """Folders of single tasks, by the name of their `<TASK>_DATA_PATH` variable."""

    samples: tuple[str, ...] = ()
    """Ids of the samples to run, in this order; if empty, `limit` selects them."""

    attn_full: int = 0
    """Save whole attention maps for prompts of at most this many tokens; 0 saves none."""

    attn_only: bool = False
    """Whether to only add attention to an existing run, and leave its records unchanged."""

    def __post_init__(self) -> None:
        """Raise a :class:`SettingsError` if two settings contradict each other."""
        if self.tower_layer is not None and self.at != "tower":
            both = f"PRUNE_TOWER_LAYER={self.tower_layer} with PRUNE_AT={self.at}"
            raise SettingsError(f"{both}: nothing is dropped in the tower; set PRUNE_AT=tower (--at tower)")
        if self.schedule and self.at != "layer":
            both = f"PRUNE_SCHEDULE={self.schedule} with PRUNE_AT={self.at}"
            raise SettingsError(f"{both}: only layers of the LLM have a schedule; leave one of the two out")
        if self.batch_size != 1 and self.timing:
            raise SettingsError(f"BATCH_SIZE={self.batch_size}: needs --no-timing (TIMING=0); times need batch size 1")
        if self.decode_tokens and not self.timing:
            raise SettingsError(f"DECODE_TOKENS={self.decode_tokens}: needs times; set it to 0, or omit --no-timing")
        if self.attn_layers and not self.save_attn:
            layers = ",".join(map(str, self.attn_layers))
            raise SettingsError(f"ATTN_LAYERS={layers}: attention is not saved; add --save-attn (SAVE_ATTN=1)")
        if self.save_attn and "flash" in self.attn_implementation:
            flash = f"ATTN_IMPLEMENTATION={self.attn_implementation}"
            raise SettingsError(f"SAVE_ATTN=1 does not work with {flash}; allowed: sdpa, eager")
        if self.device_map and self.decode == GRAPH:
            both = f"DECODE=graph with DEVICE_MAP={self.device_map}"
            raise SettingsError(
                f"{both}: a graph needs the model on one GPU; leave DEVICE_MAP out, or set DECODE=eager"
            )
        if self.device_map and self.device != "auto":
            both = f"DEVICE={self.device} with DEVICE_MAP={self.device_map}"
            raise SettingsError(f"{both}: set only one; CUDA_VISIBLE_DEVICES selects the GPUs of a device map")
        if self.ratio and len(re.findall(r":\s*[\d.]", self.method)) > self.method.count("+"):
            raise SettingsError(f"PRUNE_RATIO={self.ratio:g} with PRUNE_METHOD={self.method}: give one ratio, not two")
        if self.decode_tokens == 1:
            raise SettingsError("DECODE_TOKENS=1: time per token needs 2 or more; allowed: 0 (off), or 2 and more")

    @property
    def places(self) -> dict[str, Any]:
        """The settings that say where a method drops tokens, as keyword arguments of `get_method`.

        They are `layer`, `scope`, `at`, `tower_layer` and `schedule`.
        """
        return {name: getattr(self, name) for name in ("layer", "scope", "at", "tower_layer", "schedule")}

    @classmethod
    def read(
        cls,
        env: Mapping[str, str] | None = None,
        *,
        file: Mapping[str, Any] | None = None,
        where: str = "file",
        **flags: Any,
    ) -> RunSettings:
        """Read settings. A flag wins over the env var, the env var over the file, the file over the default.

        Parameters
        ----------
        env
            Environment to read; None for `os.environ`.
        file
            Content of a config file, by field name.
        where
            The config file's name, for messages.
        **flags
            Values by field name, as text or of the field's type. None counts as not given.

        Raises
        ------
        SettingsError
            For a value that is not allowed; the message shows name, value and allowed values. Also for a misspelt
            `PRUNE_` variable: if it were ignored, the wrong method would run.
        """
        env, file = os.environ if env is None else env, dict(file or {})
        _check_names(env)
        values: dict[str, Any] = {}
        paths = file.pop("data_paths", {})
        if flags.get("data") is None:  # --data also wins over the env vars of single tasks
            paths = {} if env.get("AUDIOMARATHON_DATA", "").strip() else paths  # the flag wins over the file's paths
            paths = {**paths, **{name: text for name, text in env.items() if name.endswith(PATH_ENDING) and text}}
            values["data_paths"] = tuple(sorted(paths.items()))
        for setting in settings_fields():
            name, text = setting.metadata["env"], env.get(setting.metadata["env"], "")
            if name == "LANGUAGE" and _LOCALES.fullmatch(text.strip()):
                text = ""
            flag, written = flags.pop(setting.name, None), file.pop(setting.name, None)
            if flag is not None:
                name, text = flag_of(setting), flag
            elif written is not None and not text.strip():
                name, text = f"{where}: {flag_of(setting)[2:]}", written
            if isinstance(text, str) and not (text := text.strip()):  # strip: lines of an .env file may end in CR
                continue
            try:
                if len(str(text)) > _LONGEST or plain(str(text)) != str(text) or "\n" in str(text):
                    raise ValueError
                values[setting.name] = setting.metadata["parse"](text) if isinstance(text, str) else text
                if isinstance(text, (int, float)) and not isinstance(text, bool):
                    setting.metadata["parse"](str(text))  # check the bounds of numbers too
            except (ValueError, DataError):
                shown = plain(str(text)).replace("\n", "\\n")
                shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}… ({len(shown):,} characters)"
                lists = setting.name == "ratio" and "," in str(text)
                several = "; for several ratios use audiomarathon sweep --ratios" if lists else ""
                raise SettingsError(
                    f"{name}={shown}: not allowed; allowed: {setting.metadata['allowed']}{several}"
                ) from None
        if unknown := sorted({*flags, *file}):
            raise SettingsError(f"unknown setting {unknown[0]!r}; see audiomarathon run --help")
        return cls(**values)


def own_settings(**flags: Any) -> RunSettings:
    """Read settings from `flags`, and those that are not given from env vars, as :meth:`RunSettings.read` does.

    Only `PRUNE_METHOD` and `PRUNE_RATIO` are ignored, since the caller chooses the methods.
    """
    env = {name: value for name, value in os.environ.items() if name not in ("PRUNE_METHOD", "PRUNE_RATIO")}
    return RunSettings.read(env, **flags)


def settings_fields() -> list[dataclasses.Field[Any]]:
    """Return the dataclass fields of :class:`RunSettings` that users can set.

    The metadata of each field has `group`, `env`, `help`, `parse`, `allowed` and `values`.
    """
    return [field_ for field_ in dataclasses.fields(RunSettings) if "env" in field_.metadata]


def flag_of(setting: dataclasses.Field[Any]) -> str:
    """Return a setting's flag, such as `--model-path`."""
    return f"--{setting.name.replace('_', '-')}"


def flags_for(values: Mapping[str, Any]) -> list[str]:
    """Return command-line flags, as a list of arguments, that set the given values, such as those stored in `run.json`.

    `values` maps settings' field names to values. Values of None and defaults are left out, and so is `timing` as
    `cold`, which has no flag.
    """
    flags = list[str]()
    for setting in settings_fields():
        value = values.get(setting.name)
        value = tuple(value) if isinstance(value, list) else value
        if value is None or value == setting.default:
            continue
        if isinstance(setting.default, bool):
            flags += [flag_of(setting) if value else f"--no-{flag_of(setting)[2:]}"] if value != COLD else []
        else:
            flags += [flag_of(setting), ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    return flags


def described(setting: dataclasses.Field[Any]) -> str:
    """Return a setting's help text, followed by its allowed values unless it is an on/off switch."""
    facts = setting.metadata
    return str(facts["help"]) if isinstance(setting.default, bool) else f"{facts['help']}: {facts['allowed']}"


def env_names() -> dict[str, str]:
    """Return a mapping from each setting's env var to a description of its allowed values."""
    return {setting.metadata["env"]: setting.metadata["allowed"] for setting in settings_fields()}


def cache_folder() -> Path:
    """Return the cache folder: `AUDIOMARATHON_CACHE`, else `~/.cache/audiomarathon`."""
    return Path(os.environ.get("AUDIOMARATHON_CACHE") or Path.home() / ".cache" / "audiomarathon")


def _check_names(env: Mapping[str, str]) -> None:
    """Raise an error for a misspelt `PRUNE_` variable: if ignored, the wrong method would run.

    Warn of other misspelt names.
    """
    known = [*env_names(), *_READ_ELSEWHERE]
    for name in sorted(set(env) - set(known)):
        near = nearly(name.upper(), known) if len(name) >= _LONG_ENOUGH else []
        ours = [name for name in known if name.startswith(_PREFIX)]
        if name.startswith(_PREFIX) or set(near) & set(ours):
            raise SettingsError(
                f"unknown env var {name}{did_you_mean(name, near or ours)}; rename or unset it; allowed: "
                f"{', '.join(ours)}"
            )
        if near:
            warnings.warn(f"unknown env var {name} is ignored{did_you_mean(name, near)}", stacklevel=3)

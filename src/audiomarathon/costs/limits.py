"""Find the longest audio that a model takes, and the source of each limit, without loading weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audiomarathon.benchmarks import Sample, Task
from audiomarathon.benchmarks.clip_limits import longest_clips, too_long
from audiomarathon.compression.method import Method, kept_count
from audiomarathon.costs.cost import TEXT_TOKENS
from audiomarathon.errors import ModelError, SettingsError, warn
from audiomarathon.files import json_object
from audiomarathon.models.registry import ModelSpec
from audiomarathon.settings import RunSettings
from audiomarathon.text import counted

REPLY_TOKENS = 256
"""Assumed length of a reply, in tokens, if no task sets it."""
_STRETCHED = ("linear", "dynamic", "yarn")  # kinds of rotary embedding that extend the positions by `factor`


@dataclass(frozen=True)
class Limits:
    """Limits on the length of audio for one model, from its checkpoint's config and this package's table of models.

    Attributes
    ----------
    positions
        Largest number of tokens of prompt and reply together; None if no limit is stated.
    source
        Source of `positions`, as text.
    window, window_source
        Length of the audio tower's independent windows in seconds (0 if unknown), and the source of this number.
    """

    spec: ModelSpec
    positions: int | None
    source: str
    window: float
    window_source: str

    def tokens(self, seconds: float, method: Method | None = None) -> int:
        """Return about how many positions a prompt with `seconds` of audio takes under a method.

        If the method drops at the LLM's input, only kept tokens take positions; if it drops at a layer, all tokens do.
        """
        return TEXT_TOKENS + kept_count(math.ceil(seconds * self.spec.tokens_per_second), _dropped(method))

    def longest(self, reply: int, method: Method | None = None) -> float:
        """Return about how many seconds of audio leave room for a reply of `reply` tokens; infinite without a limit."""
        if self.positions is None:
            return math.inf
        return max(0, self.positions - reply - TEXT_TOKENS) / self.spec.tokens_per_second / (1 - _dropped(method))

    def beyond(self, seconds: float, reply: int, method: Method | None = None) -> str:
        """Return a message if audio of this length, with text and reply, needs more positions than the model has.

        Return "" if it does not.
        """
        if self.positions is None or (tokens := self.tokens(seconds, method)) + reply <= self.positions:
            return ""
        return (
            f"{seconds:,.0f} s of audio take about {tokens:,} tokens with the text, and the reply up to {reply:,}; "
            f"{self.spec.key} has {self.positions:,} positions ({self.source}), enough for "
            f"{self.longest(reply, method):,.0f} s"
        )

    def lines(self, seconds: float, reply: int) -> list[str]:
        """Return lines for the user: each limit, its source, and whether audio of this length exceeds it."""
        spec, about = self.spec, "none stated"
        if self.positions is not None:
            longest = self.longest(reply)
            about = f"{self.positions:,}, from {self.source}; {spec.tokens_per_second:g} audio tokens a second, about "
            about += f"{TEXT_TOKENS} of text and {reply} of reply leave {longest:,.0f} s ({longest / 60:.1f} minutes)"
        elif self.source:
            about = f"{about}: {self.source}"
        tower = f"windows of {self.window:g} s, so clips of any length" if self.window else "no limit known"
        most = f"{spec.most_seconds:g} s" if spec.most_seconds else "none stated"
        lines = [
            f"positions: {about}.",
            f"audio tower: {tower} (from {self.window_source}).",
            f"documented longest clip: {most} (from the table of models).",
        ]
        return [*lines, *filter(None, [self.refused(seconds, reply)])]

    def refused(self, seconds: float, reply: int) -> str:
        """Return why a run with one clip of this length would end with an error; "" if it would not."""
        if 0 < self.spec.most_seconds < seconds:
            return f"{seconds:,.0f} s are beyond the documented longest clip"
        return self.beyond(min(seconds, self.spec.heard_seconds or math.inf), reply)


def _dropped(method: Method | None) -> float:
    """Return the fraction of audio tokens that a method drops at the LLM's input, so that they take no positions; else
    0.
    """
    first = getattr(method, "first", method)
    return float(first.ratio) if first is not None and getattr(first, "at", "") == "input" else 0.0


def limits_of(spec: ModelSpec, path: Path) -> Limits:
    """Return a checkpoint's limits on the length of audio, read from its config.json by the family's config class.

    Raises
    ------
    ModelError
        The config cannot be read.
    """
    from audiomarathon.models.loading import loading

    family = spec.load_family()
    with loading(path, family.__name__):
        whole = family.read_config(path)
        config = whole.get_text_config(decoder=True)
    audio = getattr(getattr(whole, "thinker_config", whole), "audio_config", None)
    usual = family.encoder_window_seconds, spec.family.partition(":")[0]
    frames = getattr(audio, "n_window_infer", 0) or 2 * getattr(audio, "n_window", 0)  # a hundred positions a second
    tower = (frames / 100, "config.json: audio_config.n_window") if frames and not usual[0] else usual
    if whole.is_encoder_decoder:
        return Limits(spec, None, "the decoder sees one window of audio at a time", *tower)
    most: int | None = getattr(config, "max_position_embeddings", None)
    if not most or most < 0:
        return Limits(spec, None, "", *tower)
    source = _stated(json_object((path / "config.json").read_bytes()) or {}, most)
    source = source or f"transformers' default for {whole.model_type}, since config.json states none"
    rope = getattr(config, "rope_parameters", None) or {}
    for kind in (
        [rope] if "rope_type" in rope else [settings for settings in rope.values() if isinstance(settings, dict)]
    ):
        factor = kind.get("factor")
        if not isinstance(factor, int | float) or not math.isfinite(factor):
            continue  # no rope scaling, or a kind of which transformers warns
        reach = int((kind.get("original_max_position_embeddings") or most) * factor)
        if kind.get("rope_type") in _STRETCHED and reach > most:
            most, source = reach, f"{source} and its rope factor of {factor:g}"
    return Limits(spec, most, source, *tower)


def _stated(content: dict[str, Any], most: int) -> str:
    """Return where config.json states the LLM's positions, such as `config.json: text_config.max_…`; "" if nowhere."""
    places: list[tuple[str, Any]] = [("", content)]
    for name in ("thinker_config", "text_config"):
        places += [(f"{above}{name}.", part.get(name)) for above, part in places if isinstance(part.get(name), dict)]
    above_parts = [above for above, part in reversed(places) if part.get("max_position_embeddings") == most]
    return f"config.json: {above_parts[0]}max_position_embeddings" if above_parts else ""


def check_length(
    spec: ModelSpec,
    path: Path | None,
    task: Task,
    samples: Sequence[Sample],
    settings: RunSettings,
    methods: Sequence[Method],
) -> None:
    """Raise SettingsError if audio is longer than a model takes; with BEYOND_LIMITS, only warn.

    Parameters
    ----------
    path
        The checkpoint's folder; None if it is not on this machine. Then positions are not checked.

    Raises
    ------
    SettingsError
        Samples are too long, and BEYOND_LIMITS is off.
    """
    line = "" if spec.remote else too_long(spec, task, samples)
    line = line or ("" if path is None else beyond_positions(spec, path, task, samples, settings, methods))
    if line and settings.beyond_limits:
        warn(line)
    elif line:
        raise SettingsError(
            f"{line}; allowed: shorter clips, where positions are the limit a pruner at the input (--at input; in a "
            "sweep also --no-base), or --beyond-limits (BEYOND_LIMITS=1), which is on record"
        )


def beyond_positions(
    spec: ModelSpec,
    path: Path,
    task: Task,
    samples: Sequence[Sample],
    settings: RunSettings,
    methods: Sequence[Method],
) -> str:
    """Return a message that counts the samples whose prompt and reply exceed a model's positions; "" if there are none.

    The numbers are those of the first method under which there are such samples. The message also names the methods
    under which all samples fit.
    """
    if spec.remote or not spec.load_family().hears:
        return ""
    try:
        limits = limits_of(spec, path)
    except (ModelError, AttributeError):  # loading reports it
        return ""
    if limits.positions is None:
        return ""
    reply = max(settings.max_new_tokens or task.max_new_tokens, settings.decode_tokens)
    heard = longest_clips(samples, together=True, most=spec.heard_seconds)
    beyond = {
        method.label: [id_ for id_, seconds in heard.items() if limits.beyond(seconds, reply, method)]
        for method in methods
    }
    method = next((method for method in methods if beyond[method.label]), None)
    if method is None:
        return ""
    over, fits = beyond[method.label], ", ".join(label for label, ids in beyond.items() if not ids)
    worst = max(over, key=heard.__getitem__)
    return (
        f"{task.key}: {len(over):,} of {counted(len(samples), 'sample')} too long for {method.label}"
        + f" (not for {fits})" * bool(fits)
        + f", the longest {worst}: {limits.beyond(heard[worst], reply, method)}"
    )

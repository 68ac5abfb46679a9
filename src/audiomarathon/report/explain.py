"""Draw which moments of a sample's audio each method keeps: a spectrogram, and below it a strip per method."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from audiomarathon.errors import SettingsError
from audiomarathon.report.charts import library, literal
from audiomarathon.report.styles import colour

if TYPE_CHECKING:
    import torch

    from audiomarathon.models.generation import Generation
    from audiomarathon.models.prompt import Inputs, Waveform

Floats = npt.NDArray[np.float64]

_BINS = 500  # number of columns of a strip, over all clips
_EVENT = "#000000"
_LEAST_LOSS = 0.01  # nats
_INKS = {"base": "#7F7F7F", "evidence": "#B34700"}  # colours of the strips that do not belong to a method


@dataclass(frozen=True)
class Clip:
    """A clip to draw, below which the picture shows what each method kept of it.

    Attributes
    ----------
    waveform
        The clip's mono audio.
    events
        (Onset, length) in seconds of each event that decides the question; empty if unknown.
    """

    name: str
    waveform: Waveform
    sampling_rate: int
    events: tuple[tuple[float, float], ...] = ()

    @property
    def seconds(self) -> float:
        """The clip's duration in seconds."""
        return len(self.waveform) / self.sampling_rate


@dataclass(frozen=True)
class Strip:
    """What one method kept of the audio, with the model's reply, to draw as a strip along time.

    Attributes
    ----------
    shares
        For each clip, the share of (layer, head) pairs that keep each audio token, 0–1.
    right
        Whether the reply is right, shown by colour; None if unknown or partly right.
    facts
        Text below the reply; by default, the kept share.
    """

    method: str
    label: str
    shares: tuple[Floats, ...]
    reply: str
    right: bool | None = None
    facts: str = ""


def evidence_strip(losses: Sequence[Floats], seconds: float, strips: Sequence[Strip]) -> tuple[Strip, list[Strip]]:
    """Find the moments that a reply depends on (the evidence), and how much of it each method keeps.

    Return a new strip (a bar along time in the picture) that shows the evidence, and copies of all strips, each with
    the share that its method keeps as text.

    Parameters
    ----------
    losses
        For each clip, how much the reply's log-probability fell when each moment of `seconds` was hidden; see
        :func:`~audiomarathon.engine.occlusion.losses_when_hidden`. Only losses above 0 count as evidence. If no loss
        reaches 0.01 (1 % of the reply's probability), the strip is blank and no shares are given.
    """
    support = [clip_losses.clip(min=0) for clip_losses in losses]
    most, total = (
        max(float(clip_losses.max()) for clip_losses in support),
        sum(float(clip_losses.sum()) for clip_losses in support),
    )
    by_token = [
        clip_losses[np.arange(len(shares)) * len(clip_losses) // len(shares)]
        for clip_losses, shares in zip(support, strips[0].shares, strict=True)
    ]
    label, shown = f"reply's loss if\n{seconds:g} s is hidden", f"largest loss {most:.2g} nats, all {total:.2g}"
    if most < _LEAST_LOSS:
        nothing = tuple(np.zeros_like(clip_losses) for clip_losses in by_token)
        return Strip("evidence", label, nothing, "depends on no single moment", None, shown), [*strips]
    weight = sum(float(clip_losses.sum()) for clip_losses in by_token)
    told = []
    for strip in strips:
        kept = sum(
            float((clip_losses * shares).sum()) for clip_losses, shares in zip(by_token, strip.shares, strict=True)
        )
        told.append(replace(strip, facts=f"evidence {kept / weight:.0%}"))
    shades = tuple(clip_losses / most for clip_losses in by_token)
    return Strip("evidence", label, shades, "what the reply depends on", None, shown), told


def shares_kept(inputs: Inputs, generation: Generation) -> Floats:
    """Return how much of each audio token a method kept: the share of (layer, head) pairs whose KV cache keeps it.

    The shape is (N,) for N audio tokens. With a pruner, the share of a token is 1 (kept) or 0 (dropped), or its weight
    in the token that it was merged into; layers before the drop do not count. If tokens are dropped in steps, it is the
    share of the layers from the first step on that hold the token. With a pruner and a press, the share is averaged
    over all layers.

    Parameters
    ----------
    inputs
        A batch of one sample.
    generation
        Its result from `generate(…, keep_entries=True)`.
    """
    audio = inputs.audio_mask[0].cpu().numpy()
    (left,) = generation.kept_positions or (None,)
    steps = [(layer, row[0]) for layer, row in generation.kept_steps or ()]
    entries = [layer.double().mean(0).numpy() for layer in generation.kept_entries or ()]
    if not entries and steps:
        entries = [np.ones(len(_left(steps, layer))) for layer in range(steps[0][0], len(generation.kv_lengths))]
    elif not entries:
        entries = [np.ones(len(audio) if left is None else len(left))]
    total = np.zeros(len(audio))
    for layer, share in enumerate(entries, len(generation.kv_lengths) - len(entries)):
        positions = left if not steps or layer < steps[0][0] else _left(steps, layer)
        if positions is not None and len(share) == len(positions):
            total[positions.numpy()] += share
        else:
            total += share
    kept: Floats = (total / len(entries))[audio]
    (merge,) = generation.merges or (None,)
    if merge is None:
        return kept
    group, weight = merge.group.cpu().numpy(), merge.weight.double().abs().cpu().numpy()
    whole = np.maximum(np.bincount(group, weight), 1e-12)[group]
    spread: Floats = kept[merge.kept.cpu().numpy()][group] * weight / whole
    return spread


def _left(steps: Sequence[tuple[int, torch.Tensor]], layer: int) -> torch.Tensor:
    """Return, for tokens that a method drops in steps, the positions of those that are left in a layer.

    Each step is (first layer, positions that remain from this layer on).
    """
    return next(kept for first, kept in reversed(steps) if first <= layer)


def event_share(clips: Sequence[Clip], strip: Strip, tokens_per_second: float) -> float | None:
    """Return the share (0 to 1) kept of the events that decide the question: the mean over their audio tokens.

    None if no event is known.
    """
    inside = []
    for clip, shares in zip(clips, strip.shares, strict=True):
        starts = np.arange(len(shares)) / tokens_per_second
        for onset, length in clip.events:
            inside.append(shares[(starts + 1 / tokens_per_second > onset) & (starts < onset + length)])
    heard = np.concatenate(inside) if inside else np.empty(0)
    return float(heard.mean()) if len(heard) else None


def draw(title: str, clips: Sequence[Clip], strips: Sequence[Strip], tokens_per_second: float, path: Path) -> Path:
    """Draw the clips' spectrograms to a file and, below them, a strip along time per method; return the file's path.

    A strip shows which audio tokens the method kept.

    Parameters
    ----------
    tokens_per_second
        Audio tokens per second of audio: token i of a clip is at i / `tokens_per_second`.

    Raises
    ------
    SettingsError
        Matplotlib (the extra `report`) is missing, or the file cannot be written.
    """
    library("matplotlib")
    from matplotlib.figure import Figure

    lines = [line for part in title.splitlines() for line in textwrap.wrap(part, 120) or [""]]
    above, below = 0.35 + 0.24 * len(lines), 0.85
    height = above + 2.3 + 0.48 * len(strips) + below
    figure = Figure(figsize=(13, height), dpi=150)
    ends = {"left": 0.135, "right": 0.755, "top": 1 - above / height, "bottom": below / height}
    grid = figure.subplots(
        1 + len(strips), len(clips), squeeze=False, sharex="col", height_ratios=[2.3, *[0.48] * len(strips)],
        width_ratios=[clip.seconds for clip in clips], gridspec_kw={**ends, "hspace": 0.18, "wspace": 0.03},
    )  # fmt: skip
    figure.text(0.01, 1 - 0.18 / height, literal("\n".join(lines)), va="top", fontsize=11, linespacing=1.35)
    whole = sum(clip.seconds for clip in clips)
    for column, clip in enumerate(clips):
        coloured = [(_INKS.get(strip.method) or colour(strip.method), strip.shares[column]) for strip in strips]
        _column(grid[:, column], clip, coloured, tokens_per_second, clip.seconds / whole, last=column + 1 == len(clips))
        if column:
            for axes in grid[:, column]:
                axes.set_yticks([])
        if len(clips) > 1:
            grid[0, column].set_title(literal(clip.name), fontsize=9, loc="left", pad=3)
    for row, strip in enumerate(strips, start=1):
        _words(grid[row, 0], grid[row, -1], strip, event_share(clips, strip, tokens_per_second))
    grid[0, 0].set_ylabel("kHz", fontsize=9)
    figure.text(0.445, 0.42 / height, "time, s", ha="center", fontsize=9)
    legend = _LEGEND + _EVIDENCE * any(strip.method == "evidence" for strip in strips)
    figure.text(0.01, 0.06 / height, legend, fontsize=8, color="#555555")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except (OSError, ValueError) as error:  # ValueError: an unknown picture format
        raise SettingsError(f"{path}: cannot be written: {getattr(error, 'strerror', '') or error}") from error
    return path


_LEGEND = (
    "Shade: the kept share of each moment, from none (blank) to all (full colour). "
    "Token pruning: its audio tokens; merging: its share of the merged tokens. Presses: its cache entries."
)
_EVIDENCE = "\nEvidence: what base's reply loses when a moment is silenced."


def _column(
    column: Any, clip: Clip, strips: Sequence[tuple[str, Floats]], tokens_per_second: float, share: float, *, last: bool
) -> None:
    """Draw one clip and, below it, a bar along time for each method that shows what the method kept.

    Parameters
    ----------
    strips
        (colour, kept share of each audio token) of each method.
    share
        Fraction of the picture's width that this clip takes.
    """
    from matplotlib.ticker import MaxNLocator

    spectrogram(column[0], clip)
    for axes, (ink, shares) in zip(column[1:], strips, strict=True):
        _strip(axes, clip, shares, ink, tokens_per_second, max(1, round(_BINS * share)))
    for axes in column:
        axes.set_xlim(0, clip.seconds)
    for axes in column[:-1]:
        axes.tick_params(bottom=False)
    # A clip's last tick label would overlap the next clip's 0.
    ticks = MaxNLocator(max(2, round(8 * share)), integer=True, prune=None if last else "upper")
    column[-1].xaxis.set_major_locator(ticks)


def spectrogram(axes: Any, clip: Clip) -> None:
    """Draw a clip's log-mel spectrogram on matplotlib axes, and mark the events that decide the question."""
    import librosa

    hop = max(160, len(clip.waveform) // 2000)
    mel = librosa.feature.melspectrogram(
        y=clip.waveform, sr=clip.sampling_rate, n_fft=1024, hop_length=hop, n_mels=96, fmax=clip.sampling_rate / 2
    )
    level = librosa.power_to_db(mel, ref=max(float(mel.max()), 1e-10), top_db=70)
    axes.imshow(level, origin="lower", aspect="auto", cmap="Greys", extent=(0, clip.seconds, 0, 96), vmin=-70, vmax=0)
    centres = librosa.mel_frequencies(98, fmax=clip.sampling_rate / 2)[1:-1]
    marks = [hertz for hertz in (500, 1000, 2000, 4000, 8000) if hertz < centres[-1]]
    axes.set_yticks([float(np.interp(hertz, centres, np.arange(96) + 0.5)) for hertz in marks])
    axes.set_yticklabels([f"{hertz / 1000:g}" for hertz in marks], fontsize=8)
    axes.tick_params(labelbottom=False, length=2)
    for onset, length in clip.events:
        axes.axvspan(onset, onset + length, facecolor="none", edgecolor=_EVENT, linewidth=1.4, zorder=3)
        late = onset > 0.8 * clip.seconds
        frame = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": _EVENT, "linewidth": 0.8}
        beside = {"xytext": (-9 if late else 9, -12), "textcoords": "offset points", "ha": "right" if late else "left"}
        axes.annotate("deciding event", (onset + length / 2, 96), fontsize=8, bbox=frame, zorder=4, **beside)


def _strip(axes: Any, clip: Clip, shares: Floats, ink: str, tokens_per_second: float, bins: int) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    seconds = len(shares) / tokens_per_second
    # Average between fractional edges, so that an even stride looks even with any number of bins.
    before = np.concatenate([[0.0], np.cumsum(shares)])
    edges = np.interp(np.linspace(0, len(shares), bins + 1), np.arange(len(before)), before)
    means = np.diff(edges) * bins / len(shares)
    blend = LinearSegmentedColormap.from_list("kept", ["#FFFFFF", ink])
    axes.imshow(means[None], aspect="auto", cmap=blend, vmin=0, vmax=1, extent=(0, seconds, 0, 1), interpolation="none")
    axes.set_yticks([])
    axes.tick_params(labelsize=8, length=2)
    for spine in axes.spines.values():
        spine.set(color="#BBBBBB", linewidth=0.6)
    for onset, length in clip.events:
        for edge in (onset, onset + length):
            axes.axvline(edge, color=_EVENT, linewidth=0.9)


def _words(first: Any, last: Any, strip: Strip, event: float | None) -> None:
    """Write a method's name to the left of its strip, and to the right its reply and the share of tokens that it kept.

    Parameters
    ----------
    event
        Share kept of the tokens in the events that decide the question, to add; None if unknown.
    """
    first.text(-0.012, 0.5, literal(strip.label), transform=first.transAxes, ha="right", va="center", fontsize=9)
    kept = sum(float(shares.sum()) for shares in strip.shares)
    total = sum(len(shares) for shares in strip.shares)
    facts = f"keeps {kept / total:.0%}" + ("" if event is None else f" · of the event {event:.0%}")
    if strip.facts:
        facts = strip.facts if strip.method == "evidence" else f"{facts} · {strip.facts}"
    ink = {True: "#00704F", False: "#B34700", None: "#222222"}[strip.right]
    reply = textwrap.shorten(strip.reply, 34, placeholder=" …") or "(no reply)"
    place = {"transform": last.transAxes, "ha": "left", "fontsize": 9}
    last.text(1.015, 0.56, literal(reply), va="bottom", color=ink, **place)
    last.text(1.015, 0.44, facts, va="top", color="#555555", **{**place, "fontsize": 8})

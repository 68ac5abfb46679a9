"""Draw captured attention by head, layer and time, and whether early layers predict later ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr

from audiomarathon.audio import decode as audio
from audiomarathon.compression.method import Base
from audiomarathon.errors import AudioMarathonError, RecordError, SettingsError
from audiomarathon.files import write_json, writing
from audiomarathon.metrics.statistics import Estimate, Resampler
from audiomarathon.models.registry import get_model
from audiomarathon.report.charts import library, literal
from audiomarathon.report.explain import Clip, spectrogram
from audiomarathon.report.samples import columns, samples_in
from audiomarathon.report.styles import BASE, palette
from audiomarathon.runs.attention import INDEX, ROWS, Attention, file_of, index_of
from audiomarathon.runs.read import Run, named
from audiomarathon.runs.record_line import unpack
from audiomarathon.wings.attention.maps import draw_map, in_blocks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
_ASKING = {"last": "prompt's last token", "question": "question", "generated": "reply"}
_SHARES = ("first token", "audio", "question", "rest of the text", "reply")
_LATER = 0.25  # share of the model's layers that count as last layers
_BINS = 400  # number of columns of the picture over time
_RATE = 8000  # sampling rate in Hz for a spectrogram
_MOST_RUNS = 8
_FEW = 8  # up to this many layers, each has a tick and a mark
_GREY = "#BBBBBB"


@dataclass(frozen=True)
class Seen:
    """Attention that a run captured, of N samples, R kinds of attending tokens, L layers and H heads.

    The kinds (:data:`ROWS`) are the prompt's last token, the question's tokens and the generated tokens.

    K is the layer at which FastV drops tokens; it ranks them by the attention of layer K − 1.

    Attributes
    ----------
    layers
        Numbers of the layers that were captured for every sample.
    later
        Indices of the captured layers that are in the last quarter of the model and after layer K − 1.
    files
        The file that stores the attention of each sample, as {sample's id: file}.
    clusters
        Cluster (group of dependent samples, such as a speaker's) of each sample, in the order of `files`.
    to_audio
        Share of attention that goes to all audio tokens together, shape (N, R, L, H).
    shares
        Share of attention that goes to each part of the prompt in `_SHARES`, mean over samples and heads, shape
        (R, L, 5).
    blocks
        Attention map of each layer, reduced to n × n blocks of tokens; mean over samples, shape (L, n, n).
    marks
        Where audio and question are in the prompt, as {"audio" or "question": (start, end)}. Start and end are shares
        of the prompt's length, mean over samples.
    foresight
        Rank correlation (Spearman's ρ) of layer K − 1's attention to the audio tokens with each layer's, shape (N, L).
        The attending token is the prompt's last token, as in FastV (arXiv 2403.06764). In a pruned run, only kept
        tokens count.
    pruned
        Whether tokens were dropped.
    """

    run: Run
    name: str
    layers: list[int]
    later: list[int]
    files: dict[str, Path]
    clusters: list[str]
    to_audio: Floats
    shares: Floats
    blocks: Floats
    marks: dict[str, tuple[float, float]]
    foresight: Floats
    pruned: bool

    @property
    def label(self) -> str:
        """The run's name, escaped for matplotlib."""
        return literal(self.name)

    def last_layers(self) -> Estimate:
        """Return how well attention in layer K − 1 predicts attention in the last layers: mean rank correlation and
        interval.

        The mean is over the layers `later`; it is NaN if it is undefined.
        """
        means = self.foresight[:, self.later].mean(1) if self.later else np.full(len(self.files), np.nan)
        defined = np.isfinite(means)
        if not defined.any():
            return Estimate(np.nan, None)
        clusters = [cluster for cluster, kept in zip(self.clusters, defined, strict=True) if kept]
        return Resampler(self.run.seed).mean(means[defined].tolist(), clusters)


def read_seen(run: Run, name: str, layer: int, sample: str = "") -> Seen:
    """Read a run's captured attention, of all its samples or only of the sample with the id `sample`.

    `name` is the run's name in the pictures; `layer` is K of :class:`Seen`, or 0 to leave out :attr:`Seen.foresight`.

    Raises
    ------
    RecordError
        When a file cannot be read.
    SettingsError
        When layer K − 1 was not captured for all samples, or no later layer was; never raised if `layer` is 0.
    """
    assert run.folder is not None
    rows = {id_: row for id_, row in index_of(run.folder).items() if sample in ("", id_)}
    if not (layers := _shared_layers(rows.values())):
        raise RecordError(f"{run.folder}: no layer was captured for each sample; draw one of them with --sample")
    if layer and layer - 1 not in layers[:-1]:
        allowed = (
            ", ".join(str(number + 1) for number in layers[:-1]) or "none: no two layers were captured for every sample"
        )
        raise SettingsError(f"--layer {layer}: layer {layer - 1} and a later one must be captured; allowed: {allowed}")
    files = {id_: file_of(run.folder, id_) for id_ in rows}
    measures, marks, pruned, count = list[tuple[Floats, ...]](), list[dict[str, tuple[float, float]]](), False, 0
    for file in files.values():
        attention = Attention.read(file)
        heads, wanted = attention.mass.shape[2], (measures[0][0].shape[-1] if measures else attention.mass.shape[2])
        if heads != wanted or not {*layers} <= {*attention.meta["layers"]}:
            raise RecordError(
                f"{file}: has layers {attention.meta['layers']} of {heads} heads, which do not fit "
                f"{file.parent / INDEX} and the run's other samples; delete it and run "
                "`audiomarathon attention capture`"
            )
        places = [attention.meta["layers"].index(number) for number in layers]
        shares, profile = _shares(attention)[:, places], attention.profile[0, places]
        ranks = [
            np.nan if not layer or number == layer - 1 else _correlation(profile[layers.index(layer - 1)], later)
            for number, later in zip(layers, profile, strict=True)
        ]
        measures.append((shares[..., 1], shares.mean(2), attention.blocks[places].astype(float), np.array(ranks)))
        marks.append(_marks(attention))
        pruned, count = pruned or bool(attention.meta["kept_audio_bits"]), attention.meta["model_layers"]
    to_audio, each_share, each_blocks, ranked = zip(*measures, strict=True)
    coarsest = min(blocks.shape[-1] for blocks in each_blocks)  # prompts of fewer than 64 tokens have fewer blocks
    blocks = np.stack([in_blocks(matrix, coarsest) for matrix in each_blocks]).astype(float)
    clusters = [run.records[id_].cluster if id_ in run.records else id_ for id_ in files]
    last = count - max(1, round(_LATER * count))
    later = [at for at, number in enumerate(layers) if layer and number >= max(layer, last)]
    ends = {part: np.mean([mark[part] for mark in marks if part in mark], 0) for part in {*marks[0]}}
    spans = {part: (float(start), float(end)) for part, (start, end) in ends.items()}
    shares, foresight = _mean(np.stack(each_share)), np.stack(ranked)
    return Seen(
        run, name, layers, later, files, clusters, np.stack(to_audio), shares, _mean(blocks), spans, foresight, pruned
    )


def _mean(values: Floats) -> Floats:
    """Return the mean over the first axis, ignoring NaN; NaN where all values are NaN."""
    count = np.isfinite(values).sum(0)
    mean: Floats = np.nansum(values, 0) / np.where(count, count, np.nan)
    return mean


def _shares(attention: Attention) -> Floats:
    """Return a sample's shares of attention to five groups of tokens, shape (R, L, H, 5).

    R, L and H are the numbers of kinds of attending tokens (`ROWS`), of layers and of heads. The groups are `_SHARES`:
    first token, audio, question, rest of the text, reply.
    """
    renamed = {"template before": "rest of the text", "rest of the template": "rest of the text", "generated": "reply"}
    groups = ["audio" if name.startswith("clip ") else renamed.get(name, name) for name in attention.meta["groups"]]
    shares = [attention.mass[..., [name == share for name in groups]].sum(-1) for share in _SHARES]
    return np.stack(shares, -1).astype(float)


def _marks(attention: Attention) -> dict[str, tuple[float, float]]:
    """Return where audio and question are in a sample's prompt, as {"audio" or "question": (start, end)}.

    Start and end are shares of the prompt's length.
    """
    marks: dict[str, tuple[float, float]] = {}
    for name, start, end in attention.meta["parts"]:
        part = "audio" if name.startswith("clip ") else name
        if part in ("audio", "question"):
            marks[part] = (marks.get(part, (start / len(attention.tokens), 0))[0], end / len(attention.tokens))
    return marks


def _correlation(ranks: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """Return Spearman's ρ between the attention of two layers to each token; NaN if it is undefined.

    Only tokens that were dropped in neither layer count.
    """
    both = (ranks > 0) & (other > 0)  # dropped tokens have no rank
    if both.sum() < 3 or np.ptp(ranks[both]) == 0 or np.ptp(other[both]) == 0:
        return np.nan
    return float(spearmanr(ranks[both], other[both]).statistic)


def draw(runs: Sequence[Run], folder: Path, *, layer: int = 0, sample: str = "") -> list[Path]:
    """Draw all pictures of the runs' captured attention, write the plotted values to `attention.json`; return the
    files.

    Parameters
    ----------
    layer
        K: show whether the attention in layer K − 1, by which FastV drops tokens at layer K, predicts later layers. 0
        chooses K = 2, or the lowest possible K if layer 1 was not captured. If fewer than two layers were captured, 0
        leaves this picture out.
    sample
        Draw this sample only. "" averages over all samples, but the picture over time then shows a single sample, the
        first that all runs share.

    Raises
    ------
    RecordError
        No run has captured attention, or the folder cannot be written.
    SettingsError
        Matplotlib (the extra `report`) is missing, the layer was not captured, or there are more than eight runs.
    """
    library("matplotlib")
    there = [run for run in runs if run.folder and any(sample in ("", id_) for id_ in index_of(run.folder))]
    if not there:
        what = f" of {sample!r}" if sample else ""
        raise RecordError(f"no attention{what} in {named(runs)}; run with --save-attn")
    if len(there) > _MOST_RUNS:
        raise SettingsError(f"{len(there)} runs have captured attention, at most {_MOST_RUNS} fit; name fewer folders")
    if not layer:
        allowed = _allowed_layers(there)
        layer = 2 if 2 in allowed else next(iter(allowed), 0)
    seen = [read_seen(run, name, layer, sample) for run, name in zip(there, _names(there), strict=True)]
    pictures = {"heads": _heads(seen), "layers": _layers(seen), "blocks": _blocks(seen[0])}
    if layer:
        pictures["foresight"] = _foresight([capture for capture in seen if not capture.pruned] or seen, layer)
    if shared := [id_ for id_ in seen[0].files if all(id_ in capture.files for capture in seen)]:
        pictures |= {"time": picture} if (picture := _time(seen, shared[0])) else {}
    files = [folder / f"{name}.png" for name in pictures]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("time", "foresight"):  # delete old pictures that are not redrawn
            (folder / f"{name}.png").unlink(missing_ok=True)
        for file, figure in zip(files, pictures.values(), strict=True):
            figure.savefig(file)
    write_json(folder / "attention.json", {capture.name: _figures(capture, layer) for capture in seen})
    return [*files, folder / "attention.json"]


def _allowed_layers(runs: Sequence[Run]) -> list[int]:
    """Return every layer number K for which layer K − 1 and some later layer were captured for every sample."""
    rows = [row for run in runs if run.folder for row in index_of(run.folder).values()]
    return [number + 1 for number in _shared_layers(rows)[:-1]]


def _shared_layers(rows: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the numbers of the layers that were captured for every sample.

    `rows` are the lines of `attention/index.jsonl`, one per sample.
    """
    return sorted(set.intersection(*({*row["layers"]} for row in rows)))


def _names(runs: Sequence[Run]) -> list[str]:
    """Return a unique name for each run: its method (such as `fast_v-0.5-layer2`), and what else differs between runs.

    The task and the checkpoint are named if they differ; names that are still equal get the path of the run's folder.
    """
    tasks, models = len({run.key for run in runs}) > 1, len({run.checkpoint for run in runs}) > 1
    names = [
        " ".join(filter(None, [run.key * tasks, run.checkpoint * models, run.method, run.control])) for run in runs
    ]
    twice = Counter(names)
    return [f"{name} ({run.folder})" if twice[name] > 1 else name for name, run in zip(names, runs, strict=True)]


def _figures(capture: Seen, layer: int) -> dict[str, Any]:
    """Return a run's part of `attention.json`, as a dict.

    Keys: `run` (its folder), `samples` (their number), `layers`, `mass` (shares of attention, as {kind of attending
    token: {part of the prompt: share per layer}}) and `foresight` (rank correlations of attention).

    `layer` is the layer K at which FastV drops tokens; layer K − 1's ranking of tokens is compared with later layers'.
    """
    last = capture.last_layers()
    mass = {
        kind: {share: _plain(by_layer) for share, by_layer in zip(_SHARES, shares.T, strict=True)}
        for kind, shares in zip(ROWS, capture.shares, strict=True)
    }
    return {
        "run": str(capture.run.folder),
        "samples": len(capture.files),
        "layers": capture.layers,
        "mass": mass,
        "foresight": {
            "layer": layer,
            "over": "kept audio tokens" if capture.pruned else "all audio tokens",
            "by_layer": _plain(_mean(capture.foresight)),
            "last_layers": [capture.layers[at] for at in capture.later],
            "mean_of_last_layers": last.value if np.isfinite(last.value) else None,
            "interval": list(last.interval) if last.interval else None,
            "samples": dict(zip(capture.files, map(_plain, capture.foresight), strict=True)),
        },
    }


def _plain(values: Floats) -> list[float | None]:
    """Return an array as a list of numbers for JSON, rounded to six significant digits, with None for NaN."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]


def _figure(rows: int, columns: int, width: float, height: float, title: str, **how: Any) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    figure.suptitle(title, fontsize=11)
    return figure, figure.subplots(rows, columns, squeeze=False, **how)


def _samples(seen: Sequence[Seen]) -> str:
    counts = sorted({len(capture.files) for capture in seen})
    return f"mean over {' to '.join(map(str, [counts[0], *counts[1:][-1:]]))} sample{'s' * (counts[-1] > 1)}"


def _lines(seen: Sequence[Seen]) -> list[tuple[Seen, dict[str, Any]]]:
    """Return (run, matplotlib's arguments for the colour and style of its line) for each run.

    The run without compression is last, so that its dashed line is drawn over the others.
    """
    looks = [
        (capture, {"color": BASE, "linestyle": "--"} if capture.run.method == Base().label else {"color": ink})
        for capture, ink in zip(seen, palette(len(seen)), strict=True)
    ]
    return sorted(looks, key=lambda look: "linestyle" in look[1])


def _by_layer(panel: Any, layers: Sequence[int]) -> dict[str, Any]:
    """Label the layers on a panel's x axis; return matplotlib's arguments for line markers ({} if there are many
    layers).
    """
    from matplotlib.ticker import MaxNLocator

    panel.set_xlim(layers[0], max(layers[-1], layers[0] + 1))
    if len(layers) > _FEW:
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        return {}
    panel.set_xticks(layers)
    return {"marker": "o", "markersize": 4, "clip_on": False}


def _heads(seen: Sequence[Seen]) -> Figure:
    """Draw the share of attention that each head gives to the audio, one panel per run and kind of attending token."""
    title = f"Attention to the audio, by layer and head ({_samples(seen)})"
    figure, grid = _figure(len(seen), len(ROWS), 11, 1 + 2.6 * len(seen), title)
    for row, capture in enumerate(seen):
        for panel, kind, mean in zip(grid[row], ROWS, _mean(capture.to_audio), strict=True):
            image = panel.imshow(mean, aspect="auto", vmin=0, vmax=1, cmap="viridis")
            panel.set_facecolor(_GREY)
            _name_layers(panel, capture.layers)
            if row == 0:
                panel.set_title(f"by the {_ASKING[kind]}", fontsize=9)
            if row == len(seen) - 1:
                panel.set_xlabel("head", fontsize=8)
        grid[row, 0].set_ylabel(f"{capture.label.replace('+', chr(10) + '+ ')}\nlayer", fontsize=8)
    figure.colorbar(image, ax=grid, label="share of attention", shrink=0.8)
    return figure


def _name_layers(panel: Any, layers: Sequence[int]) -> None:
    step = -(-len(layers) // 8)
    panel.set_yticks(range(0, len(layers), step), layers[::step], fontsize=8)


def _layers(seen: Sequence[Seen]) -> Figure:
    """Plot each layer's share of attention to the audio, a line per run; below, the first run's shares to all parts."""
    title = f"Where attention goes, by layer ({_samples(seen)}; bands: 10th to 90th percentile)"
    figure, grid = _figure(2, len(ROWS), 12, 7.4, title, sharey=True)
    for place, kind in enumerate(ROWS):
        above, below = grid[:, place]
        for capture, look in _lines(seen):
            each = capture.to_audio[:, place].mean(-1)
            each = each[np.isfinite(each).all(1)]
            if len(each):
                marks = _by_layer(above, capture.layers)
                above.plot(capture.layers, each.mean(0), label=capture.label, linewidth=1.8, **look, **marks)
                band = np.quantile(each, [0.1, 0.9], 0)
                above.fill_between(capture.layers, *band, color=look["color"], alpha=0.15, linewidth=0)
        above.set_title(f"to the audio, by the {_ASKING[kind]}", fontsize=9)
        _by_layer(below, seen[0].layers)
        parts = np.nan_to_num(seen[0].shares[place]).T
        below.stackplot(seen[0].layers, parts, labels=_SHARES, colors=palette(len(_SHARES)), alpha=0.8)
        below.set_title(f"{seen[0].label}: to what, by the {_ASKING[kind]}", fontsize=9)
        below.set_xlabel("layer", fontsize=9)
        above.set_ylim(0, 1)
    for row in grid:
        row[0].set_ylabel("share of attention", fontsize=9)
    (lines, runs), (areas, shares) = (row[0].get_legend_handles_labels() for row in grid)
    figure.legend(lines + areas, runs + shares, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _blocks(capture: Seen) -> Figure:
    """Draw each layer's attention map, reduced to n × n blocks, with lines where audio and question start and end."""
    across = min(7, len(capture.layers))
    down = -(-len(capture.layers) // across)
    title = f"{capture.label}: which part of the prompt (rows) attends to which (columns); each row sums to 1"
    figure, grid = _figure(down, across, max(7, 1 + 1.8 * across), 1.2 + 1.95 * down, title)
    for panel in grid.flat[len(capture.layers) :]:
        panel.set_axis_off()
    names = {name: sum(ends) / 2 for name, ends in capture.marks.items()}
    for at, (panel, layer, blocks) in enumerate(zip(grid.flat, capture.layers, capture.blocks, strict=False)):
        image = draw_map(panel, blocks, cmap="magma", extent=(0, 1, 1, 0))
        panel.set_facecolor(_GREY)  # no attention
        panel.set_title(f"layer {layer}", fontsize=8, pad=2)
        for place in {end for ends in capture.marks.values() for end in ends}:
            panel.axhline(place, color="white", linewidth=0.4)
            panel.axvline(place, color="white", linewidth=0.4)
        below, left = at + across >= len(capture.layers), at % across == 0
        panel.set_xticks([*names.values()] if below else [], [*names] if below else [], fontsize=6, rotation=90)
        panel.set_yticks([*names.values()] if left else [], [*names] if left else [], fontsize=6)
        panel.tick_params(length=0)
    figure.colorbar(image, ax=grid, label="share of attention", shrink=0.7)
    return figure


def _foresight(seen: Sequence[Seen], layer: int) -> Figure:
    """Draw how well one layer's ranking of audio tokens predicts the rankings of the other layers."""
    title = f"Does layer {layer - 1}, by which fast_v at K = {layer} drops, rank the audio as later layers do?"
    figure, ((panel,),) = _figure(1, 1, 8, 4.5, title)
    marks = _by_layer(panel, seen[0].layers)
    for capture, look in _lines(seen):
        for each in capture.foresight:
            panel.plot(
                capture.layers, each, color=look["color"], alpha=max(0.08, 0.5 / len(capture.foresight)), linewidth=0.8
            )
        last = capture.last_layers()
        text = f" [{last.interval[0]:.2f}, {last.interval[1]:.2f}]" if last.interval else ""
        text = f": {last.value:.2f}{text}" if capture.later else ""
        numbers = [capture.layers[at] for at in capture.later]
        text += f" in layers {numbers[0]}–{numbers[-1]}" if numbers else ""
        text += ", kept tokens only" * capture.pruned
        panel.plot(
            capture.layers, _mean(capture.foresight), linewidth=2.2, label=f"{capture.label}{text}", **look, **marks
        )
    panel.axvline(layer - 1, color="#777777", linestyle=":")
    panel.axhline(0, color="#777777", linewidth=0.8)
    across = "Spearman's ρ over audio tokens\n(attention of the prompt's last token)"
    panel.set(xlabel="layer", ylabel=across, ylim=(-1, 1.02))
    panel.legend(fontsize=8, loc="lower left", title=f"{_samples(seen)}; thin: each sample", title_fontsize=8)
    return figure


def _time(seen: Sequence[Seen], id_: str) -> Figure | None:
    """Draw how much the question attends to each moment of a sample's audio, and which audio tokens each pruner kept.

    Return the picture; None if the sample has no audio tokens, or if the model is not installed, since the duration of
    a token is then unknown.
    """
    attentions = [Attention.read(run_capture.files[id_]) for run_capture in seen]
    pruned = [bool(captured.meta["kept_audio_bits"]) for captured in attentions]
    clips = attentions[0].meta["clips"]
    try:
        per_second = get_model(str(seen[0].run.facts.get("model"))).tokens_per_second
    except SettingsError:
        return None
    if not per_second or not min(captured.profile.shape[2] for captured in attentions):
        return None
    clip = _clip(seen[0].run, id_, [tokens / per_second for tokens in clips])
    heights = [1.2 if clip else 0.01, *(height for drops in pruned for height in (1.6, *[0.18] * drops))]
    several = f" ({len(clips)} clips, one after the other)" * (len(clips) > 1)
    title = f"{literal(id_)}: when the question listens{several}"
    tall = 1.2 + 0.95 * sum(heights)
    figure, grid = _figure(len(heights), 1, 11, tall, title, height_ratios=heights, sharex=True)
    strips, total = iter(grid[1:, 0]), sum(clips)
    bins = min(_BINS, total)
    for capture, attention, drops in zip(seen, attentions, pruned, strict=True):
        panel = next(strips)
        profile = attention.profile[
            ROWS.index("question"), [attention.meta["layers"].index(number) for number in capture.layers]
        ]
        positive = np.where(profile > 0, profile, np.nan).astype(float)
        even = positive / np.nanmean(positive, 1, keepdims=True)  # relative to the mean over tokens kept in this layer
        binned = columns(np.nan_to_num(even), bins) / columns(np.isfinite(positive), bins).clip(1e-9)
        shown = np.where(binned > 0, np.log2(np.maximum(binned, 2**-6)), np.nan)
        extent = (0, total / per_second, len(capture.layers) - 0.5, -0.5)
        image = panel.imshow(shown, aspect="auto", vmin=-3, vmax=3, cmap="RdBu_r", extent=extent)
        panel.set_facecolor(_GREY)
        panel.set_title(capture.label + " (grey: dropped)" * drops, fontsize=9, loc="left", pad=2)
        panel.set_ylabel("layer", fontsize=8)
        _name_layers(panel, capture.layers)
        for end in np.cumsum(clips)[:-1]:
            panel.axvline(end / per_second, color="black", linewidth=1)
        if drops:
            bits = unpack(attention.meta["kept_audio_bits"], attention.profile.shape[2])[None]
            panel = next(strips)
            panel.imshow(columns(bits, bins), aspect="auto", vmin=0, vmax=1, cmap="Greens", extent=extent)
            panel.set_yticks([])
            panel.set_ylabel("kept", rotation=0, ha="right", va="center", fontsize=8)
    bar = figure.colorbar(image, ax=grid[1:, 0], label="attention ÷ even share, by layer")
    bar.set_ticks(range(-3, 4), labels=["⅛ ×", "¼ ×", "½ ×", "1 ×", "2 ×", "4 ×", "8 ×"])
    grid[-1, 0].set_xlabel("time, s", fontsize=9)
    if clip is not None:
        spectrogram(grid[0, 0], clip)
        grid[0, 0].set_ylabel("kHz", fontsize=8)
        grid[0, 0].set_xlim(0, clip.seconds)
    else:
        grid[0, 0].set_axis_off()
    return figure


def _clip(run: Run, id_: str, seconds: Sequence[float]) -> Clip | None:
    """Join a sample's clips into one, each cut or padded to the duration of its audio tokens; None if a clip is
    missing.

    The clips are read from the task's data. The paths in the stored attention are never opened, since the results may
    come from somebody else.
    """
    sample = samples_in(run).get(id_)
    try:
        waves = [audio.decode(clip, _RATE) for clip in sample.clips] if sample else []
    except AudioMarathonError:
        return None
    if sample is None or not waves or len(waves) != len(seconds):
        return None
    sizes = [round(length * _RATE) for length in seconds]
    cut = [np.pad(wave[:size], (0, max(0, size - len(wave)))) for wave, size in zip(waves, sizes, strict=True)]
    return Clip(id_, np.concatenate(cut), _RATE, (sample.event,) if sample.event else ())

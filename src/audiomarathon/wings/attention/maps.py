"""Draw the token-by-token attention maps of a prompt, or the mean map of several prompts, as files named as in LALM
Bench.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from audiomarathon.files import write_json, writing
from audiomarathon.report.charts import literal
from audiomarathon.runs.attention import BLOCKS

Maps = npt.NDArray[np.floating[Any]]
_MOST_LABELS = 64  # limit of token labels along an edge
_LOOK = {"cmap": "viridis", "interpolation": "nearest"}


@dataclass(frozen=True)
class Whole:
    """A sample's attention maps, shape (layers, tokens, tokens), with its tokens and the layers' numbers."""

    name: str
    maps: Maps
    tokens: Sequence[str]
    layers: Sequence[int]


def draw_sample(sample: Whole, folder: Path) -> None:
    """Draw each layer's map into `layer_XX.jpg`, and their mean into `layer_mean.jpg`."""
    for layer, layer_map in zip(sample.layers, sample.maps, strict=True):
        _draw(layer_map, sample.tokens, f"{sample.name} · layer {layer}", folder / f"layer_{layer:02d}.jpg")
    _draw(sample.maps.mean(0), sample.tokens, f"{sample.name} · mean over layers", folder / "layer_mean.jpg")


def draw_mean(samples: Sequence[Whole], folder: Path, *, run: str, faithful: bool) -> None:
    """Write the mean of the samples' attention maps, per layer (`global_layer_mean`) and over all layers
    (`global_mean`).

    Each mean is a .npy and a .jpg file; `stats.json` describes the samples.

    Prompts of unequal length are averaged in blocks of relative positions. With `faithful`, as in LALM Bench, all
    maps are cut to the shortest prompt and labelled with the first sample's tokens.
    """
    shortest = min(len(sample.tokens) for sample in samples)
    if faithful or all(len(sample.tokens) == shortest for sample in samples):
        cut, tokens = [sample.maps[:, :shortest, :shortest] for sample in samples], list(samples[0].tokens[:shortest])
    else:
        cut, tokens = [in_blocks(sample.maps, min(BLOCKS, shortest)) for sample in samples], []
    by_layer = sum(cut[1:], cut[0].astype(np.float64)) / len(cut)
    for name, maps in (("global_layer_mean", by_layer), ("global_mean", by_layer.mean(0))):
        with writing(folder / f"{name}.npy"):
            np.save(folder / f"{name}.npy", maps.astype(np.float32))
    _draw_grid(by_layer, samples[0].layers, folder / "global_layer_mean.jpg")
    _draw(by_layer.mean(0), tokens, "mean over samples and layers", folder / "global_mean.jpg")
    stats = {
        "run_name": run,
        "num_samples": len(samples),
        "layer_indices": list(samples[0].layers),
        "aligned_seq_len": by_layer.shape[-1],
        "per_sample": {
            sample.name: {"num_layers": len(sample.layers), "seq_len": len(sample.tokens), "tokens": len(sample.tokens)}
            for sample in samples
        },
    }
    write_json(folder / "stats.json", stats)


def in_blocks(maps: Maps, count: int) -> Maps:
    """Reduce attention maps, shape (layers, tokens, tokens), to blocks of tokens, shape (layers, count, count).

    Within a block, columns are summed and rows averaged, so that each row still sums to 1.
    """
    edges = np.linspace(0, maps.shape[-1], count + 1).round().astype(int)
    summed = np.add.reduceat(np.add.reduceat(maps, edges[:-1], 2), edges[:-1], 1)
    return summed / np.diff(edges)[:, None]


def _draw(weights: Maps, tokens: Sequence[str], title: str, file: Path) -> None:
    from matplotlib.figure import Figure

    size = 6.0 + 0.13 * min(len(tokens), _MOST_LABELS)
    figure = Figure(figsize=(size + 1, size), dpi=100, layout="constrained")
    axes = figure.subplots()
    image = draw_map(axes, weights, **_LOOK)
    figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02, label="share of attention")
    step = -(-len(tokens) // _MOST_LABELS) or 1
    plain = [_token(token) for token in tokens[::step]]
    axes.set_xticks(range(0, len(tokens), step), plain, rotation=90, fontsize=7)
    axes.set_yticks(range(0, len(tokens), step), plain, fontsize=7)
    axes.set(xlabel="attends to", ylabel="token")
    axes.set_title(literal(title), fontsize=11)
    _save(figure, file)


def _draw_grid(maps: Maps, layers: Sequence[int], file: Path) -> None:
    from matplotlib.figure import Figure

    across = min(6, len(layers))
    figure = Figure(figsize=(2.4 * across, 2.5 * -(-len(layers) // across)), dpi=100, layout="constrained")
    for place, (layer, layer_map) in enumerate(zip(layers, maps, strict=True)):
        axes = figure.add_subplot(-(-len(layers) // across), across, place + 1)
        image = draw_map(axes, layer_map, **_LOOK)
        axes.set_title(f"layer {layer}", fontsize=8)
        axes.set_axis_off()
    figure.colorbar(image, ax=figure.axes, label="share of attention")
    _save(figure, file)


def draw_map(axes: Any, weights: Maps, **look: Any) -> Any:
    """Draw an attention map with logarithmic colours, blank where attention is 0. `look` has arguments for `imshow`."""
    from matplotlib.colors import LogNorm

    shown = np.where(weights > 0, np.clip(weights, 1e-4, 1), np.nan)
    return axes.imshow(shown, norm=LogNorm(1e-4, 1), **look)


def _token(text: str) -> str:
    """Return a token as a label for matplotlib, with white space made visible and dollar signs escaped."""
    plain = literal(text).replace("\n", "⏎").strip()
    return plain or "␣"


def _save(figure: Any, file: Path) -> None:
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file)

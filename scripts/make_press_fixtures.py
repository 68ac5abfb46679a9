"""Make tests/data/presses/kvpress-0.5.5.npz: the entries of a tiny Qwen2's cache that NVIDIA's kvpress 0.5.5 keeps.

kvpress pins transformers < 5.3, so it needs a separate environment, without audiomarathon:

    python3 -m venv /tmp/kvpress-env
    /tmp/kvpress-env/bin/pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
    /tmp/kvpress-env/bin/pip install kvpress==0.5.5
    /tmp/kvpress-env/bin/python scripts/make_press_fixtures.py

The file holds, for each press and number k of entries to keep, booleans of shape (layers, KV heads, prompt): True is
kept. It also holds the last position's logits, so that a test can tell a different model from different choices. Every
run makes the same file.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from transformers import DynamicCache, Qwen2ForCausalLM

import kvpress

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from plain_qwen2 import BY_HEAD, PRESSES, PROMPT, RATIOS, places_in, plain_qwen2, prompt_ids

TARGET = Path(__file__).parents[1] / "tests/data/presses/kvpress-0.5.5.npz"
MARGIN = 1e-5  # least gap of kept and dropped scores, as a share of their spread: rounding must not change a choice


@torch.inference_mode()
def main() -> None:
    """Write the file of kept entries, or stop if a choice depends on rounding."""
    assert version("kvpress") == "0.5.5", f"kvpress {version('kvpress')} is installed; {TARGET.name} needs 0.5.5"
    model, prompt = plain_qwen2(), prompt_ids()
    full = DynamicCache()
    logits = model(prompt, past_key_values=full).logits[0, -1]
    golden = {"logits": logits.numpy()}
    for name, (class_name, settings) in PRESSES.items():
        for k, ratio in RATIOS.items():
            if name == "pyramidkv" and k != 180:
                continue  # budgets are whole numbers and within both definitions' limits at 180 only
            # kvpress keeps int(S · (1 − r)), which is 39, not 40, for S = 400 and r = 0.9; half an entry more gives k.
            its_ratio = ratio if name == "pyramidkv" else 1 - (k + 0.5) / PROMPT
            press = getattr(kvpress, class_name)(compression_ratio=its_ratio, **settings)
            golden[f"{name}-{k}"] = kept_by(press, model, prompt, full)
            margin = min(margins)
            margins.clear()
            print(f"{name}-{k}: {golden[f'{name}-{k}'].sum(-1).tolist()}, margin {margin:.1e}")
            assert margin > MARGIN, f"{name} {k}: two scores at the limit differ by {margin:.1e}: take another seed"
    for name, (class_name, counts) in BY_HEAD.items():
        for k in counts:
            golden[f"{name}-{k}"] = kept_by_heads(getattr(kvpress, class_name)(1 - (k + 0.5) / PROMPT), model, prompt)
            (margin,) = [min(margins)]
            margins.clear()
            print(f"{name}-{k}: {golden[f'{name}-{k}'].sum(-1).tolist()}, margin {margin:.1e}")
            assert margin > MARGIN, f"{name} {k}: two scores at the limit differ by {margin:.1e}: take another seed"
    np.savez_compressed(TARGET, **golden)
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")


margins: list[float] = []  # for the current press: the gap between kept and dropped scores, of each layer and head


def kept_by(
    press: kvpress.ScorerPress, model: Qwen2ForCausalLM, prompt: torch.Tensor, full: DynamicCache
) -> np.ndarray:
    """Return which KV-cache entries `press` keeps, shape (layers, KV heads, prompt).

    Also append to `margins` how far the lowest kept score is above the highest dropped score, relative to all scores.
    """
    scores: list[torch.Tensor] = []
    score = press.score

    def remembered(*args: object, **kwargs: object) -> torch.Tensor:
        scores.append(score(*args, **kwargs))
        return scores[-1]

    press.score = remembered
    pressed = DynamicCache()
    with press(model):
        model(prompt, past_key_values=pressed)
    kept = np.zeros((len(full.layers), full.layers[0].keys.shape[1], PROMPT), dtype=bool)
    for index, (before, after) in enumerate(zip(full.layers, pressed.layers, strict=True)):
        for head in range(kept.shape[1]):
            kept[index, head, places_in(before.keys[0, head], after.keys[0, head])] = True
            row, chosen = scores[index][0, head], torch.from_numpy(kept[index, head])
            rest = row[row < row.max()]  # protected entries have the highest score, one more than the rest
            spread = float(rest.max() - rest.min()) or 1.0
            margins.append(float(row[chosen].min() - row[~chosen].max()) / spread)
    return kept


def kept_by_heads(press: kvpress.ScorerPress, model: Qwen2ForCausalLM, prompt: torch.Tensor) -> np.ndarray:
    """Return which KV-cache entries AdaKVPress keeps by the scores of `press`; it masks the others, removing none."""
    scores: list[torch.Tensor] = []
    score = press.score

    def remembered(*args: object, **kwargs: object) -> torch.Tensor:
        scores.append(score(*args, **kwargs))  # AdaKVPress then raises the scores of protected entries
        return scores[-1]

    press.score = remembered
    with kvpress.AdaKVPress(press)(model):
        model(prompt, past_key_values=DynamicCache())
    kept = np.ones((len(scores), *scores[0].shape[1:]), dtype=bool)
    for index, layer in enumerate(model.model.layers):
        _batch, heads, places = layer.self_attn.masked_key_indices
        kept[index, heads, places] = False
        rows, chosen = scores[index][0], torch.from_numpy(kept[index])
        rest = rows[rows < rows.max()]
        margins.append(float(rows[chosen].min() - rows[~chosen].max()) / float(rest.max() - rest.min()))
    return kept


if __name__ == "__main__":
    main()

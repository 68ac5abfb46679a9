"""Count a loaded model's FLOPs: the LLM's from the parameters of its modules, the audio tower's by running it once."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from audiomarathon.compression.composed import Composed
from audiomarathon.compression.method import Base, Method
from audiomarathon.compression.press import KVPress
from audiomarathon.compression.token_pruner import TokenPruner
from audiomarathon.costs.cost import Cost, Drops
from audiomarathon.models.layers import attention_windows
from audiomarathon.models.prompt import Prompt

if TYPE_CHECKING:
    from audiomarathon.models.audio_lm import AudioLM

_PROBE_SECONDS = 30.0  # length of the test clip: the window of most audio towers, so that nothing is padded


def count_cost(lm: AudioLM) -> Cost:
    """Count the FLOPs of a loaded model; return the factors (:class:`Cost`) that give the FLOPs of any prompt and clip.

    Adapters count if they are active and not merged. In a mixture of experts, only the experts that one token uses
    count. The audio tower is run once, on 30 s of silence, because a config does not tell its cost (windows, strides,
    padding).
    """
    config = lm.decoder.config
    if lm.cross:
        return _cross_cost(lm)
    return Cost(
        flops_per_token_per_layer=tuple(2.0 * active_parameters(layer, config) for layer in lm.decoder_layers),
        attention_flops_coefficient=tuple(2.0 * _attention_width(layer, config) for layer in lm.decoder_layers),
        lm_head_flops=2.0 * active_parameters(lm.lm_head, config),
        **_encoder_flops(lm),
        encoder_window_seconds=lm.encoder_window_seconds,
        attention_windows=attention_windows(config),
        **_step(lm),
    )


def _cross_cost(lm: AudioLM) -> Cost:
    """Count the FLOPs of an encoder-decoder, whose decoder reads no audio tokens; return the factors.

    The factors cover the projections and the attention of the encoder's states, and the decoder's work on the forced
    tokens (language, task) of each window. All layers are alike, as Whisper's are.
    """
    config: Any = lm.decoder.config
    inputs = lm.prepare([Prompt("", (np.zeros(lm.sampling_rate, np.float32),))])
    layers, tokens, width = lm.decoder_layers, inputs.tensors["decoder_input_ids"].shape[1], int(config.d_model)
    projected = sum(active_parameters(part, config) for part in lm.prefill_only) // len(layers)
    state = 2.0 * projected + 4.0 * tokens * width
    rest = sum(active_parameters(layer, config) for layer in layers) - projected * len(layers)
    attention = len(layers) * 2.0 * tokens * tokens * width
    once = 2.0 * tokens * rest + attention + 2.0 * active_parameters(lm.lm_head, config)
    return Cost(
        flops_per_token_per_layer=(state,) * len(layers),
        attention_flops_coefficient=(0.0,) * len(layers),
        lm_head_flops=0.0,
        **_encoder_flops(lm),
        encoder_window_seconds=lm.encoder_window_seconds,
        window_tokens=inputs.prompt_tokens[0],
        window_states=inputs.prompt_tokens[0] - tokens,
        window_flops=once - tokens * state * len(layers),
        **_step(lm),
    )


def _step(lm: AudioLM) -> dict[str, Any]:
    """Return the bytes of the weights that a decode step reads, and numbers of experts, as fields of :class:`Cost`."""
    # Embedding tables, of which a step reads single rows; Phi-4's `embed_tokens_extend` also holds its towers.
    unread = {name for name, _ in lm.decoder.named_children() if name.startswith("embed")}
    parts = [part for name, part in lm.decoder.named_children() if name not in unread]
    prefill = {id(p) for part in lm.prefill_only for p in part.parameters()}
    read = {id(p): p for part in (*parts, lm.lm_head) for p in _used(part) if id(p) not in prefill}
    mixtures = _mixtures(lm.decoder)
    owned = sum(p.nbytes for part in mixtures for p in part.parameters() if id(p) in read)
    sizes = {"weight_bytes": float(sum(p.nbytes for p in read.values()) - owned), "expert_bytes": float(owned)}
    config: Any = lm.decoder.config
    chosen = int(config.num_experts_per_tok) if mixtures else 0
    return {**sizes, "experts": _experts(mixtures[0]) if mixtures else 0, "experts_per_token": chosen}


def drops_of(method: Method, tower_layers: int = 0) -> Drops | None:
    """Return where and how much a method drops in prefill; None if this is unknown (a third-party method).

    `tower_layers` is the number of layers of the audio tower (:attr:`Cost.tower_layers`).
    """
    if isinstance(method, Composed):
        return drops_of(method.first, tower_layers)
    if isinstance(method, TokenPruner):
        tower = method.steps(tower_layers) if method.changes_tower and tower_layers else ()
        return Drops(method.first_layer, method.ratio, tuple(map(tuple, tower)), method.schedule)
    return Drops() if isinstance(method, (Base, KVPress)) else None


def active_parameters(module: nn.Module, config: Any) -> int:
    """Return how many parameters of a module one token uses: without idle adapters and without experts not chosen."""
    used = {id(p): p.numel() for p in _used(module)}
    met = sum(used.values())
    for part in _mixtures(module):
        owned = sum(used.get(id(p), 0) for p in part.parameters())
        met -= owned - owned * config.num_experts_per_tok // _experts(part)
    return met


def _used(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameter tensors of a module, without those of idle adapters (switched off, or merged into the
    weights).
    """
    idle = {id(p) for part in module.modules() for p in _idle_adapters(part)}
    return [p for p in module.parameters() if id(p) not in idle]


def _mixtures(module: nn.Module) -> list[nn.Module]:
    """Return the submodules of a module that hold experts; each holds all experts of one layer."""
    return [part for name, part in module.named_modules() if name.rpartition(".")[2] == "experts"]


def _experts(mixture: Any) -> int:
    return int(getattr(mixture, "num_experts", None) or len(mixture))


def _idle_adapters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of adapters (peft's LoRA layers) that are off or merged into the weights."""
    adapters = getattr(module, "lora_A", None)
    if not isinstance(adapters, nn.ModuleDict):
        return []
    merged = bool(getattr(module, "merged", False)) or bool(getattr(module, "disable_adapters", False))
    active = () if merged else getattr(module, "active_adapters", tuple(adapters))
    sides = (adapters, module.lora_B)
    return [p for side in sides for name, part in side.items() if name not in active for p in part.parameters()]  # type: ignore[union-attr, operator]


def _attention_width(layer: nn.Module, config: Any) -> int:
    heads = int(config.num_attention_heads)
    head = getattr(getattr(layer, "self_attn", None), "head_dim", None) or getattr(config, "head_dim", None)
    return heads * int(head or config.hidden_size // heads)


def _attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    flops: int = sdpa_flop_count(query, key, value)  # type: ignore[no-untyped-call]
    return flops


class _TowerIsDoneError(Exception):
    """Raised to end a generate call once the audio tower has run."""


def _encoder_flops(lm: AudioLM) -> dict[str, Any]:
    """Return the fields of :class:`Cost` about the audio tower, counted while the tower runs once.

    If they cannot be counted, `encoder_flops_per_second` is None.
    """
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    counter = FlopCounterMode(display=False, custom_mapping={attention: _attention_flops})
    counting = ExitStack()

    def before(_module: nn.Module, _args: Any) -> None:
        counting.enter_context(counter)

    def after(_module: nn.Module, _args: Any, _output: Any) -> None:
        counting.close()
        raise _TowerIsDoneError

    tower = lm.audio_tower
    handles = [tower.register_forward_pre_hook(before), tower.register_forward_hook(after)]
    silence = np.zeros(round(_PROBE_SECONDS * lm.sampling_rate), np.float32)
    try:
        Base().generate(lm, lm.prepare([Prompt("", (silence,))]), max_new_tokens=1)
    except _TowerIsDoneError:
        rates = {"encoder_flops_per_second": counter.get_total_flops() / _PROBE_SECONDS}
        return rates if lm.no_tower_drop else {**rates, **_tower_layers(lm, counter)}
    except RuntimeError:  # such as out of memory; without this count, only ideal speed-ups are missing
        return {"encoder_flops_per_second": None}
    finally:
        counting.close()  # an active counter would slow later measurements
        for handle in handles:
            handle.remove()
    return {"encoder_flops_per_second": None}


def _tower_layers(lm: AudioLM, counter: FlopCounterMode) -> dict[str, float]:
    """Return the audio tower's number of layers, and one layer's FLOPs per second of audio, as fields of :class:`Cost`.

    All layers are alike. The FLOPs of matrices and of attention are separate fields.
    """
    layers = lm.tower_layers
    counts = counter.get_flop_counts().get(type(layers[0]).__name__, {})  # sum over all layers
    linear = sum(flops for part, flops in counts.items() if str(part) in ("aten.addmm", "aten.mm"))
    each = len(layers) * _PROBE_SECONDS
    attention = (sum(counts.values()) - linear) / each
    return {"tower_layers": len(layers), "tower_linear": linear / each, "tower_attention": attention}

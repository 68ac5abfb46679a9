"""Use the audio tower inside an audio LLM as an encoder: `tower:MODEL[@point]`, read by hooks in one prefill.

Hidden states are read at points. In the order in which audio passes them, these are: `tower.i` (output of the tower's
layer i), `tower` (output of the tower), `projector` (input of the LLM), `llm.k` (output of the LLM's layer k),
`llm.last` (output of its last layer), and `text` (the last token of the prompt after all layers). Each clip is read
alone, so no other clip changes its embedding. The padding of a clip's last window is left out.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from audiomarathon.errors import EncoderError, ModelError, SettingsError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.checkpoint import find_checkpoint
from audiomarathon.models.kernels import kernels_for
from audiomarathon.models.prompt import Inputs, Prompt, Waveform
from audiomarathon.models.registry import get_local_model
from audiomarathon.models.trace import Trace
from audiomarathon.settings import own_settings
from audiomarathon.wings.encoders.encoder import Encoder, source_hash_of

PROMPT = "Describe the audio."
Applied = Callable[[AudioLM, Inputs], AbstractContextManager[Trace]]
"""A compression method's `applied_to`: it returns a context manager that changes the model during a prefill."""
_ARGUMENTS = ("checkpoint", "dtype", "attention", "prompt")
_LEAST_S, _PROBE_S = 0.1, 16.0  # pad shorter clips to this; measure sizes and hops on noise of this length


@dataclass(frozen=True)
class Reading:
    """The hidden states of a clip at every point (layers, projector, …) of an audio LLM, from one prefill.

    Attributes
    ----------
    rows
        {point: the clip's hidden states without padding}; float32, shape (frames or tokens, values), on the CPU.
    kept
        Whether the compression method kept each audio token of the prompt, shape (audio tokens,).
    merged
        Whether the method merged tokens.
    """

    rows: Mapping[str, torch.Tensor]
    kept: torch.Tensor
    merged: bool = False

    def pooled(self, points: Mapping[str, int]) -> torch.Tensor:
        """Average the hidden states at each point over time, and concatenate the means, shape (sum of sizes,).

        `points` is {point: size of its hidden states}. A point without hidden states gives zeros.
        """
        none = {point: torch.zeros(1, size) for point, size in points.items()}
        chosen = {point: self.rows[point] if len(self.rows[point]) else none[point] for point in points}
        return torch.cat([rows.double().mean(0) for rows in chosen.values()]).float()


@dataclass(frozen=True)
class Tower:
    """An audio LLM, with what is needed to read its hidden states at named points.

    Attributes
    ----------
    name
        Name of the checkpoint's folder.
    identity
        Everything that the hidden states depend on (checkpoint, precision, prompt), JSON-compatible.
    sizes, hops
        For each point: number of values in a hidden state, and milliseconds between hidden states.
    max_seconds
        Longest clip in seconds that the model accepts; None for no limit.
    """

    lm: AudioLM
    name: str
    identity: Mapping[str, Any]
    prompt: str = PROMPT
    sizes: Mapping[str, int] = field(default_factory=dict)
    hops: Mapping[str, float] = field(default_factory=dict)
    max_seconds: float | None = None

    @classmethod
    def of(cls, lm: AudioLM, name: str, identity: Mapping[str, Any], prompt: str = PROMPT) -> Tower:
        """Wrap a loaded audio LLM as a tower, and measure the size and hop of its hidden states on 16 s of noise.

        The size is the number of values in a hidden state, the hop the time between two; both are measured at every
        point (layers, projector, …).
        """
        tower = cls(lm, name, {**identity, "prompt": prompt}, prompt)
        noise = torch.randn(int(_PROBE_S * lm.sampling_rate), generator=torch.Generator().manual_seed(0)) * 0.1
        rows = tower.read(noise.numpy()).rows
        hops = {point: _PROBE_S * 1000 / len(states) for point, states in rows.items()}
        return replace(tower, sizes={point: states.shape[1] for point, states in rows.items()}, hops=hops)

    def point(self, name: str) -> str:
        """Check that the model has the point `name` (such as `tower.3`); return the name, `llm.last` as `llm.<number>`.

        Raises
        ------
        SettingsError
            The model has no such point.
        """
        point = f"llm.{len(self.lm.decoder_layers) - 1}" if name == "llm.last" else name
        if point not in self.sizes:
            layers = f"tower.0–{len(self.lm.tower_layers) - 1}, tower"
            more = f", projector, llm.0–{len(self.lm.decoder_layers) - 1}, llm.last, text" * (not self.lm.cross)
            raise SettingsError(f"{self.name}: has no point {name!r}; allowed: {layers}{more}")
        return point

    def read(self, wave: Waveform, applied: Applied | None = None, text: str = "", seed: int = 0) -> Reading:
        """Prefill once with a clip and a prompt, and return the clip's hidden states at every point.

        Parameters
        ----------
        wave
            Mono samples at the model's rate.
        applied
            Compression method to apply during the prefill; None for no method. With a method, the result holds only
            kept tokens. If the method merges tokens, the points before the merge are missing. If it drops or merges
            inside the tower, only the points after its last drop or merge are there.
        text
            The prompt; "" for the tower's prompt.
        seed
            Seed of random methods.
        """
        lm = self.lm
        inputs = lm.prepare([Prompt(text or self.prompt, (wave,), seed)])
        with _watching(lm) as seen:
            made = applied(lm, inputs) if applied else nullcontext(Trace((None,)))
            done = lm.generate(inputs, made, max_new_tokens=1)
        spots = inputs.audio_mask[0].cpu().nonzero().flatten()
        heard = spots[: len(spots) - (inputs.window_padding[0] if inputs.window_padding else 0)]
        whole = inputs.audio_mask.shape[1]
        kept = torch.arange(whole) if done.kept_positions is None else done.kept_positions[0]
        is_heard = torch.isin(kept, heard)
        rows: dict[str, torch.Tensor] = {}
        samples = round(inputs.heard_seconds[0] * lm.sampling_rate) if inputs.heard_seconds else len(wave)
        left = self._left_in_tower(seen, inputs) if done.kept_positions is not None else None
        for point, state in seen.items():
            if left is not None and point.startswith("tower"):
                if state.shape[:-1].numel() > left.shape[:-1].numel():
                    continue  # before the last states were dropped
                places, full = self._left_places(state, left, inputs, kept, spots, is_heard), False
                hidden = state.flatten(0, -2)
            elif inputs.states:  # the virtual prompt begins with the states of all windows
                places, hidden, full = kept[is_heard], state.flatten(0, -2), True
            elif point.startswith("tower"):
                per, limit = self._heard_frames(state, seen["tower"], inputs, len(heard), samples)
                places = torch.arange(limit)
                if done.kept_positions is not None:
                    tokens = torch.searchsorted(heard, kept[is_heard])
                    places = (tokens[:, None] * per + torch.arange(per)).flatten()
                    places = places[places < limit]
                hidden, full = state.flatten(0, -2), True
            else:
                hidden = state[self.lm.decoder.config.altup_active_idx] if state.dim() == 4 else state  # type: ignore[union-attr]
                hidden, full = hidden[0], hidden.shape[-2] == whole
                places = kept[is_heard] if full else is_heard.nonzero().flatten()
            if not (done.merges and full):
                rows[point] = hidden[places.to(hidden.device)].float().cpu()
        if not lm.cross:
            rows["text"] = hidden[-1:].float().cpu()
        return Reading(rows, torch.isin(spots, kept), bool(done.merges))

    def _left_in_tower(self, seen: Mapping[str, torch.Tensor], inputs: Inputs) -> torch.Tensor | None:
        """Return the output of the tower's last layer if a method dropped hidden states inside the tower, else None."""
        last = seen[f"tower.{len(self.lm.tower_layers) - 1}"]
        if self.lm.no_tower_drop:
            return None
        states = self.lm.tower_states(inputs)
        before = sum(states.width or count for count, _tokens in states.windows)
        return last if last.shape[:-1].numel() < before else None

    def _left_places(
        self, state: torch.Tensor, left: torch.Tensor, inputs: Inputs, kept: torch.Tensor, spots: torch.Tensor,
        is_heard: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """Return the indices of the hidden states at a point that belong to kept audio tokens, without padding.

        Parameters
        ----------
        state
            The hidden states that remain at the point after a method dropped some. Each window has the states of its
            tokens first, then padding.
        left
            The output of the tower's last layer.
        kept, spots
            Positions in the prompt of all kept tokens, and of all audio tokens.
        is_heard
            Whether each kept token is an audio token without padding.
        """
        if inputs.states:
            return is_heard.nonzero().flatten()
        shape = self.lm.tower_states(inputs)
        audio = torch.isin(kept, spots)
        heard, tokens = is_heard[audio], torch.searchsorted(spots, kept[audio])
        ends = torch.tensor([tokens_ for _count, tokens_ in shape.windows]).cumsum(0)
        owner = torch.searchsorted(ends, tokens, right=True)
        in_window = left.shape[-2] // shape.pooling if shape.width else 0
        rows = state.shape[:-1].numel() // (len(ends) * in_window if in_window else len(tokens))  # of each token
        first = torch.arange(len(tokens))
        if in_window:  # for each token: the start of its window, and its place in the window
            first = owner * in_window + first - torch.searchsorted(owner, owner)
        return (first[heard][:, None] * rows + torch.arange(rows)).flatten()

    def _heard_frames(
        self, state: torch.Tensor, output: torch.Tensor, inputs: Inputs, tokens: int, samples: int
    ) -> tuple[int, int]:
        """Return (audio tower's frames per audio token, number of the tower's frames that are not padding).

        Frames that begin after the clip's end, or that belong to no token, are padding of the tower's last window.
        """
        if not self.lm.encoder_window_seconds or state.dim() < 3:
            per = max(1, state.shape[:-1].numel() // tokens)
            return per, min(state.shape[:-1].numel(), tokens * per + per - 1)
        windows, frames = state.shape[:2]
        in_window = inputs.audio_tokens[0] // windows if inputs.window_padding else output.shape[1]
        per = math.ceil(frames / in_window)
        heard = math.ceil(samples * frames / (self.lm.encoder_window_seconds * self.lm.sampling_rate))
        return per, min(tokens * per, heard)


@contextmanager
def _watching(lm: AudioLM) -> Any:
    """Yield a dict {point: hidden states}, which a prefill inside the `with` block fills.

    The points are the output of each layer, and the input of the LLM. The decoder of an encoder-decoder model has no
    audio tokens, so its layers are not points.
    """
    seen: dict[str, torch.Tensor] = {}
    names = {f"tower.{i}": layer for i, layer in enumerate(lm.tower_layers)} | {"tower": lm.audio_encoder}
    layers = {f"llm.{k}": layer for k, layer in enumerate(() if lm.cross else lm.decoder_layers)}

    def keep(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            seen[name] = output if isinstance(output, torch.Tensor) else output[0]

        return hook

    def enters(_module: nn.Module, args: Any, kwargs: Any) -> None:
        seen["projector"] = args[0] if args else kwargs["hidden_states"]

    with ExitStack() as hooks:
        for name, module in (names | layers).items():
            hooks.enter_context(module.register_forward_hook(keep(name)))
        # Registered before the hooks of a method, so that it sees the input before the method changes it.
        for layer in [*layers.values()][:1]:
            hooks.enter_context(layer.register_forward_pre_hook(enters, with_kwargs=True))
        yield seen


class TowerEncoder(nn.Module):
    """An encoder whose features are the hidden states at one point of an audio LLM.

    Without a point, it returns a single frame per clip: the mean hidden states at all points, concatenated.

    Attributes
    ----------
    applied
        Compression method to apply; None for no method.
    asked
        (prompt, seed of random methods); None for the tower's prompt and a seed made from the clip.
    last
        The hidden states of the last clip.
    """

    def __init__(self, tower: Tower, point: str = "", points: Mapping[str, int] | None = None) -> None:
        super().__init__()
        self.tower, self.point = tower, point
        self.points = {point: tower.sizes[point]} if point else dict(points or tower.sizes)
        self.sampling_rate, self.output_dim = tower.lm.sampling_rate, sum(self.points.values())
        self.hop_size_in_ms, self.max_seconds = tower.hops[point] if point else 1000.0, tower.max_seconds
        self.applied: Applied | None = None
        self.asked: tuple[str, int] | None = None
        self.last: Reading | None = None

    def forward(self, audio: torch.Tensor, lengths: torch.Tensor | None = None) -> Any:
        """Encode clips (the rows of `audio`) one by one, and return their features, shape (clips, frames, values).

        With `lengths` (each clip's number of samples without padding), also return each clip's number of frames.
        """
        samples = [audio.shape[-1]] * len(audio) if lengths is None else lengths.tolist()
        rows = [self._read(row[:length]) for row, length in zip(audio.cpu(), samples, strict=True)]
        features = pad_sequence(rows, batch_first=True).to(audio.device)
        return features if lengths is None else (features, torch.tensor([len(row) for row in rows]))

    def _read(self, clip: torch.Tensor) -> torch.Tensor:
        clip = nn.functional.pad(clip, (0, max(0, int(_LEAST_S * self.sampling_rate) - len(clip))))
        seed = int.from_bytes(hashlib.sha256(clip.contiguous().numpy().data).digest()[:4], "little")
        text, seed = self.asked or ("", seed)
        self.last = self.tower.read(clip.numpy(), self.applied, text, seed)
        if missing := self.points.keys() - self.last.rows.keys():
            raise EncoderError(
                f"{self.tower.name}: the method merges tokens after {', '.join(sorted(missing))}; choose a later point"
            )
        return self.last.rows[self.point] if self.point else self.last.pooled(self.points)[None]


def load_tower(name: str, arguments: Mapping[str, Any], device: str) -> Encoder:
    """Load `tower:MODEL[@point]` as an encoder; the default point is `tower`, the output of the audio tower.

    Parameters
    ----------
    arguments
        `checkpoint` (a folder or hub id; default: the model's), `dtype`, `attention`, `prompt`.

    Raises
    ------
    SettingsError, ModelError
        For an unknown model, point or argument, or a checkpoint that cannot be loaded.
    """
    model, _, point = name.removeprefix("tower:").partition("@")
    if unknown := sorted({*arguments} - {*_ARGUMENTS}):
        raise SettingsError(f"--encoder-arg {unknown[0]}: allowed for {name}: {', '.join(_ARGUMENTS)}")
    spec = get_local_model(model)
    dtype = str(arguments.get("dtype") or ("bfloat16" if device.startswith("cuda") else "float32"))
    attention, prompt = str(arguments.get("attention") or "sdpa"), str(arguments.get("prompt") or PROMPT)
    if dtype not in ("float32", "float16", "bfloat16"):
        raise SettingsError(f"--encoder-arg dtype={dtype}: allowed: float32, float16, bfloat16")
    source, named = (
        str(arguments.get("checkpoint") or spec.checkpoint),
        "name a folder: --encoder-arg checkpoint=FOLDER",
    )
    checkpoint = replace(find_checkpoint(source, named=named), variant=spec.variant)
    family = spec.load_family()
    lm = family.load(checkpoint.path, device=device, dtype=dtype, attn_implementation=attention)
    lm.sdpa_backends = kernels_for(device, own_settings().sdpa_backends)
    identity = {"tower": spec.key, "checkpoint": checkpoint.fingerprint(), "dtype": dtype, "attention": attention}
    identity["source"] = source_hash_of(type(lm), [Path(__file__)])
    try:
        tower = Tower.of(lm, checkpoint.folder_name, identity, prompt)
    except ModelError as error:
        raise EncoderError(f"{name}: 16 s of noise cannot be encoded: {error}") from error
    tower = replace(tower, max_seconds=spec.most_seconds or None)
    return at_point(tower, tower.point(point or "tower"), device)


def at_point(tower: Tower, point: str = "", device: str = "cpu", points: Mapping[str, int] | None = None) -> Encoder:
    """Return an encoder whose features are the hidden states at one point (layer, projector, …) of an audio LLM.

    Without `point`, it gives one frame per clip: the mean hidden states at all points (or at `points`), concatenated.
    """
    module = TowerEncoder(tower, point, points).eval()
    name, identity = f"{tower.name}@{point}" if point else tower.name, {**tower.identity, "points": module.points}
    return Encoder(
        name, module, identity, device, module.sampling_rate, module.output_dim, module.hop_size_in_ms,
        tower.max_seconds, takes_lengths=True,
    )  # fmt: skip

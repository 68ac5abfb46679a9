"""Phi-4-multimodal (arXiv 2503.01743) on transformers' native class, with its speech adapter loaded and active.

The checkpoint is the hub's converted revision (`refs/pr/70`). A Conformer encodes 40 s at a time; the LLM gets 12.5
audio tokens per second. The LLM's rotary embedding (LongRoPE, on three quarters of each head) has short factors for
sequences of up to 4,096 tokens, and long factors for longer sequences.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationMixin, Phi4MultimodalForCausalLM, Phi4MultimodalProcessor
from transformers import Phi4MultimodalFeatureExtractor as FeatureExtractor

from audiomarathon.errors import ModelError, TemplateError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.chat import audio_only, audio_token, chat_text
from audiomarathon.models.loading import check_installed, check_loading, loading, patched_attribute
from audiomarathon.models.prompt import Inputs, Prompt, Waveform
from audiomarathon.models.templates import render

_ADAPTER = "speech"  # name of the LoRA adapter on every layer of the LLM; without it, the replies are wrong
_FOLDER = "speech-lora"


class Phi4MM(AudioLM):
    """Phi-4-multimodal with its speech adapter; the vision adapter is not loaded."""

    title: ClassVar[str] = "Phi-4-multimodal"
    architecture: ClassVar[Any] = Phi4MultimodalForCausalLM
    model_types: ClassVar[tuple[str, ...]] = ("phi4_multimodal",)
    eager_because = whole_because = ""
    rotations = ("default", "longrope")  # each sample keeps its factors for a whole call
    feature_extractor_class: ClassVar[Any] = FeatureExtractor
    no_tower_drop = "its layers convolve over neighbouring states, so they need all of them"
    tower_list = "encoders"
    other_kinds: ClassVar[str] = (
        "use the hub's converted revision: MODEL_PATH=microsoft/Phi-4-multimodal-instruct@refs/pr/70"
    )

    @classmethod
    def check_folder(cls, path: Path) -> None:
        """Raise ModelError if the folder lacks the speech adapter, or this machine lacks the package peft."""
        check_installed("peft", "phi4mm")
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            if not (path / _FOLDER / name).is_file():
                raise ModelError(f"{path}: no {_FOLDER}/{name}; without the speech adapter the replies would be wrong")

    @classmethod
    def attention(cls, attn_implementation: str) -> Mapping[str, str]:
        """Return the attention implementations as {part of the model: name}: the given one for the LLM, sdpa for both
        encoders.

        The audio encoder adds a bias to every pair of frames, which flash attention does not support. And both encoders
        define their own eager attention, which `compression/attention.py` would mistake for the LLM's.
        """
        return {"": attn_implementation, "audio_config": "sdpa", "vision_config": "sdpa"}

    @classmethod
    def complete(cls, model: Any, path: Path, info: Mapping[str, Any]) -> None:  # noqa: ARG003
        """Load and activate the speech adapter; raise ModelError if its weights do not match the model exactly."""
        with loading(path / _FOLDER, "the speech adapter"):
            loading_info = model.load_adapter(
                str(path), adapter_name=_ADAPTER, adapter_kwargs={"subfolder": _FOLDER}, ignore_mismatched_sizes=True
            )
            model.set_adapter(_ADAPTER)
        # transformers takes every tensor with "speech" in its name for one of the adapter's. So it reports the speech
        # projector as missing.
        missing = [name for name in loading_info.missing_keys if ".lora_" in name]
        check_loading(path / _FOLDER, {**vars(loading_info), "missing_keys": missing})

    def __init__(self, model: Any, tokenizer: Any, feature_extractor: Any) -> None:
        super().__init__(model, tokenizer, feature_extractor)
        config = model.config
        self.placeholder = getattr(tokenizer, "audio_token", None) or "<|audio|>"
        self.audio_token = audio_token(tokenizer, self.placeholder, config.audio_config)
        if (config.sliding_window or 0) >= config.max_position_embeddings:
            config.sliding_window = None  # longer than any prompt, so it hides nothing; caches without one are simpler
        self._factors = _rotary_factors(self.decoder.rotary_emb)
        _check_active(self.decoder_layers)

    @property
    def decoder(self) -> nn.Module:
        """The LLM without its head (the output projection)."""
        decoder: nn.Module = self.model.model
        return decoder

    @property
    def audio_tower(self) -> nn.Module:
        """The module that encodes and projects audio, and puts it into the text embeddings.

        Its calls are timed as the stage `encoder`.
        """
        tower: nn.Module = self.model.model.embed_tokens_extend.audio_embed
        return tower

    @property
    def audio_encoder(self) -> nn.Module:
        """The Conformer inside the audio tower, without the projector."""
        encoder: nn.Module = self.audio_tower.encoder  # type: ignore[assignment]
        return encoder

    @contextmanager
    def without_adapter(self) -> Iterator[None]:
        """Switch the speech adapter off inside the `with` block, so that `certify` can check that it has an effect."""
        self.model.disable_adapters()
        try:
            yield
        finally:
            self.model.enable_adapters()

    @contextmanager
    def generating(self, inputs: Inputs, max_new_tokens: int) -> Iterator[None]:
        """Make each sample's reply independent of its batch: fix the rotary factors, and encode each clip alone.

        transformers chooses the rotary factors at every step by the longest sample of the batch, and empties the cache
        when they change. Here each sample keeps its factors for the whole call: the long ones if its prompt and token
        limit together exceed the switching point, even if tokens are pruned.

        Raises
        ------
        ModelError
            Prompt and token limit together exceed the model's positions.
        """
        config, rotary = self.model.config, self.decoder.rotary_emb
        ends = inputs.attention_mask.sum(-1) + max_new_tokens
        if int(ends.max()) > config.max_position_embeddings:
            raise ModelError(
                f"prompt and token limit (MAX_NEW_TOKENS) make {int(ends.max())} tokens; this model takes at most "
                f"{config.max_position_embeddings}"
            )
        encoder: Any = self.audio_tower.encoder
        with ExitStack() as stack:
            stack.enter_context(patched_attribute(self.model, "prepare_inputs_for_generation", self._inputs_of_a_step))
            stack.enter_context(patched_attribute(encoder, "forward", functools.partial(_each_alone, encoder.forward)))
            if self._factors is not None:
                switch, short, long = self._factors
                rows = torch.where((ends > switch)[:, None, None].to(short.device), long, short)
                for name in ("inv_freq", "original_inv_freq", "long_inv_freq"):
                    stack.enter_context(patched_attribute(rotary, name, rows.clone()))
            yield

    def _inputs_of_a_step(self, input_ids: torch.Tensor, **kwargs: Any) -> dict[str, Any]:
        """Return the model's arguments for one step of generation, as {name: value}, as most transformers models make
        them.

        The KV cache is kept, and audio is passed only in prefill. Phi-4's own code would do otherwise.
        """
        if not kwargs.get("is_first_iteration"):
            kwargs = {name: value for name, value in kwargs.items() if not name.startswith("audio_")}
        step: dict[str, Any] = GenerationMixin.prepare_inputs_for_generation(self.model, input_ids, **kwargs)
        return step

    def heard(self, clips: Sequence[Waveform]) -> tuple[Sequence[int], dict[str, torch.Tensor]]:
        """Return (number of audio tokens of each clip, {argument name of the model: features of all clips}).

        Each clip's features are computed alone and then padded. A batch without clips skips this method, but the speech
        adapter stays active for such a batch too.
        """
        if any(len(clip) < self.feature_extractor.win_length for clip in clips):
            raise ModelError("a clip is too short for a single audio token (0.025 s)")
        alone = [self.feature_extractor(clip, sampling_rate=self.sampling_rate, return_tensors="pt") for clip in clips]
        features = [clip["audio_input_features"][0] for clip in alone]
        padded = {"audio_input_features": pad_sequence(features, batch_first=True)}
        if len(clips) > 1:  # as the processor does it
            frames = torch.tensor([len(feature) for feature in features])
            padded["audio_attention_mask"] = torch.arange(int(frames.max())) < frames[:, None]
        return [int(clip["audio_embed_sizes"][0]) for clip in alone], padded

    def batch(self, prompts: Sequence[Prompt], counts: Iterable[int] = (), **features: torch.Tensor) -> Inputs:
        """Turn prompts into a batch of tensors; `audio_embed_sizes` has each clip's number of audio tokens."""
        sizes = torch.tensor(list(counts))
        inputs = super().batch(prompts, sizes.tolist(), **features)
        # Keep the sizes on the CPU: the model slices by them, and would wait for the GPU to read them there.
        return replace(inputs, tensors={**inputs.tensors, "audio_embed_sizes": sizes}) if features else inputs

    def worded(self, prompt: Prompt) -> str:
        """Return a prompt's text, made with the chat template.

        An older template accepts message content only as a string, not as a list of parts; it gets the placeholders and
        the text as one string.
        """
        try:
            return chat_text(self.tokenizer, prompt, self.placeholder)
        except TemplateError:  # an older template, which accepts only strings
            content = self.placeholder * len(prompt.clips) + prompt.text
            return render(self.tokenizer, [{"role": "user", "content": content}])

    def documented_inputs(self, path: Path, prompt: Prompt) -> Mapping[str, torch.Tensor] | None:
        """Return the inputs, as {name: tensor}, that the family's own processor makes of a prompt."""
        processor = audio_only(
            Phi4MultimodalProcessor,
            image_processor=None,
            audio_processor=FeatureExtractor.from_pretrained(path),
            tokenizer=self.tokenizer,
        )
        text, audio = self.worded(prompt), list(prompt.clips)
        return dict(processor(text=text, audio=audio, sampling_rate=self.sampling_rate, return_tensors="pt"))


def _check_active(layers: Iterable[nn.Module]) -> None:
    """Raise ModelError if a decoder layer does not use the speech adapter.

    The message names the layer and the reason.
    """
    for index, layer in enumerate(layers):
        fault = _fault([part for part in layer.modules() if hasattr(part, "lora_B")])
        if fault:
            raise ModelError(f"the speech adapter is not active: decoder layer {index} {fault}")


def _fault(parts: list[Any]) -> str:
    """Return why a layer does not use the speech adapter; "" if it does. `parts` are the layer's LoRA modules."""
    if not parts:
        return "has no adapter"
    if any(_ADAPTER not in part.lora_B or list(part.active_adapters) != [_ADAPTER] for part in parts):
        return "uses another adapter"
    if any(part.disable_adapters or part.merged for part in parts):
        return "has its adapter switched off, or merged into the weights"
    if not all(bool(part.lora_B[_ADAPTER].weight.any()) for part in parts):
        return "has an adapter of zeros"
    return ""


def _rotary_factors(rotary: Any) -> tuple[int, torch.Tensor, torch.Tensor] | None:
    """Return (LongRoPE's switching point in tokens, short inverse frequencies, long ones); None for plain RoPE."""
    if rotary.rope_type != "longrope":
        return None
    switch: int = rotary.config.rope_parameters["original_max_position_embeddings"]
    device = rotary.inv_freq.device
    rotary(torch.empty(0, device=device), torch.tensor([[switch]], device=device))  # computes the long frequencies
    return switch, rotary.original_inv_freq.clone(), rotary.long_inv_freq.clone()


def _each_alone(
    encode: Callable[..., torch.Tensor], features: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Encode the clips of a batch one by one; return their states, padded to the longest clip.

    In a batch, a clip's output would change: the subsampling convolutions read the padding, and the encoder adds its
    boolean padding mask to the attention logits as 0 and 1, which hides nothing.
    """
    if mask is None:
        return encode(features, None)
    clips = [row[None, :frames] for row, frames in zip(features, mask.sum(-1).tolist(), strict=True)]
    return pad_sequence([encode(clip, None)[0] for clip in clips], batch_first=True)

"""Qwen2.5-Omni (arXiv 2503.20215) on transformers' native class; only the thinker, which writes text, is loaded.

The hub's checkpoints hold `thinker.*`, `talker.*` and `token2wav.*`. The last two make speech. Audio is encoded in
independent windows of two seconds; the LLM gets 25 audio tokens a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import Qwen2_5OmniProcessor, Qwen2_5OmniThinkerForConditionalGeneration

from audiomarathon.errors import ModelError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.chat import audio_only
from audiomarathon.models.prompt import Inputs, Prompt, Waveform
from audiomarathon.models.tower_states import TowerStates
from audiomarathon.models.tower_windows import Windows, in_windows, modelling_file


class Qwen2_5Omni(AudioLM):  # noqa: N801 - the family's spelling
    """Qwen2.5-Omni's thinker: the part that takes audio and writes text."""

    title: ClassVar[str] = "Qwen2.5-Omni"
    architecture: ClassVar[Any] = Qwen2_5OmniThinkerForConditionalGeneration
    model_types: ClassVar[tuple[str, ...]] = ("qwen2_5_omni", "qwen2_5_omni_thinker")
    eager_because = whole_because = no_tower_drop = ""
    states_per_token: ClassVar[int] = 2
    """Number of states of the audio tower that its pooling joins into one audio token."""
    processor: ClassVar[Any] = Qwen2_5OmniProcessor
    placeholder = "<|AUDIO|>"

    def rotary_arguments(self, positions: torch.Tensor) -> tuple[Any, ...]:
        """Return the arguments to call the rotary embedding with, for text at `positions`.

        M-RoPE takes three rows of positions (time, height, width), which are equal for text.
        """
        return (positions.expand(3, 1, -1),)

    @contextmanager
    def generating(self, inputs: Inputs, max_new_tokens: int) -> Iterator[None]:  # noqa: ARG002
        """Run the audio tower on windows that are already cut, in `generate` calls inside the `with` block.

        At the end, delete the position offsets that the thinker has stored.
        """
        try:
            with in_windows(self.model.model, self.audio_tower, inputs.windows):
                yield
        finally:
            self.model.model.rope_deltas = None

    def documented_inputs(self, path: Path, prompt: Prompt) -> Mapping[str, torch.Tensor]:
        """Return the inputs, as {name: tensor}, that the family's own processor makes of a prompt."""
        processor = audio_only(
            self.processor,
            feature_extractor=self.feature_extractor_class.from_pretrained(path),
            tokenizer=self.tokenizer,
            chat_template=self.tokenizer.chat_template,
        )
        return self.processed(processor, prompt, padding=True)

    def heard(self, clips: Sequence[Waveform]) -> tuple[Sequence[int], dict[str, torch.Tensor]]:
        """Return (number of audio tokens of each clip, {argument name of the model: features of all clips})."""
        features, mask = self._features(clips)
        tokens = self.tokens_of(mask.sum(-1))
        if int(tokens.min()) < 1:
            raise ModelError("a clip is too short for a single audio token")
        return tokens.tolist(), {"input_features": features, "feature_attention_mask": mask.long()}

    def batch(self, prompts: Sequence[Prompt], counts: Iterable[int] = (), **features: torch.Tensor) -> Inputs:
        """Turn prompts into a batch of tensors, with the windows within which the audio tower attends."""
        inputs = super().batch(prompts, counts, **features)
        if not features:
            return inputs
        mask = features["feature_attention_mask"]
        places = mask.flatten().nonzero().T + 1
        return replace(inputs, windows=Windows.of(**self._windows(places, mask.sum(-1)), device=self.device))

    def tower_states(self, inputs: Inputs) -> TowerStates:
        """Return a :class:`TowerStates`: from which states of the audio tower each audio token is made.

        A window's last state that has no partner makes no token.
        """
        assert inputs.windows is not None
        each = self.states_per_token
        return TowerStates(each, tuple((length, length // each) for length in inputs.windows.lengths))

    def _windows(self, places: torch.Tensor, lengths: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return {name: tensor}, from which :class:`Windows` is built, computed by transformers' own functions.

        `places` numbers the frames, shape (1, frames), for all clips together; `lengths` has each clip's number of
        frames.
        """
        theirs = modelling_file(self.audio_tower)
        places, chunks = theirs.chunk_and_pad_features(places, lengths, self.model.config.audio_config.n_window)
        return {
            "places": places,
            "chunk_lengths": chunks,
            "valid_indices": theirs.get_valid_indices(chunks),
            "pool_indices": theirs.get_pool_indices(lengths),
            "cu_seqlens": theirs.get_audio_cu_seqlens(chunks),
        }

    def _features(self, clips: Sequence[Waveform]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features (clips, mel bins, frames), and a mask (clips, frames): 1 for real frames, 0 for padding."""
        # Pad by one FFT window more than the longest clip. Then zeros follow every clip, as after the processor's
        # padding to a fixed length, and a clip's last frames do not depend on the batch.
        longest = max(len(clip) for clip in clips)
        features = self.features(clips, max_length=longest + self.feature_extractor.n_fft)
        frames = int(features["attention_mask"].sum(-1).max())
        return features["input_features"][..., :frames], features["attention_mask"][:, :frames]

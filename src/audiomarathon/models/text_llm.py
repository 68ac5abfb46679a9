"""Any causal LM with a chat template, as a model that takes no audio: it reads transcripts instead.

A text LLM has no audio tower and no audio tokens, so `base` (no compression) is the only method, and the stage
`encoder` takes no time. `audiomarathon cascade` runs it (engine/cascade.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import nn
from transformers import AutoModelForCausalLM

from audiomarathon.errors import ModelError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.chat import break_control_tokens, template_in
from audiomarathon.models.loading import causal_lm
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.templates import render


class TextLLM(AudioLM):
    """A text LLM, from a folder or the hub, that reads transcripts in place of audio."""

    title: ClassVar[str] = "a text LLM"
    architecture: ClassVar[Any] = AutoModelForCausalLM
    hears: ClassVar[bool] = False
    eager_because = "a text LLM may have any architecture"
    audio_token = -1  # the id of no token

    def __init__(self, model: Any, tokenizer: Any, feature_extractor: Any = None) -> None:
        super().__init__(model, tokenizer, feature_extractor)
        self._no_tower = nn.Identity()  # never called

    @classmethod
    def load(cls, path: Path, *, device: str, dtype: str, attn_implementation: str, device_map: str = "") -> Self:
        """Load a checkpoint folder with transformers' class for causal LMs, and return the model."""
        model, tokenizer = causal_lm(path, dtype=dtype, device_map=device_map, attn_implementation=attn_implementation)
        tokenizer.chat_template = template_in(path) or tokenizer.chat_template
        if not tokenizer.chat_template:
            raise ModelError(f"{path}: has no chat template, so it cannot be asked; name an instruct model")
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        return cls(model if device_map else model.to(device), tokenizer)

    @property
    def decoder(self) -> nn.Module:
        """The LLM without its head (the output projection)."""
        decoder: nn.Module = self.model.get_decoder()
        return decoder

    @property
    def lm_head(self) -> nn.Module:
        """The output projection, which turns hidden states into logits over the vocabulary."""
        head: nn.Module = self.model.get_output_embeddings()
        return head

    @property
    def audio_tower(self) -> nn.Module:
        """A module that is never called, in place of an audio tower, so that the stage `encoder` takes 0 s."""
        return self._no_tower

    def worded(self, prompt: Prompt) -> str:
        """Return a prompt's text as one user turn; break up control tokens, which a transcript may contain."""
        text = break_control_tokens(prompt.text, self.tokenizer)
        return render(self.tokenizer, [{"role": "user", "content": text}])

    def encoded(self, prompts: Sequence[Prompt], counts: Iterable[int]) -> Any:
        """Return the prompts, which have no clips, as `input_ids` and `attention_mask` of shape (B, S), padded on the
        left.

        Raises
        ------
        ModelError
            A prompt has a clip, or more tokens than the model has positions.
        """
        del counts  # there are no audio tokens
        if any(prompt.clips for prompt in prompts):
            raise ModelError("a text LLM hears nothing; audiomarathon cascade gives it a transcript")
        texts = [self.worded(prompt) for prompt in prompts]
        batch = self.tokenizer(texts, padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt")
        most = getattr(self.decoder.config, "max_position_embeddings", None)
        if most and (longest := batch["input_ids"].shape[1]) >= most:
            raise ModelError(f"the prompt has {longest:,} tokens; this LLM takes fewer than {most:,} with the reply")
        return batch

    def prepare(self, prompts: Sequence[Prompt]) -> Any:
        """Turn prompts without clips into a batch of tensors."""
        return self.batch(prompts)

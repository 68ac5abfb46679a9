"""What tiny checkpoints share: a byte-level tokenizer, weights that do something, and how processors are asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def byte_tokenizer(
    special: Sequence[str], *, end: str, pad: str, template: str | None = None, listed: bool = True, **named: str
) -> PreTrainedTokenizerFast:
    """Make a byte-level BPE without merges: every text round-trips, at one token a byte.

    `named` special tokens become attributes, such as `audio_token="<|AUDIO|>"`. Those that are not `listed` are special
    by their own entry alone, as Gemma's `<start_of_turn>` is: `all_special_tokens` does not know them.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end,
        pad_token=pad,
        additional_special_tokens=list(special) if listed else None,
        model_specific_special_tokens=named,
    )
    if template:
        fast.chat_template = template
    return fast


def spread(model: torch.nn.Module) -> None:
    """Draw the weights anew, wider: the default initialisation is so small that all logits are alike.

    Biases and scales too: as zeros and ones they hide what they do (Gemma 3n's per-layer inputs count for nothing while
    `correct_output_scale` is zero).
    """
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0, 0.15)
        else:
            parameter.data += 0.1 * torch.randn_like(parameter)


class AudioOnly:
    """Mixed into a family's processor: builds it without its parts for pictures, which want torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        return argument if argument is None else super().check_argument_for_proper_class(argument_name, argument)


def worded(processor: Any, clips: int, text: str, key: str = "audio") -> str:
    """Return one user's turn, the clips and then the text, as the processor's chat template words it."""
    content = [*({"type": "audio", key: "clip"} for _ in range(clips)), {"type": "text", "text": text}]
    conversation = [{"role": "user", "content": content}]
    return processor.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)

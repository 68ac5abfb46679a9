"""Turn a prompt into the text that a model reads: chat templates, and placeholders for audio."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from audiomarathon.errors import ModelError, TemplateError, told
from audiomarathon.files import MAX_OBJECT_BYTES, read_plain
from audiomarathon.models.prompt import Prompt, Waveform
from audiomarathon.models.templates import render, template_file
from audiomarathon.text import JOINER


def chat_text(tokenizer: Any, prompt: Prompt, placeholder: str, **options: Any) -> str:
    """Return a prompt's text, made with the tokenizer's chat template, as one user turn: the clips, then the question.

    Parameters
    ----------
    placeholder
        Text that the template writes for a clip.

    Raises
    ------
    ModelError
        The question contains a control token.
    TemplateError
        The template fails, or writes no placeholder for the clips.
    """
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    refuse_control_tokens(prompt.text, [*tokenizer.all_special_tokens, *added])
    text = render(tokenizer, conversation(prompt), **options)
    if prompt.clips and placeholder not in text:
        raise TemplateError(
            f"{template_file(tokenizer)}: the chat template writes no {placeholder} for audio; "
            "use the template published with this model"
        )
    return text


def conversation(prompt: Prompt) -> list[dict[str, Any]]:
    """Return a prompt as a list of one chat message, for chat templates: the user's clips, then the text."""
    content = [*({"type": "audio", "audio": ""} for _ in prompt.clips), {"type": "text", "text": prompt.text}]
    return [{"role": "user", "content": content}]


def refuse_control_tokens(text: str, special: Sequence[str]) -> None:
    """Raise ModelError if a question contains text that the tokenizer reads as a control token.

    The message names the token.
    """
    for token in special:
        if token in text:
            raise ModelError(f"a question contains {token}, which this model reads as a control token; reword it")


def break_control_tokens(text: str, tokenizer: Any) -> str:
    """Break up each control token in a text with an invisible character, and return the text.

    Only the chat template may write control tokens.
    """
    for token in (token.content for token in tokenizer.added_tokens_decoder.values() if token.special):
        if len(token) > 1:
            text = text.replace(token, f"{token[0]}{JOINER}{token[1:]}")
    return text


def with_audio_tokens(text: str, placeholder: str, counts: Sequence[int]) -> str:
    """Repeat the placeholder of each clip in a text as often as the clip has audio tokens, and return the text.

    Raises
    ------
    ModelError
        The numbers of placeholders and clips differ.
    """
    head, *rest = text.split(placeholder)
    if len(rest) > len(counts):  # the question contains a placeholder that the tokenizer does not list as special
        refuse_control_tokens(text, [placeholder])
    if len(rest) < len(counts):
        raise ModelError("the chat template has no placeholder for audio; add the checkpoint's template for audio")
    return head + "".join(placeholder * n + after for n, after in zip(counts, rest, strict=True))


def audio_token(tokenizer: Any, placeholder: str, config: Any) -> int:
    """Return the id of the audio token, after checking that tokenizer and config agree on it.

    Raises
    ------
    ModelError
        The tokenizer's id differs from the config's.
    """
    token: int = tokenizer.convert_tokens_to_ids(placeholder)
    if token != config.audio_token_id:
        raise ModelError(
            f"the tokenizer's {placeholder} is token {token}, the config's audio token {config.audio_token_id}: "
            f"tokenizer and weights do not belong together"
        )
    return token


def audio_only(kind: Any, **parts: Any) -> Any:
    """Build a processor of class `kind` from the given parts, without picture parts, which need torchvision."""

    class Processor(kind):  # type: ignore[misc]
        def check_argument_for_proper_class(self, name: str, part: Any) -> Any:
            return None if part is None else super().check_argument_for_proper_class(name, part)

    return Processor(**parts)


def windows(clip: Waveform, samples: int) -> Iterator[Waveform]:
    """Cut a clip into windows of `samples` samples of the waveform; the last window may be shorter."""
    for start in range(0, max(len(clip), 1), samples):
        yield np.ascontiguousarray(clip[start : start + samples])


def template_in(folder: Path) -> str:
    """Return the chat template from a checkpoint folder's separate template file; "" if there is no such file.

    Processors prefer this file to the tokenizer's template. Older checkpoints name it `chat_template.json`.
    """
    file = folder / "chat_template.json"
    if not file.is_file():
        file = folder / "chat_template.jinja"
    try:
        if file.suffix == ".jinja":
            return read_plain(file, MAX_OBJECT_BYTES).decode() if file.is_file() else ""
        template: str = json.loads(read_plain(file))["chat_template"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ModelError(f"{file}: holds no chat template ({told(error)})") from error
    return template

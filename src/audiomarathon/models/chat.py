"""Word a prompt for a model: chat templates and placeholders for audio."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from audiomarathon.errors import ModelError, TemplateError
from audiomarathon.models.prompt import Prompt, Waveform
from audiomarathon.models.templates import render, template_file


def chat_text(tokenizer: Any, prompt: Prompt, placeholder: str, **options: Any) -> str:
    """Return the prompt as one user turn, worded by the tokenizer's chat template: the clips, then the text.

    Parameters
    ----------
    placeholder
        The template's text for a clip.

    Raises
    ------
    ModelError
        When the text contains a control token.
    TemplateError
        When the template fails, or writes nothing for a clip.
    """
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    refuse_control_tokens(prompt.text, [*tokenizer.all_special_tokens, *added])
    text = render(tokenizer, conversation(prompt), **options)
    if prompt.clips and placeholder not in text:
        raise TemplateError(
            f"{template_file(tokenizer)}: the chat template has no {placeholder} for audio: it belongs to another model"
        )
    return text


def conversation(prompt: Prompt) -> list[dict[str, Any]]:
    """Return a prompt as input of a chat template: one user turn, the clips and then the text."""
    content = [*({"type": "audio", "audio": ""} for _ in prompt.clips), {"type": "text", "text": prompt.text}]
    return [{"role": "user", "content": content}]


def refuse_control_tokens(text: str, special: Sequence[str]) -> None:
    """Refuse a question in which the tokenizer would read a control token.

    Raises
    ------
    ModelError
        Names the control token.
    """
    for token in special:
        if token in text:
            raise ModelError(f"a question contains {token}, which this model reads as a control token")


def with_audio_tokens(text: str, placeholder: str, counts: Sequence[int]) -> str:
    """Repeat each clip's placeholder, once for each of its audio tokens.

    Raises
    ------
    ModelError
        When the numbers of placeholders and clips differ.
    """
    head, *rest = text.split(placeholder)
    if len(rest) > len(counts):  # a tokenizer may not list its placeholder as special
        refuse_control_tokens(text, [placeholder])
    if len(rest) < len(counts):
        raise ModelError("the chat template has no placeholder for audio: the checkpoint lacks its audio template")
    return head + "".join(placeholder * n + after for n, after in zip(counts, rest, strict=True))


def audio_token(tokenizer: Any, placeholder: str, config: Any) -> int:
    """Return the id of the audio token.

    Raises
    ------
    ModelError
        When tokenizer and config disagree.
    """
    token: int = tokenizer.convert_tokens_to_ids(placeholder)
    if token != config.audio_token_id:
        raise ModelError(
            f"the tokenizer's {placeholder} is token {token}, the config's audio token {config.audio_token_id}: "
            f"tokenizer and weights do not belong together"
        )
    return token


def audio_only(kind: Any, **parts: Any) -> Any:
    """Build a family's processor without the parts for pictures, which need torchvision."""

    class Processor(kind):  # type: ignore[misc]
        def check_argument_for_proper_class(self, name: str, part: Any) -> Any:
            return None if part is None else super().check_argument_for_proper_class(name, part)

    return Processor(**parts)


def windows(clip: Waveform, samples: int) -> Iterator[Waveform]:
    """Cut a clip into windows of `samples` samples; the last window may be shorter."""
    for start in range(0, max(len(clip), 1), samples):
        yield np.ascontiguousarray(clip[start : start + samples])


def template_in(folder: Path) -> str:
    """Return the chat template of a separate file, which processors prefer, or "" without such a file.

    Older processors keep it in `chat_template.json`.
    """
    file = folder / "chat_template.json"
    if not file.is_file():
        file = folder / "chat_template.jinja"
        return file.read_text(encoding="utf-8") if file.is_file() else ""
    try:
        template: str = json.loads(file.read_text(encoding="utf-8"))["chat_template"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file}: holds no chat template") from error
    return template

"""Functions that tau.yaml names for lmms-eval: a sample's audio, its prompt, its chat messages, and its score."""

from __future__ import annotations

from typing import Any


def audio(row: dict[str, Any]) -> list[str]:
    """Return the path of the sample's clip, as a list."""
    return [row["clip"]]


def text(row: dict[str, Any]) -> str:
    """Return the sample's prompt."""
    return str(row["prompt"])


def messages(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the chat messages of a sample: one user message with the clip, then the prompt."""
    content = [{"type": "audio", "url": row["clip"]}, {"type": "text", "text": row["prompt"]}]
    return [{"role": "user", "content": content}]


def judged(row: dict[str, Any], replies: list[str]) -> dict[str, float]:
    """Return the metric `accuracy` of a reply: 1 if it is the right letter, else 0."""
    return {"accuracy": float(replies[0].strip() == row["answer"])}

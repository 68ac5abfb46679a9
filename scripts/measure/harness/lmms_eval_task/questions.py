"""Functions that tau.yaml names for lmms-eval: a sample's audio, its prompt, the turn with both, and the verdict."""

from __future__ import annotations

from typing import Any


def audio(row: dict[str, Any]) -> list[str]:
    """Return the clip's path."""
    return [row["clip"]]


def text(row: dict[str, Any]) -> str:
    """Return the text of the question."""
    return str(row["prompt"])


def messages(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one user's turn: the clip, then the question."""
    content = [{"type": "audio", "url": row["clip"]}, {"type": "text", "text": row["prompt"]}]
    return [{"role": "user", "content": content}]


def judged(row: dict[str, Any], replies: list[str]) -> dict[str, float]:
    """Return whether the reply is the right letter, as a metric."""
    return {"accuracy": float(replies[0].strip() == row["answer"])}

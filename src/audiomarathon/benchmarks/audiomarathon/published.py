"""The benchmark's published table (arXiv 2510.07293): F1 × 100; for speech recognition 100 − WER.

The benchmark's code dropped unparsable replies before F1, averaged per-sample WER, and mixed weighted with macro F1.
Compare the table with the field of `summary.json` that is computed the same way (`as_published`; for speech
recognition `mean_of_samples`), never with our headline scores.
"""

from __future__ import annotations

from collections.abc import Mapping

_TASKS = ("slue", "race", "librispeech", "desed", "gtzan", "tau", "had", "vesus", "vox_age", "vox")

#: The rows of the published table: each model's scores, in the order of `_TASKS`.
_ROWS: Mapping[str, tuple[float, ...]] = {
    "Phi-4-MM": (18.4, 69.3, 92.7, 55.1, 46.7, 23.4, 26.4, 27.3, 26.6, 91.1),
    "Qwen2.5-Omni-3B": (25.2, 82.3, 94.7, 70.2, 97.4, 69.3, 67.3, 39.6, 29.1, 97.2),
    "Qwen2.5-Omni-7B": (26.3, 85.1, 98.1, 78.4, 100.0, 72.2, 72.3, 53.4, 21.4, 98.0),
    "Audio-Flamingo-3": (21.7, 78.9, 94.3, 59.5, 97.0, 54.1, 33.7, 54.3, 40.7, 96.2),
    "Gemma-3n-E2B": (22.5, 51.6, 91.3, 50.2, 56.8, 28.2, 35.1, 15.2, 12.2, 91.6),
    "Gemma-3n-E4B": (19.0, 56.9, 93.2, 50.2, 71.9, 31.7, 35.9, 18.9, 21.8, 93.0),
    "Voxtral-Mini-3B-2507": (24.3, 71.1, 96.8, 71.0, 83.8, 27.2, 68.0, 29.7, 30.7, 71.0),
    "Aero-1": (17.9, 56.6, 43.7, 55.0, 83.9, 39.9, 33.7, 32.0, 17.8, 47.5),
    "Human": (45.1, 88.1, float("nan"), 96.2, 100.0, 100.0, 100.0, 90.8, 71.4, 97.0),
}

ROW_OF: Mapping[str, str] = {
    "phi4mm": "Phi-4-MM",
    "qwen2.5-omni-3b": "Qwen2.5-Omni-3B",
    "qwen2.5-omni-7b": "Qwen2.5-Omni-7B",
    "audio-flamingo-3": "Audio-Flamingo-3",
    "gemma3n": "Gemma-3n-E4B",
    "gemma3n-e2b": "Gemma-3n-E2B",
    "voxtral": "Voxtral-Mini-3B-2507",
    "aero-1": "Aero-1",
}

#: The published scores between 0 and 1, as {row of the table (a model): {task: score}}.
SCORES: Mapping[str, Mapping[str, float]] = {
    row: {task: round(score / 100, 4) for task, score in zip(_TASKS, scores, strict=True)}
    for row, scores in _ROWS.items()
}

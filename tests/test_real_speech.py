"""Word error rates of Whisper base's transcripts of real speech."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
import real_recordings
import torch
from real_weights import real_weights
from test_metrics_wer import edit_distance
from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

from audiomarathon.audio.decode import decode
from audiomarathon.metrics.normalise import normalise
from audiomarathon.metrics.statistics import Estimate, Resampler
from audiomarathon.metrics.wer import transcript_errors, transcript_sums

pytestmark = pytest.mark.real

Listen = Callable[[Sequence[Path]], list[str]]
SPHINX = Path("/usr/share/pocketsphinx/test/data")


@pytest.fixture(scope="module")
def listen() -> Listen:
    """Transcribe clips of up to 30 s, greedily, in English."""
    folder = real_weights("whisper-base")
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    extractor, tokenizer = WhisperFeatureExtractor.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)

    def transcripts(files: Sequence[Path]) -> list[str]:
        texts: list[str] = []
        for first in range(0, len(files), 8):
            clips = [decode(file, 16_000) for file in files[first : first + 8]]
            features = extractor(clips, sampling_rate=16_000, return_tensors="pt").input_features
            with torch.inference_mode():
                ids = model.generate(features, language="en", task="transcribe", max_new_tokens=120)
            texts += tokenizer.batch_decode(ids, skip_special_tokens=True)
        return texts

    return transcripts


def rates(said: Mapping[Path, str], heard: Sequence[str], read: Callable[[str], str] | None = None) -> Estimate:
    """Return the corpus WER with its interval over clips. Check each clip's errors against a textbook recurrence."""
    errors = [transcript_errors(*pair, read) for pair in zip(said.values(), heard, strict=True)]
    for counts, *texts in zip(errors, said.values(), heard, strict=True):
        expected, given = ((read or normalise)(text).split() for text in texts)
        assert counts.errors == edit_distance(expected, given)
    estimate = Resampler(0).of_sums(
        transcript_sums([asdict(clip_errors) for clip_errors in errors], [file.stem for file in said])
    )["wer"]
    worst = max(zip(errors, said.values(), heard, strict=True), key=lambda row: row[0].errors)
    words = sum(clip_errors.words for clip_errors in errors)
    print(f"WER {estimate} of {len(errors)} clips, {words} words; worst: {worst}")  # noqa: T201
    return estimate


def test_whisper_transcripts_of_asterisk_prompts_have_low_wer(listen: Listen) -> None:
    said = real_recordings.prompts()
    if not said:
        pytest.skip(f"apt-get install {real_recordings.PROMPT_PACKAGES}")
    said = dict(list(said.items())[::2])
    heard = listen(list(said))
    read = rates(said, heard)
    assert read.value < 0.08
    assert rates(said, heard, str).value > read.value + 0.1  # commas and capitals would count as errors
    swapped = rates(said, [*heard[1:], heard[0]])
    assert swapped.value > 0.7


@pytest.mark.parametrize(("folder", "worst"), [("librivox", 0.08), ("cards", 0.6)])
def test_whisper_transcripts_of_pocketsphinx_recordings_have_low_wer(folder: str, worst: float, listen: Listen) -> None:
    """Sentences of a reader, and names of playing cards in poor recordings."""
    place = SPHINX / folder
    if not place.is_dir():
        pytest.skip("apt-get install pocketsphinx-testdata")
    (table,) = (path for path in place.iterdir() if path.name.endswith("transcription"))
    lines = re.findall(r"<s> (.*?)\s*</s> \((.*)\)", table.read_text(encoding="utf-8"))
    said = {place / f"{name}.wav": text for text, name in lines}
    assert len(said) == 5
    assert rates(said, listen(list(said))).value < worst

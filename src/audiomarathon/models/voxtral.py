"""Voxtral (arXiv 2507.13264), on transformers' native class and mistral-common's tokenizer.

Its Whisper encoder takes windows of 30 s; the last window is padded with silence, which gets audio tokens too. A
projector joins four encoder frames into one audio token, so there are 12.5 per second. mistral-common has two kinds of
request. A question is a chat request. A prompt that asks for a transcript is a transcription request, which leaves out
the prompt's text; if the prompt has no clip, it is a chat request too. :meth:`AudioLM.load` loads the checkpoint.
"""

from __future__ import annotations

import base64
import io
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import soundfile
import torch
from transformers import MistralCommonBackend, VoxtralForConditionalGeneration, VoxtralProcessor

from audiomarathon.errors import ModelError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.loading import check_installed
from audiomarathon.models.prompt import Inputs, Prompt, Waveform
from audiomarathon.models.tower_states import TowerStates

_SILENCE = np.zeros(1, np.float32)


class Voxtral(AudioLM):
    """Voxtral Mini and Small on whole clips, cut into windows of 30 s."""

    title: ClassVar[str] = "Voxtral"
    architecture: ClassVar[Any] = VoxtralForConditionalGeneration
    model_types: ClassVar[tuple[str, ...]] = ("voxtral",)
    eager_because = whole_because = no_tower_drop = ""
    encoder_window_seconds: ClassVar[float] = 30.0
    names_language: ClassVar[bool] = True

    @classmethod
    def check_folder(cls, path: Path) -> None:  # noqa: ARG003
        """Raise ModelError if the package mistral-common is not installed."""
        check_installed("mistral_common", "voxtral")

    @classmethod
    def check_language(cls, folder: Path, language: str) -> None:  # noqa: ARG003
        """Raise ModelError if the language is not a code of two letters, which mistral-common needs."""
        if len(language) != 2:
            raise ModelError(f"LANGUAGE={language}: not one of Voxtral's; allowed: codes of two letters (ISO 639-1)")

    @classmethod
    def read_tokenizer(cls, path: Path) -> Any:
        """Read mistral-common's tokenizer from the checkpoint folder; it needs no chat template."""
        return MistralCommonBackend.from_pretrained(path)

    def __init__(self, model: Any, tokenizer: Any, feature_extractor: Any) -> None:
        super().__init__(model, tokenizer, feature_extractor)
        self.audio_token = model.config.audio_token_id
        audio = model.config.audio_config
        per_window = audio.max_source_positions * audio.hidden_size // audio.intermediate_size
        self.samples_per_token = feature_extractor.n_samples / per_window
        encoder = tokenizer.tokenizer.instruct_tokenizer.audio_encoder
        known = encoder is not None and encoder.special_ids.audio == self.audio_token
        if not known or self._request(Prompt("?", (_SILENCE,))).count(self.audio_token) != per_window:
            raise ModelError(
                f"the weights need {per_window} audio tokens with id {self.audio_token} per window, but tekken.json "
                "makes different ones; tokenizer and weights do not belong together"
            )

    def prepare(self, prompts: Sequence[Prompt]) -> Inputs:
        """Turn prompts into a batch of tensors, with each sample's number of audio tokens that stand for padding."""
        inputs = super().prepare(prompts)
        real = [sum(math.ceil(len(clip) / self.samples_per_token) for clip in prompt.clips) for prompt in prompts]
        return replace(inputs, window_padding=tuple(np.subtract(inputs.audio_tokens, real).tolist()))

    def heard(self, clips: Sequence[Waveform]) -> tuple[Sequence[int], dict[str, torch.Tensor]]:
        """Return ([], {argument name of the model: features of all clips, cut into windows}).

        The list of numbers of audio tokens is empty, since :meth:`encoded` finds these numbers itself.
        """
        if not all(len(clip) for clip in clips):
            raise ModelError("a clip is empty")
        return [], {"input_features": torch.cat([self._windows(clip) for clip in clips])}

    def encoded(self, prompts: Sequence[Prompt], counts: Iterable[int]) -> Any:  # noqa: ARG002
        """Return the prompts as `input_ids` and `attention_mask`, made by mistral-common and padded on the left."""
        tokens = {"input_ids": [self._tokens(prompt) for prompt in prompts]}
        return self.tokenizer.pad(tokens, padding_side="left", return_tensors="pt")

    def tower_states(self, inputs: Inputs) -> TowerStates:
        """Return a :class:`TowerStates`: from which states of the audio tower each audio token is made, per window.

        The states of the silence that pads a window make audio tokens too.
        """
        audio = self.model.config.audio_config
        width, pooling = audio.max_source_positions, audio.intermediate_size // audio.hidden_size
        windows = ((width, width // pooling),) * len(inputs.tensors["input_features"])
        return TowerStates(pooling, windows, width)

    def _windows(self, clip: Waveform) -> torch.Tensor:
        """Return a clip's log-mel spectrogram, cut into windows: (windows, mel bins, frames).

        The spectrogram is computed for the whole clip before it is cut: the clip's loudest moment sets the floor of all
        windows, and the last frames of a window include samples of the next window.
        """
        extractor = self.feature_extractor
        whole = self.features(clip, padding=True, pad_to_multiple_of=extractor.n_samples)["input_features"]
        windows: torch.Tensor = whole.reshape(extractor.feature_size, -1, extractor.nb_max_frames).transpose(0, 1)
        return windows

    def _tokens(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt, equal to those that the family's processor makes.

        mistral-common takes audio as an encoded file. So give it a short silent clip for each real clip, which makes
        one window of audio tokens. Then repeat these tokens for each window of the real clip.
        """
        counts = (math.ceil(len(clip) / self.feature_extractor.n_samples) for clip in prompt.clips)
        tokens: list[int] = []
        for token, run in itertools.groupby(self._request(prompt)):
            tokens += list(run) * (next(counts) if token == self.audio_token else 1)
        return tokens

    def _request(self, prompt: Prompt) -> list[int]:
        """Return the token ids that mistral-common makes of a prompt, with one window of silence for each clip."""
        if not (prompt.transcription and prompt.clips):
            conversation = _conversation(prompt.text, [_SILENCE] * len(prompt.clips))
            return list(self.tokenizer.apply_chat_template(conversation)["input_ids"])
        from mistral_common.protocol.transcription.request import TranscriptionRequest

        if len(prompt.clips) != 1:
            raise ModelError(f"Voxtral transcribes one clip at a time, but this prompt has {len(prompt.clips)}")
        request = TranscriptionRequest(audio=_wav(_SILENCE), language=prompt.language)
        return list(self.tokenizer.tokenizer.encode_transcription(request).tokens)

    def documented_inputs(self, path: Path, prompt: Prompt) -> Mapping[str, torch.Tensor]:
        """Return the inputs, as {name: tensor}, that the family's own processor makes of a prompt.

        For transcription, the processor rounds audio to 16 bits.
        """
        processor = VoxtralProcessor.from_pretrained(path)
        if prompt.transcription:
            inputs = processor.apply_transcription_request(
                list(prompt.clips), str(path), prompt.language, sampling_rate=self.sampling_rate, format="WAV"
            )
        else:
            inputs = processor.apply_chat_template(_conversation(prompt.text, prompt.clips))
        return dict(inputs)


def _conversation(text: str, clips: Sequence[Waveform]) -> list[dict[str, Any]]:
    audio = [{"type": "audio", "base64": _wav(clip)} for clip in clips]
    return [{"role": "user", "content": [*audio, {"type": "text", "text": text}]}]


def _wav(clip: Waveform) -> str:
    """Return a clip as a WAV file, encoded in base64; its samples are floats, so nothing is rounded."""
    stream = io.BytesIO()
    soundfile.write(stream, clip, Voxtral.sampling_rate, format="WAV", subtype="FLOAT")
    return f"data:audio/wav;base64,{base64.b64encode(stream.getvalue()).decode()}"

"""Whisper (arXiv 2212.04356), on transformers' native class: an encoder-decoder, so audio is not in the prompt.

The encoder turns a window of 30 s into 1,500 states, 50 per second, and the decoder attends to them. A clip is cut into
windows at quiet moments. The windows of all clips of a batch are the rows of one call, and a reply joins its windows'
transcripts. Decoding is greedy, without timestamps, translation or fallbacks.

Methods see a virtual prompt: the states of each window, then the decoder's forced tokens (language, task). The states
that stand for the clip count as its audio tokens. The states of a window's padding are dropped at the same ratio.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    WhisperForConditionalGeneration,
)

from audiomarathon.errors import ModelError
from audiomarathon.files import json_object
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.generation import Reply
from audiomarathon.models.loading import loading
from audiomarathon.models.prompt import Inputs, Prompt, Waveform
from audiomarathon.models.tower_states import TowerStates

# Seconds before a window's end in which the quietest moment is sought. Errors of Whisper base on 1,468 words of six
# clips: cut at 30 s 331 (it repeats itself when a word is cut in two), within 0.2 s 34, 2 s 23, 5 s 22, 10 s 25.
_SEARCHED_S = 5.0
_MOMENT_S = 0.2  # length of a moment, in seconds


class Whisper(AudioLM):
    """Whisper on whole clips, cut into windows of at most 30 s."""

    title: ClassVar[str] = "Whisper"
    architecture: ClassVar[Any] = WhisperForConditionalGeneration
    model_types: ClassVar[tuple[str, ...]] = ("whisper",)
    eager_because = "its decoder hears the audio by cross-attention"
    whole_because = "its decoder hears the audio by cross-attention, so its prompt has a few tokens only"
    encoder_window_seconds: ClassVar[float] = 30.0
    text_only: ClassVar[bool] = False
    transcribes_only: ClassVar[bool] = True
    no_tower_drop = ""
    names_language: ClassVar[bool] = True
    cross: ClassVar[bool] = True

    def __init__(self, model: Any, tokenizer: Any, feature_extractor: Any) -> None:
        self.published = model.generation_config
        super().__init__(model, tokenizer, feature_extractor)
        heard, made = model.config.num_mel_bins, feature_extractor.feature_size
        if heard != made:
            raise ModelError(
                f"preprocessor_config.json makes {made} mel bands, but the model hears {heard}; copy the file from the "
                "published checkpoint that this one was made from"
            )
        self.window_states: int = model.config.max_source_positions
        self.samples_per_state = feature_extractor.n_samples // self.window_states

    @classmethod
    def read_tokenizer(cls, path: Path) -> Any:
        """Read the tokenizer from the checkpoint folder; it needs no chat template."""
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)

    @property
    def decoder(self) -> nn.Module:
        """The text decoder without its head (the output projection)."""
        decoder: nn.Module = self.model.model.decoder
        return decoder

    @property
    def audio_tower(self) -> nn.Module:
        """The audio encoder, timed as the stage `encoder`."""
        encoder: nn.Module = self.model.model.encoder
        return encoder

    @property
    def lm_head(self) -> nn.Module:
        """The output projection, which has the same weights as the token embeddings."""
        head: nn.Module = self.model.proj_out
        return head

    @property
    def prefill_only(self) -> Sequence[nn.Module]:
        """The projections that turn the encoder's states into keys and values: they run in prefill, never in decode."""
        attentions: list[Any] = [layer.encoder_attn for layer in self.decoder_layers]
        return [part for attention in attentions for part in (attention.k_proj, attention.v_proj)]

    @classmethod
    def check_language(cls, folder: Path, language: str) -> None:
        """Raise ModelError if the checkpoint does not know the language of the speech."""
        with loading(folder, cls.title):
            cls.refuse_other_kinds(folder)
            cls.check_folder(folder)
            known = GenerationConfig.from_pretrained(folder)
        _spoken(known, language)

    @classmethod
    def check_folder(cls, path: Path) -> None:
        """Raise ModelError if generation_config.json is missing, or lacks the ids of the decoder's first tokens."""
        file = path / "generation_config.json"
        known = (json_object(file.read_bytes()) if file.is_file() else None) or {}
        wanted = ("no_timestamps_token_id", *("lang_to_id", "task_to_id") * bool(known.get("is_multilingual", True)))
        if lacking := ", ".join(name for name in wanted if not known.get(name)):
            problem = f"lacks {lacking}" if file.is_file() else "no such file"
            raise ModelError(
                f"{file}: {problem}, so the decoder's first tokens are unknown; "
                "copy the file from the published checkpoint that this one was made from"
            )

    @classmethod
    def longest_reply(cls, folder: Path) -> int:
        """Return the token limit of each window's transcript: half of the decoder's positions, as in OpenAI's code.

        The limit is called `DecodingOptions.sample_len` there.
        """
        return int(cls.read_config(folder).max_target_positions) // 2

    def forced(self, language: str) -> list[int]:
        """Return the token ids with which the decoder's prompt begins: start, language, task, no timestamps.

        Raises
        ------
        ModelError
            The checkpoint does not know the language.
        """
        return [self.model.config.decoder_start_token_id, *_spoken(self.published, language)]

    def cut(self, clip: Waveform) -> list[Waveform]:
        """Cut a clip into windows of at most 30 s, each at the quietest moment of the last five seconds."""
        most, moment = self.feature_extractor.n_samples, round(_MOMENT_S * self.sampling_rate)
        windows = []
        while len(clip) > most:
            first = most - round(_SEARCHED_S * self.sampling_rate)
            power = np.square(clip[first:most], dtype=np.float64).reshape(-1, moment).sum(-1)
            at = first + moment * int(len(power) - 1 - power[::-1].argmin()) + moment // 2  # the last of equally quiet
            windows.append(clip[:at])
            clip = clip[at:]
        return [*windows, clip]

    def prepare(self, prompts: Sequence[Prompt]) -> Inputs:
        """Turn prompts into a batch of tensors: the features of each window, and the mask of the virtual prompt.

        In a virtual prompt, the encoder's states stand for audio tokens (see the module's text).
        """
        if not all(prompt.clips and all(len(clip) for clip in prompt.clips) for prompt in prompts):
            raise ModelError("Whisper transcribes audio, but a prompt has no clip, or an empty one")
        windows = [[window for clip in prompt.clips for window in self.cut(clip)] for prompt in prompts]
        forced = [self.forced(prompt.language) for prompt in prompts]
        features = self.features([window for sample_windows in windows for window in sample_windows])["input_features"]
        tensors = {
            "input_features": features.to(self.device, self.model.dtype),
            "decoder_input_ids": torch.tensor(
                [tokens for tokens, sample_windows in zip(forced, windows, strict=True) for _ in sample_windows],
                device=self.device,
            ),
        }
        states = tuple(
            tuple(-(-len(window) // self.samples_per_state) for window in sample_windows) for sample_windows in windows
        )
        rows = [self._virtual(hidden, len(tokens)) for hidden, tokens in zip(states, forced, strict=True)]
        longest = max(map(len, rows))
        audio_mask, there = torch.zeros(2, len(rows), longest, dtype=torch.bool)
        for row, virtual in enumerate(rows):
            audio_mask[row, longest - len(virtual) :] = virtual
            there[row, longest - len(virtual) :] = True
        tensors["attention_mask"] = there.long().to(self.device)
        seeds = tuple(prompt.seed for prompt in prompts)
        clips = tuple(map(tuple, windows))
        return Inputs(tensors, audio_mask.to(self.device), seeds, states=states, clips=clips)

    def _virtual(self, states: Sequence[int], forced: int) -> torch.Tensor:
        """Return the audio mask of one sample's virtual prompt: True at the states of its windows.

        Behind these come the forced tokens (language, task) of each window.
        """
        places = torch.arange(self.window_states)
        return torch.cat([*(places < count for count in states), torch.zeros(forced * len(states), dtype=torch.bool)])

    def tower_states(self, inputs: Inputs) -> TowerStates:
        """Return a :class:`TowerStates` with each window's number of encoder states; each state counts as an audio
        token.
        """
        windows = tuple((count, count) for counts in inputs.states for count in counts)
        return TowerStates(1, windows, self.window_states)

    def documented_inputs(self, path: Path, prompt: Prompt) -> Mapping[str, torch.Tensor]:
        """Return the features of each window, as {name: tensor}, as Whisper's own feature extractor makes them."""
        extractor = self.feature_extractor_class.from_pretrained(path)
        windows = [window for clip in prompt.clips for window in self.cut(clip)]
        return dict(extractor(windows, sampling_rate=self.sampling_rate, return_tensors="pt"))

    def call(
        self, inputs: Inputs, config: GenerationConfig, processors: LogitsProcessorList
    ) -> tuple[torch.Tensor, Any]:
        """Generate with the checkpoint's lists of suppressed tokens; return (new tokens, what `generate` returned)."""
        forced = inputs.tensors["decoder_input_ids"]
        config.max_new_tokens = min(config.max_new_tokens, self.model.config.max_target_positions // 2)  # longest_reply
        config.decoder_start_token_id = self.model.config.decoder_start_token_id
        config.suppress_tokens = self.published.suppress_tokens or None
        config.begin_suppress_tokens = self.published.begin_suppress_tokens or None
        features = inputs.tensors["input_features"]
        output = GenerationMixin.generate(
            self.model,
            features,
            attention_mask=torch.ones_like(features[:, 0], dtype=torch.long),
            decoder_input_ids=forced,
            generation_config=config,
            logits_processor=processors,
        )
        return output.sequences[:, forced.shape[1] :], output

    def joined(self, inputs: Inputs, rows: Sequence[Reply]) -> tuple[Reply, ...]:
        """Join the transcripts of each sample's windows into one reply.

        The reply's `new_tokens` is that of the longest window. Windows are decoded side by side, so this is the number
        of steps.
        """
        remaining, replies = iter(rows), []
        for states in inputs.states:
            windows = list(itertools.islice(remaining, len(states)))
            replies.append(
                Reply(
                    " ".join(text for window in windows if (text := window.text.strip())),
                    "stop" if all(window.finish == "stop" for window in windows) else "length",
                    max(window.new_tokens for window in windows),
                    tuple(token for window in windows for token in window.token_ids),
                )
            )
        return tuple(replies)

    def by_sample(self, inputs: Inputs, logits: torch.Tensor) -> torch.Tensor:
        """Concatenate the logits of each sample's windows along the steps.

        The shape (steps, windows, vocabulary) becomes (steps, B samples, vocabulary). Samples with fewer windows are
        padded with zeros at the end.
        """
        by_window = logits.unbind(1)
        ends = list(itertools.accumulate(map(len, inputs.states), initial=0))
        joined = [torch.cat(by_window[first:last]) for first, last in itertools.pairwise(ends)]
        return torch.nn.utils.rnn.pad_sequence(joined)

    def allowed(self, logits: torch.Tensor) -> torch.Tensor:
        """Return a reply's logits, with −∞ for the tokens that the checkpoint suppresses."""
        known = self.published
        kept = logits.index_fill(-1, torch.tensor(known.suppress_tokens or [], dtype=torch.long), -torch.inf)
        kept[0, known.begin_suppress_tokens or []] = -torch.inf
        return kept

    def plainly(self, tensors: Mapping[str, torch.Tensor], steps: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Generate by Whisper's own `generate`, each window alone; return (tokens, raw logits) of all windows."""
        config, tokens, logits = copy.deepcopy(self.published), [], []
        more = {"max_new_tokens": steps, "eos_token_id": None, "return_dict_in_generate": True, "output_logits": True}
        config.update(do_sample=False, max_length=None, **more)
        spoken = {"language": "en", "task": "transcribe"} if getattr(config, "is_multilingual", True) else {}
        for features in tensors["input_features"]:
            done = self.model.generate(features[None], generation_config=config, **spoken)
            tokens.append(done.sequences[0, -len(done.logits) :])
            logits.append(torch.stack(done.logits)[:, 0])
        return torch.cat(tokens), torch.cat(logits)


def _spoken(known: GenerationConfig, language: str) -> list[int]:
    """Return the decoder's forced tokens after the first: language, `transcribe`, "no timestamps".

    Language and `transcribe` are left out if the checkpoint is not multilingual.
    """
    if not getattr(known, "is_multilingual", True):
        if language != "en":
            raise ModelError(f"LANGUAGE={language}: this checkpoint hears English only; allowed: en")
        return [known.no_timestamps_token_id]
    tokens = {name.strip("<|>"): token for name, token in known.lang_to_id.items()}
    if language not in tokens:
        names = ", ".join(sorted(tokens))
        raise ModelError(f"LANGUAGE={language}: not one of this checkpoint's languages; allowed: {names}")
    return [tokens[language], known.task_to_id["transcribe"], known.no_timestamps_token_id]

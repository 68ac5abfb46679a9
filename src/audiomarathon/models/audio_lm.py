"""The base class of audio LLMs: their interface, and the loading and generating that all families share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, LogitsProcessorList, WhisperFeatureExtractor

from audiomarathon.errors import LogitsError, ModelError, warn
from audiomarathon.models.chat import audio_token, chat_text, conversation, template_in, with_audio_tokens
from audiomarathon.models.generation import Generation, Reply
from audiomarathon.models.kernels import attention_kernels
from audiomarathon.models.loading import check_loading, loading, pretrained
from audiomarathon.models.prefill_chunks import attending_in_chunks, prefill_in_chunks
from audiomarathon.models.prompt import Inputs, Prompt, Waveform
from audiomarathon.models.static_decode import FEWEST, PositionProbe, decode, hooked, one_device
from audiomarathon.models.timing import CacheProbe, StageTimer, TokenWatch, make_clock
from audiomarathon.models.tower_states import TowerStates
from audiomarathon.models.trace import Trace
from audiomarathon.settings import EAGER, GRAPH, SDPA_BACKENDS


class AudioLM:
    """A loaded audio LLM. Each model family is a subclass.

    A family defines how its loading differs, how its prompt looks, and where its parts are. Loading, generating, timing
    and counting are defined here, for all families.

    Class attributes: `title` (the family's name in messages), `architecture` (transformers' class), `model_types`
    (accepted model types in config.json, first that of the hub's checkpoint), `feature_extractor_class`,
    `sampling_rate` (Hz).
    """

    title: ClassVar[str]
    architecture: ClassVar[Any]
    model_types: ClassVar[tuple[str, ...]]
    feature_extractor_class: ClassVar[Any] = WhisperFeatureExtractor

    sampling_rate: ClassVar[int] = 16000
    encoder_window_seconds: ClassVar[float] = 0.0
    """Length in seconds of the windows into which clips are cut for the audio tower; the last window is padded. 0 if
    clips are not cut."""
    text_only: ClassVar[bool] = True
    """Whether :meth:`prepare` accepts prompts without clips, alone or in a batch. If it does not, a run with such
    samples is refused before the model is loaded."""
    hears: ClassVar[bool] = True
    """Whether the model takes audio; a text LLM reads transcripts instead."""
    transcribes_only: ClassVar[bool] = False
    """Whether the model can only transcribe. Other tasks are refused before the model is loaded."""
    names_language: ClassVar[bool] = False
    """Whether the model must be told the language of the speech to transcribe it. If not, LANGUAGE does nothing."""
    cross: ClassVar[bool] = False
    """Whether the decoder attends to the audio by cross-attention (an encoder-decoder): audio is not in its prompt."""
    other_kinds: ClassVar[str] = "name the model that fits; `audiomarathon list models` shows all"
    """Advice in the error about a checkpoint with another model type."""
    template: ClassVar[str | None] = None
    """Chat template for checkpoints without a template file; None uses the tokenizer's template."""
    tower_list: ClassVar[str] = "layers"
    """Name of the attribute that holds the audio encoder's list of layers."""
    placeholder: str = ""
    """Text that the chat template writes for a clip; the tokenizer turns it into :attr:`audio_token`."""
    audio_token: int
    no_tower_drop: ClassVar[str] = "its family does not say which states of its tower make an audio token"
    """Why a method cannot drop states between the layers of the audio tower; "" if :meth:`tower_states` supports it."""
    shares_tower: bool = True
    """Whether a call may reuse the tower's output for the same clips; False if a method changes the output."""
    sdpa_backends: str = SDPA_BACKENDS
    """Kernels that :meth:`generate` lets sdpa use; see :func:`~audiomarathon.models.kernels.attention_kernels`."""
    decode: str = EAGER
    """How :meth:`generate` decodes: `eager` by transformers' loop, `graph` by :mod:`.static_decode` where possible."""
    eager_because: ClassVar[str] = "its family does not say that a decode step needs no Python"
    """Why decode of this family stays eager; "" if it may use the static step of :mod:`.static_decode`."""
    prefill_chunk: int = 0
    """Tokens that the LLM's layers take at a time in prefill; 0 for the whole prompt. See :mod:`.prefill_chunks`."""
    whole_because: ClassVar[str] = "its family does not say that its layers may take a prompt in chunks"
    """Why this family's prefill cannot run in chunks; "" if it can."""
    rotations: ClassVar[tuple[str, ...]] = ("default", "linear", "llama3", "yarn")
    """Kinds of rotary embedding whose rotation depends only on the position, so that a static step can tabulate it."""
    last_graph: Any = None
    """CUDA stream and graph of the last captured decode step, whose memory the next graph shares; None before."""

    def __init__(self, model: Any, tokenizer: Any, feature_extractor: Any) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.feature_extractor = feature_extractor
        self.end_tokens = self._end_tokens()
        # Replace the checkpoint's generation config, which may sample (Qwen2.5-Omni has do_sample=True) or set
        # penalties. Otherwise `generate` would use its values for every field that our own config leaves out.
        self.model.generation_config = GenerationConfig()
        self.clock = make_clock(self.model)
        if self.placeholder:
            self.audio_token = audio_token(tokenizer, self.placeholder, model.config)

    @classmethod
    def load(cls, path: Path, *, device: str, dtype: str, attn_implementation: str, device_map: str = "") -> Self:
        """Load a checkpoint folder and return the model. All families take the same steps; a family may override single
        steps.

        Parameters
        ----------
        device
            `cpu`, `cuda` or `cuda:N`. Ignored when `device_map` is given.
        dtype
            `float32`, `float16` or `bfloat16`.
        attn_implementation
            `sdpa`, `eager` or `flash_attention_2`.
        device_map
            accelerate's strategy (`auto`, `balanced`, `sequential`) to spread the model over GPUs; "" for none.

        Raises
        ------
        ModelError
            The checkpoint lacks weights, has unexpected weights, or belongs to another model.
        """
        with loading(path, cls.title):
            cls.refuse_other_kinds(path)
            cls.check_folder(path)
            model, info = pretrained(
                cls.architecture,
                path,
                dtype=dtype,
                attn_implementation=cls.attention(attn_implementation),
                device_map=device_map,
                **cls.load_options(path),
            )
            tokenizer = cls.read_tokenizer(path)
            feature_extractor = cls.feature_extractor_class.from_pretrained(path)
            cls.complete(model, path, info)
            check_loading(path, info)
            return cls(model if device_map else model.to(device), tokenizer, feature_extractor)

    @classmethod
    def refuse_other_kinds(cls, path: Path) -> None:
        """Raise ModelError if the checkpoint belongs to another model.

        Without this check, the config class would give wrong defaults to the fields that the checkpoint's config lacks.
        """
        kind = cls.architecture.config_class.get_config_dict(path)[0].get("model_type")
        if kind not in cls.model_types:
            raise ModelError(
                f"{path}: config.json says model type {kind!r}, not {cls.model_types[0]!r}; {cls.other_kinds}"
            )

    @classmethod
    def check_folder(cls, path: Path) -> None:
        """Raise an error if the folder lacks files, or this machine lacks a package, before the model is loaded.

        By default, check nothing.
        """

    @classmethod
    def attention(cls, attn_implementation: str) -> str | Mapping[str, str]:
        """Return the argument `attn_implementation` for `from_pretrained`: one name, or {sub-config: name}."""
        return attn_implementation

    @classmethod
    def load_options(cls, path: Path) -> dict[str, Any]:  # noqa: ARG003
        """Return further arguments for `from_pretrained` that the family needs, as {name: value}; by default {}."""
        return {}

    @classmethod
    def read_tokenizer(cls, path: Path) -> Any:
        """Return the checkpoint's tokenizer, with the chat template for audio.

        A separate template file replaces the tokenizer's template, which may lack audio. The processor does the same.
        """
        # Pass the config: without it, transformers would ask whether to run the code in Aero's checkpoint.
        tokenizer = AutoTokenizer.from_pretrained(path, config=cls.read_config(path), trust_remote_code=False)
        built_in = tokenizer.chat_template if cls.template is None else cls.template
        tokenizer.chat_template = template_in(path) or built_in
        if not tokenizer.chat_template:
            raise ModelError(f"{path}: neither the tokenizer nor chat_template.json holds a chat template")
        return tokenizer

    @classmethod
    def complete(cls, model: Any, path: Path, info: Mapping[str, Any]) -> None:
        """Load weights that `from_pretrained` cannot load, because the family stores them in a special way.

        `info` is the loading report of `from_pretrained`: remove these weights from its missing keys.
        """

    @classmethod
    def read_config(cls, path: Path) -> Any:
        """Return a checkpoint's config, read with transformers' class, without weights and without running the
        checkpoint's code.

        Raises
        ------
        ValueError
            When transformers does not know the model type.
        """
        return AutoConfig.from_pretrained(path, trust_remote_code=False)

    def prepare(self, prompts: Sequence[Prompt]) -> Inputs:
        """Turn prompts into a batch of tensors on the model's device: audio features, and left-padded tokens.

        Clips are never cut short, unless the family's docstring says so.
        """
        prompts = [self.windowed(prompt) for prompt in prompts]
        clips = [clip for prompt in prompts for clip in prompt.clips]
        counts, features = self.heard(clips) if clips else ([], {})
        return self.batch(prompts, counts, **features)

    def windowed(self, prompt: Prompt) -> Prompt:
        """Return the prompt with its clips cut into windows, each of which then counts as a clip; by default, uncut."""
        return prompt

    def heard(self, clips: Sequence[Waveform]) -> tuple[Sequence[int], dict[str, torch.Tensor]]:
        """Return two values: the number of audio tokens of each clip, and {argument name of the model: features of all
        clips}.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither `heard` nor its own `prepare`")

    def features(self, clips: Any, **options: Any) -> Any:
        """Return the feature extractor's output for one or several clips, such as {`input_features`: tensor}; no clip
        is cut.
        """
        usual = {"padding": "max_length", "truncation": False, "return_attention_mask": True, "return_tensors": "pt"}
        return self.feature_extractor(clips, sampling_rate=self.sampling_rate, **{**usual, **options})

    def tokens_of(self, frames: torch.Tensor) -> torch.Tensor:
        """Return how many audio tokens a clip of `frames` mel frames has; with Whisper's encoder, 25 per second."""
        return ((frames - 1) // 2 + 1 - 2) // 2 + 1

    def tower_states(self, inputs: Inputs) -> TowerStates:
        """Return a :class:`TowerStates`: from which states of the audio tower each audio token of a batch is made.

        Dropping inside the tower needs this map; a family without it sets :attr:`no_tower_drop` to the reason.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define `tower_states`")

    def worded(self, prompt: Prompt) -> str:
        """Return a prompt's text, made with the tokenizer's chat template; each clip becomes a placeholder."""
        return chat_text(self.tokenizer, prompt, self.placeholder)

    def batch(self, prompts: Sequence[Prompt], counts: Iterable[int] = (), **features: torch.Tensor) -> Inputs:
        """Turn prompts into a left-padded batch, and add their audio features in the model's precision.

        Parameters
        ----------
        counts
            Number of audio tokens of each clip, in the prompts' order.
        """
        encoded = self.encoded(prompts, counts)
        tensors = {name: encoded[name].to(self.device) for name in ("input_ids", "attention_mask")}
        for name, tensor in features.items():
            tensors[name] = tensor.to(self.device, self.model.dtype if tensor.is_floating_point() else None)
        mask = tensors["input_ids"] == self.audio_token
        clips = tuple(prompt.clips for prompt in prompts)
        return Inputs(tensors, mask, tuple(prompt.seed for prompt in prompts), clips=clips)

    def encoded(self, prompts: Sequence[Prompt], counts: Iterable[int]) -> Any:
        """Return the prompts as `input_ids` and `attention_mask`, each of shape (B prompts, S tokens), padded on the
        left.

        `counts` has the number of audio tokens of each clip, in order.
        """
        remaining = iter(counts)
        texts = [
            with_audio_tokens(self.worded(prompt), self.placeholder, [next(remaining) for _ in prompt.clips])
            for prompt in prompts
        ]
        return self.tokenizer(texts, padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt")

    # Most model classes of transformers have their parts at these places; other families override these properties.

    @property
    def decoder(self) -> nn.Module:
        """The LLM without its head: the module that has `.layers` and receives `past_key_values`."""
        decoder: nn.Module = self.model.model.language_model
        return decoder

    @property
    def decoder_layers(self) -> nn.ModuleList:
        """The LLM's decoder layers, in order; layer K is item K."""
        layers: nn.ModuleList = self.decoder.layers  # type: ignore[assignment]
        return layers

    @property
    def audio_tower(self) -> nn.Module:
        """The audio encoder, timed as the stage `encoder`.

        A projector outside this module counts as LLM prefill.
        """
        tower: nn.Module = self.model.model.audio_tower
        return tower

    @property
    def audio_encoder(self) -> nn.Module:
        """The audio tower without its projector; the whole tower if it contains no projector."""
        return self.audio_tower

    @property
    def tower_layers(self) -> Sequence[nn.Module]:
        """The audio encoder's layers, in order; empty if it has no list named :attr:`tower_list`."""
        return [*getattr(self.audio_encoder, self.tower_list, ())]

    @property
    def lm_head(self) -> nn.Module:
        """The output projection, which turns hidden states into logits over the vocabulary."""
        head: nn.Module = self.model.lm_head
        return head

    @property
    def prefill_only(self) -> Sequence[nn.Module]:
        """Parts of the decoder that run only in prefill, on the encoder's output, and never in decode; usually none."""
        return ()

    @property
    def device(self) -> torch.device:
        """The device on which the model expects its inputs."""
        device: torch.device = self.model.device
        return device

    @property
    def attn_implementation(self) -> str:
        """Name of the attention implementation that the LLM uses: `sdpa`, `eager` or `flash_attention_2`."""
        name: str = self.decoder.config._attn_implementation  # type: ignore[union-attr, assignment]
        return name

    def rotation(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rotary cosines and sines of `count` text positions from `start`, each of shape (count, d_rotated).

        `forward` is called directly, so that hooks do not run: a hook that renumbers a shortened prompt must not
        renumber these positions.
        """
        positions = torch.arange(start, start + count, device=self.device)[None]
        like = torch.empty(0, dtype=self.model.dtype, device=self.device)
        cos, sin = self.decoder.rotary_emb.forward(like, *self.rotary_arguments(positions))  # type: ignore[union-attr]
        return cos[0], sin[0]

    def rotary_arguments(self, positions: torch.Tensor) -> tuple[Any, ...]:
        """Return the arguments to call the rotary embedding with, for text at `positions`, shape (1, count)."""
        return (positions,)

    @property
    def why_eager(self) -> str:
        """Why decode of this model cannot run as a CUDA graph, whatever the method; "" if it may."""
        if self.eager_because:
            return self.eager_because
        if type(self).call is not AudioLM.call:
            return "its family generates in its own way"
        kind = getattr(self.decoder.rotary_emb, "rope_type", "default")
        if unfit := {*(kind.values() if isinstance(kind, dict) else [kind])} - {*self.rotations}:
            return f"its rotary embedding ({', '.join(sorted(unfit))}) depends on the length of the whole sequence"
        return "" if one_device(self) else "it is not on one CPU or one CUDA GPU"

    @property
    def rotary_kinds(self) -> Sequence[tuple[Any, ...]]:
        """Arguments of the rotary embedding besides the positions: one tuple for each time a decode step calls it."""
        return [()]

    def step(self, token: torch.Tensor, given: Mapping[str, Any]) -> torch.Tensor:
        """Run one decode step of fixed shapes on the newest token of each sample; return raw logits, shape (B, 1,
        vocabulary).

        Parameters
        ----------
        token
            Shape (B, 1).
        given
            Further arguments of the decoder.
        """
        states = self.decoder(inputs_embeds=self.decoder.embed_tokens(token), **given)  # type: ignore[operator]
        logits: torch.Tensor = self.lm_head(states.last_hidden_state)
        return logits

    def stepping(self) -> AbstractContextManager[None]:
        """Return a context manager that changes the model so that replaying a captured decode step needs no Python.

        A family overrides it; by default, it changes nothing.
        """
        return nullcontext()

    def generating(self, inputs: Inputs, max_new_tokens: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return a context manager that changes the model during a `generate` call; by default, it changes nothing."""
        return nullcontext()

    def documented_inputs(self, path: Path, prompt: Prompt) -> Mapping[str, torch.Tensor] | None:  # noqa: ARG002
        """Return the inputs, as {name: tensor}, that the family's own processor makes of one prompt.

        None if the processor cannot be used. `audiomarathon certify` compares these inputs with those from
        :meth:`prepare`.

        Parameters
        ----------
        path
            Checkpoint folder, from which the processor is read.
        """
        return None

    def processed(self, processor: Any, prompt: Prompt, **options: Any) -> dict[str, torch.Tensor]:
        """Return the inputs, as {name: tensor}, that the given processor makes of one prompt, with the processor's chat
        template.
        """
        text = processor.apply_chat_template(conversation(prompt), add_generation_prompt=True, tokenize=False)
        return dict(processor(text=text, audio=list(prompt.clips), return_tensors="pt", **options))

    @classmethod
    def check_language(cls, folder: Path, language: str) -> None:
        """Raise ModelError if the model does not know the language of a task's speech; by default, accept any language.

        The check runs before the checkpoint is loaded. The message lists the languages that the model knows.
        """

    @classmethod
    def longest_reply(cls, folder: Path) -> int:  # noqa: ARG003
        """Return the most tokens that a reply can have, even if MAX_NEW_TOKENS is larger; 0 if there is no limit."""
        return 0

    def transcript(self, tokens: Sequence[int]) -> str | None:  # noqa: ARG002
        """Return the transcript inside a reply; None if the family does not document how to extract it."""
        return None

    def without_adapter(self) -> AbstractContextManager[None] | None:
        """Return a context manager that switches the family's adapter off, for `certify`; None if it has no adapter."""
        return None

    def generate(
        self,
        inputs: Inputs,
        applied: AbstractContextManager[Trace],
        *,
        max_new_tokens: int,
        ignore_end: bool = False,
        keep_logits: bool = False,
        keep_entries: bool = False,
        static: bool = False,
        chunked: bool = False,
    ) -> Generation:
        """Generate replies greedily for a batch, in one timed pass.

        Prefill ends when the first token's logits exist; decode is the rest.

        Parameters
        ----------
        applied
            Context manager in which a method is applied. It yields the method's trace; see
            :meth:`audiomarathon.compression.method.Method.generate`.
        ignore_end
            Whether to continue after an end token, up to `max_new_tokens` (for the forced decode run).
        keep_logits
            Whether to return every step's raw logits, shape (steps, B, vocabulary), on the CPU.
        keep_entries
            Whether to return which KV-cache entries a press kept.
        static
            Whether the method allows decode as a graph. It then runs so if :attr:`decode` is `graph`, the model
            supports it (:attr:`why_eager`), `max_new_tokens` is at least 4, and the decoder has no hooks.
        chunked
            Whether the method works when prefill runs in chunks.

        Raises
        ------
        ModelError
            :attr:`prefill_chunk` is set, but the model or the method needs the whole prompt.
        """
        why = self.whole_because or ("" if chunked else "the method does not say that it works so")
        if self.prefill_chunk and why:
            raise ModelError(f"PREFILL_CHUNK={self.prefill_chunk}: {why}; allowed: 0")
        static = static and self.decode == GRAPH and max_new_tokens >= FEWEST and not self.why_eager
        if static and (where := hooked(self.decoder)):
            warn(f"DECODE=graph: {where} has a hook, which a graph would leave out, so decode stays eager")
            static = False
        config = GenerationConfig(
            do_sample=False,
            num_beams=1,
            max_new_tokens=1 if static else max_new_tokens,
            eos_token_id=None if ignore_end else list(self.end_tokens),
            pad_token_id=self.tokenizer.pad_token_id,
            use_cache=True,
            return_dict_in_generate=True,
            output_logits=keep_logits,
        )
        timer = StageTimer(self.clock)
        cache, positions, logits = CacheProbe(), PositionProbe(), list[torch.Tensor]()
        watch = TokenWatch(timer.mark_first_token, cache.read)
        with ExitStack() as stack, torch.inference_mode():
            if self.prefill_chunk:
                stack.enter_context(attending_in_chunks(self.attn_implementation))
            trace = stack.enter_context(applied)
            inputs = trace.inputs or inputs
            trace.kept_entries = [] if keep_entries else None
            stack.enter_context(_last_position_only(self.lm_head))
            stack.enter_context(cache.watching(self.decoder))
            if static:
                stack.enter_context(positions.watching(self.decoder.rotary_emb))  # type: ignore[arg-type]
            stack.enter_context(timer.watching(self.audio_tower))
            stack.enter_context(self.generating(inputs, max_new_tokens))
            stack.enter_context(attention_kernels(self.sdpa_backends))
            if self.prefill_chunk:
                stack.enter_context(prefill_in_chunks(self, inputs, trace, self.prefill_chunk))
            timer.start()
            new, output = self.call(inputs, config, LogitsProcessorList([watch]))
            logits += output.logits if keep_logits else ()
            if static:
                done = decode(
                    self,
                    inputs,
                    trace,
                    output.past_key_values,
                    positions.last,
                    new[:, 0],
                    steps=max_new_tokens - 1,
                    ends=() if ignore_end else self.end_tokens,
                    keep_logits=keep_logits,
                )
                timer.stop(done.end, done.setup if done.captured else None)
                new = torch.cat([new, done.tokens.T], dim=1)
                watch.add(done.highest)
                logits += done.logits
            else:
                timer.stop()
        rows = tuple(self._reply(row, ignore_end) for row in new.tolist())
        for row, reply in enumerate(rows):
            if step := watch.first_not_finite(row, reply.new_tokens):
                raise LogitsError(
                    f"the logits of token {step} are NaN or infinite, so the reply is meaningless. float16 may "
                    "overflow: try DTYPE=bfloat16 or float32. Otherwise the weights or the method are at fault"
                )
        return Generation(
            replies=self.joined(inputs, rows),
            stages=timer.stages(trace.asides),
            kept_audio_tokens=trace.kept_audio_tokens,
            kv_lengths=cache.lengths,
            expected_lengths=trace.expected_lengths,
            kv_bytes=cache.bytes,
            peak_memory_bytes=timer.peak_memory_bytes(),
            encoder_peak_memory_bytes=timer.encoder_peak_memory_bytes(),
            scoring=sum(self.clock.seconds(start, end) for start, end in trace.spans),
            kept_positions=trace.kept_positions,
            merges=trace.merges,
            logits=self.by_sample(inputs, torch.stack(logits).cpu()) if keep_logits else None,
            kept_entries=None if trace.kept_entries is None else tuple(kept.cpu() for kept in trace.kept_entries),
            kept_steps=trace.kept_steps,
            redundancy=trace.redundancy,
            kept_shares=trace.kept_shares,
        )

    def call(
        self, inputs: Inputs, config: GenerationConfig, processors: LogitsProcessorList
    ) -> tuple[torch.Tensor, Any]:
        """Call the model's `generate`; return (new tokens of shape (rows, steps), all that `generate` returned)."""
        output = self.model.generate(**inputs.tensors, generation_config=config, logits_processor=processors)
        return output.sequences[:, inputs.audio_mask.shape[1] :], output

    def joined(self, inputs: Inputs, rows: tuple[Reply, ...]) -> tuple[Reply, ...]:  # noqa: ARG002
        """Join the replies of a batch's rows into one reply per sample; by default, a sample is one row."""
        return rows

    def by_sample(self, inputs: Inputs, logits: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Turn logits of shape (steps, rows, vocabulary) into (steps, B samples, vocabulary); by default unchanged."""
        return logits

    def allowed(self, logits: torch.Tensor) -> torch.Tensor:
        """Return a reply's raw logits, shape (steps, vocabulary), with −∞ for tokens that the family never generates.

        By default, nothing changes.
        """
        return logits

    def plainly(self, tensors: Mapping[str, torch.Tensor], steps: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Generate greedily for one sample with the model's documented code: no hooks, timer, method or penalties.

        `audiomarathon certify` compares the result with that of a normal run.

        Returns
        -------
        tuple of torch.Tensor
            The new tokens, shape (steps,), and their raw logits, shape (steps, vocabulary).
        """
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=steps,
            eos_token_id=None,
            pad_token_id=self.tokenizer.pad_token_id,
            return_dict_in_generate=True,
            output_logits=True,
        )
        done = self.model.generate(**tensors, generation_config=config)
        return done.sequences[0, tensors["input_ids"].shape[1] :], torch.stack(done.logits)[:, 0]

    def _reply(self, row: list[int], ignore_end: bool) -> Reply:
        end = next((i for i, token in enumerate(row) if token in self.end_tokens), None) if not ignore_end else None
        tokens = row if end is None else row[: end + 1]
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        transcript = self.transcript(tokens)
        finish = "length" if end is None else "stop"
        return Reply(text, finish, len(tokens), tuple(tokens), None if transcript == text else transcript)

    def _end_tokens(self) -> tuple[int, ...]:
        """Return the ids of the tokens that end a reply, as the generation config and the tokenizer list them."""
        listed = self.model.generation_config.eos_token_id
        ends = {*(listed if isinstance(listed, list) else [listed]), self.tokenizer.eos_token_id} - {None}
        if not ends:
            raise ModelError("the checkpoint has no end-of-reply token, so replies would never stop")
        return tuple(sorted(ends))


def _last_position_only(lm_head: nn.Module) -> RemovableHandle:
    """Hook the LM head so that prefill computes logits only for the prompt's last position; return the hook's handle.

    Some families compute logits for every prompt position (2.3 GB at 300 s on a 3B model). Then pruning would seem to
    save this needless work. Only the last position is used, so replies do not change.
    """

    def keep_last(_module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        handle.remove()  # decode steps have one position and need no hook
        return (args[0][:, -1:], *args[1:])

    handle = lm_head.register_forward_pre_hook(keep_last)
    return handle

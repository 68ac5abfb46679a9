"""What every model family must do, on tiny random checkpoints in the hub's layout (families.py).

Dropping, presses and batches are tested on every family in test_token_pruning.py and test_presses.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import noise
from families import Family
from tiny_base import changed_copy

from audiomarathon.compression.method import Base
from audiomarathon.compression.pruners.random import Random
from audiomarathon.errors import ModelError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.layers import call_of
from audiomarathon.models.loading import pretrained
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.registry import get_model

LONG = pytest.mark.long
#: Length of the shortest clip that a family accepts, and of a clip that it refuses, in samples.
SHORTEST = {
    "qwen2.5-omni-7b": (480, 160), "phi4mm": (640, 320), "voxtral": (1, 0), "aero-1": (962, 960),
    "qwen2-audio": (962, 960), "qwen3-omni": (201, 200), "audio-flamingo-3": (321, 320), "gemma3n": (1, 0),
}  # fmt: skip
QUESTION = "Which is it?\n\nA. cat\nB. dog"


@pytest.fixture(scope="module")
def two_windows(family_lm: AudioLM) -> tuple[list[int], torch.Tensor]:
    return two_windows_of(family_lm)


def two_windows_of(lm: AudioLM, silenced: int = 0) -> tuple[list[int], torch.Tensor]:
    """Hear two short clips, and in another prompt one of two windows, whose end may be silent.

    Returns a 1 for each call of the audio tower, and the logits of two tokens.
    """
    calls: list[int] = []
    clip = noise(31.0)
    clip[len(clip) - silenced :] = 0
    batch = lm.prepare([Prompt("?", (noise(1.0), noise(2.0))), Prompt("?", (clip,))])
    with lm.audio_tower.register_forward_pre_hook(lambda *_: calls.append(1)):
        logits = Base().generate(lm, batch, max_new_tokens=2, ignore_end=True, keep_logits=True).logits
    return calls, logits


class TestPrompt:
    @pytest.mark.parametrize(
        "seconds",
        [(1.3, 30.2), *(pytest.param(lengths, marks=LONG) for lengths in ((29.9,), (2.2, 33.0), (300.0,)))],
        ids=str,
    )
    def test_token_ids_equal_those_of_the_documented_processor(
        self,
        family: Family,
        family_lm: AudioLM,
        family_checkpoint: Callable[[str], Path],
        seconds: tuple[float, ...],
    ) -> None:
        prompt = Prompt(QUESTION, tuple(noise(length, seed) for seed, length in enumerate(seconds)))
        inputs, _model = family.documented(family_checkpoint(family.key), prompt)
        assert family_lm.prepare([prompt]).tensors["input_ids"].tolist() == inputs["input_ids"].tolist()

    def test_token_ids_in_a_batch_equal_those_of_each_prompt_alone(self, family_lm: AudioLM) -> None:
        prompts = [Prompt(QUESTION, (noise(seconds),)) for seconds in (31.0, 1.0, 4.0)]
        batch = family_lm.prepare(prompts)
        for prompt, row, mask in zip(prompts, batch.tensors["input_ids"], batch.attention_mask, strict=True):
            assert row[mask.bool()].tolist() == family_lm.prepare([prompt]).tensors["input_ids"][0].tolist()

    @pytest.mark.parametrize(
        "seconds", [1, 31, *(pytest.param(length, marks=LONG) for length in (29.99, 30, 30.01, 90, 300, 600))]
    )
    def test_audio_token_count_follows_the_formula_of_the_model_family(
        self, family: Family, family_lm: AudioLM, seconds: float
    ) -> None:
        clip = noise(seconds)
        inputs = family_lm.prepare([Prompt(QUESTION, (clip,))])
        assert inputs.audio_tokens == [family.audio_tokens(len(clip))]
        assert torch.equal(inputs.audio_mask, inputs.tensors["input_ids"] == family_lm.audio_token)

    def test_a_clip_too_short_for_one_token_is_refused(self, family: Family, family_lm: AudioLM) -> None:
        shortest, refused = SHORTEST[family.key]
        assert family_lm.prepare([Prompt("?", (noise(1.0)[:shortest],))]).audio_tokens[0] > 0
        with pytest.raises(ModelError, match=r"too short|a clip is empty"):
            family_lm.prepare([Prompt("?", (noise(1.0)[:refused],))])

    def test_control_tokens_in_a_question_are_refused_or_read_as_plain_text(self, family_lm: AudioLM) -> None:
        """The question is refused, unless the tokenizer never reads text as a control token."""

        def read(question: str) -> torch.Tensor | str:
            try:
                return family_lm.prepare([Prompt(question, (noise(1.0),))]).tensors["input_ids"]
            except ModelError as error:
                return str(error)

        innocent = read("What is ?")
        for special in family_lm.tokenizer.all_special_tokens:
            token, got = family_lm.tokenizer.convert_tokens_to_ids(special), read(f"What is {special}?")
            if isinstance(got, str):
                assert "reads as a control token" in got
            else:
                assert (got == token).sum() == (innocent == token).sum()

    def test_audio_tokens_minus_window_padding_are_proportional_to_clip_length(self, family_lm: AudioLM) -> None:
        inputs = family_lm.prepare([Prompt("?", (noise(31.0),)), Prompt("?", (noise(4.0),))])
        padding = inputs.window_padding or (0, 0)
        assert all(0 <= pad < audio for pad, audio in zip(padding, inputs.audio_tokens, strict=True))
        heard = [audio - pad for pad, audio in zip(padding, inputs.audio_tokens, strict=True)]
        assert heard[1] / heard[0] == pytest.approx(4 / 31, abs=0.01)


class TestReplies:
    @pytest.mark.parametrize("seconds", [3.0, pytest.param(31.0, marks=LONG)])
    def test_replies_equal_those_of_the_documented_generate_call(
        self, family: Family, family_lm: AudioLM, family_checkpoint: Callable[[str], Path], seconds: float
    ) -> None:
        """Our loop adds hooks and runs the LM head on one position. Replies still equal the documented usage."""
        prompt = Prompt(QUESTION, (noise(seconds),))
        inputs, model = family.documented(family_checkpoint(family.key), prompt)
        with torch.no_grad():
            plain = model.generate(**inputs, do_sample=False, max_new_tokens=6, eos_token_id=None, pad_token_id=1)
        ours = Base().generate(family_lm, family_lm.prepare([prompt]), max_new_tokens=6, ignore_end=True)
        assert list(ours.replies[0].token_ids) == plain[0, inputs["input_ids"].shape[1] :].tolist()

    def test_all_windows_of_a_batch_pass_the_audio_tower_in_one_call(
        self, family_lm: AudioLM, two_windows: tuple[list[int], torch.Tensor]
    ) -> None:
        assert two_windows[0] == [1]

    def test_logits_depend_on_the_end_of_the_audio(
        self, family_lm: AudioLM, two_windows: tuple[list[int], torch.Tensor]
    ) -> None:
        """Silence in place of the end of a clip of two windows gives other logits, and only to its own prompt."""
        _calls, logits = two_windows
        change = (logits - two_windows_of(family_lm, silenced=8000)[1]).abs().amax(-1)[0]
        assert change[1] > 1e-4 > change[0]

    def test_only_the_last_prompt_position_is_passed_to_the_lm_head(
        self, family_lm: AudioLM, prompts: list[Prompt]
    ) -> None:
        positions: list[int] = []
        with family_lm.lm_head.register_forward_hook(lambda _m, args, _output: positions.append(args[0].shape[1])):
            generation = Base().generate(family_lm, family_lm.prepare(prompts[2:]), max_new_tokens=2, ignore_end=True)
        assert positions == [1, 1]
        assert min(generation.stages.encoder, generation.stages.llm_prefill, generation.stages.decode) > 0


def test_rotary_embeddings_computed_in_advance_equal_those_that_decode_uses(
    family_lm: AudioLM, prompts: list[Prompt]
) -> None:
    """Presses get rotary embeddings of positions after the prompt from `rotation`."""
    layer = family_lm.decoder_layers[0]
    signature, seen = inspect.signature(layer.forward), []
    handle = layer.register_forward_pre_hook(
        lambda _m, args, kwargs: seen.append(call_of(signature, args, kwargs)["position_embeddings"]), with_kwargs=True
    )
    inputs = family_lm.prepare(prompts[2:])
    Base().generate(family_lm, inputs, max_new_tokens=4, ignore_end=True)
    handle.remove()
    for ours, theirs in zip(family_lm.rotation(inputs.prompt_tokens[0], 3), zip(*seen[1:], strict=True), strict=True):
        torch.testing.assert_close(ours, torch.cat(theirs, 1)[0])


class TestLoading:
    def test_device_map_auto_gives_the_logits_of_loading_without_it(
        self, family: Family, family_lm: AudioLM, family_checkpoint: Callable[[str], Path], prompts: list[Prompt]
    ) -> None:
        spread = get_model(family.key).load_family()
        lm = spread.load(
            family_checkpoint(family.key), device="cuda", dtype="float32", attn_implementation="sdpa", device_map="auto"
        )
        logits, other = (
            Random(0.5).generate(lm, lm.prepare(prompts[2:]), max_new_tokens=2, keep_logits=True).logits
            for lm in (family_lm, lm)
        )
        assert torch.equal(logits, other)

    @pytest.mark.parametrize(
        ("renamed", "said"), [("", r"missing keys.*layers\.1\.self_attn\.o_proj"), ("extra", "unexpected keys.*extra")]
    )
    def test_a_checkpoint_with_missing_or_extra_tensors_is_refused(
        self, family: Family, family_checkpoint: Callable[[str], Path], tmp_path: Path, renamed: str, said: str
    ) -> None:
        def change(weights: dict[str, torch.Tensor]) -> None:
            name = next(name for name in weights if name.endswith("layers.1.self_attn.o_proj.weight"))
            if renamed:
                weights[name.replace("o_proj", renamed)] = torch.ones(2)
            else:
                del weights[name]

        with pytest.raises(ModelError, match=said):
            family.load(changed_copy(family_checkpoint(family.key), tmp_path, weights=change))


@pytest.mark.parametrize(
    ("places", "what"),
    [({"model": 0, "lm_head": "cpu"}, "1 of 2 parts on cpu"), ({"a": 1, "b": "disk", "c": "cpu"}, "cpu and disk")],
    ids=["cpu", "disk"],
)
def test_device_map_auto_is_refused_if_the_model_exceeds_gpu_memory(places: dict[str, int | str], what: str) -> None:
    """accelerate would copy the other weights to the GPU at every step."""
    native = SimpleNamespace(from_pretrained=lambda *_, **__: (SimpleNamespace(hf_device_map=places), {}))
    with pytest.raises(ModelError, match=f"memory.*DEVICE_MAP=auto .*{what}"):
        pretrained(native, Path("/m"), dtype="bfloat16", attn_implementation="sdpa", device_map="auto")

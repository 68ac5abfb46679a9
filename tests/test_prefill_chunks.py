"""Prefill in chunks (`PREFILL_CHUNK`) gives the tokens, caches and replies of whole prefill, in less memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import task_folders
import tiny_gemma3n
import torch
from conftest import HOME, KINDS, noise, skip_unless_carried
from families import FAMILIES
from tiny_base import read_json
from transformers import AutoModel, DynamicCache, LlamaConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts" / "measure"))

from efficiency.chunks import LiveBytes

from audiomarathon.benchmarks import get_task
from audiomarathon.compression.attention import Attention, attention_watched
from audiomarathon.compression.external import Foreign
from audiomarathon.compression.method import Base, Method
from audiomarathon.compression.pruners.frame import Frame
from audiomarathon.compression.registry import all_methods, get_method
from audiomarathon.compression.token_pruner import Evidence
from audiomarathon.costs.config_facts import published_config
from audiomarathon.engine.encoder_cache import encoder_shared
from audiomarathon.engine.run import run
from audiomarathon.engine.sweep_plan import plan_sweep
from audiomarathon.errors import MethodError, ModelError, RecordError, SettingsError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.generation import Generation
from audiomarathon.models.loading import patched_attribute
from audiomarathon.models.prefill_chunks import NOW, Part, prefill_in_chunks
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.registry import get_model
from audiomarathon.models.trace import Trace
from audiomarathon.settings import EAGER, GRAPH, RunSettings

AT_LAYER = [get_method(method.key, 0.6, 2) for method in all_methods() if not isinstance(method, Base)]
JOINED = [get_method("frame:0.5+snapkv:0.4"), get_method("random:0.5+ada_snapkv:0.5", at="input")]
AT_INPUT = [get_method(name, 0.6, at="input") for name in ("frame", "merge_adjacent")]
METHODS = [Base(), *AT_LAYER, *AT_INPUT, *JOINED]
SIZES = 1, 7, 5000


def prompts(count: int) -> list[Prompt]:
    return [Prompt("Which is it?", (noise(0.6 + 0.3 * number, number),), seed=number) for number in range(count)]


def crossed() -> list[Any]:
    """Cross every family with every method, size and batch. `make test` takes a method of each kind at one size.

    On families other than the first, it takes base and one other method. Families with 30 s windows have long prompts.
    """
    pairs = []
    for family, key in enumerate(FAMILIES):
        long = key in ("voxtral", "gemma3n")
        usual = [method for method in METHODS if method.key in KINDS and getattr(method, "at", "layer") == "layer"]
        chosen = [usual[0], usual[1 + (family + 1) % 4]] if family else usual
        for method, size, batch in product(METHODS, (*SIZES, *[50] * long), (1, 3)):
            turn = METHODS.index(method)
            fast = method in chosen and size == (50 if long else 7 if family else SIZES[turn % 3])
            marks = () if fast and batch == (1 if long or turn % 2 else 3) else pytest.mark.long
            pairs.append(
                pytest.param(key, method, size, batch, marks=marks, id=f"{key}, {method.label}, {size}, {batch}")
            )
    return pairs


def reply(lm: AudioLM, given: Sequence[Prompt], method: Method, size: int, how: str = EAGER) -> Generation:
    with patched_attribute(lm, "decode", how), patched_attribute(lm, "prefill_chunk", size):
        return method.generate(lm, lm.prepare(given), max_new_tokens=4, ignore_end=True, keep_logits=True)


def assert_same(lm: AudioLM, given: Sequence[Prompt], method: Method, size: int, how: str = EAGER) -> None:
    with encoder_shared(lm):
        whole, parts = (reply(lm, given, method, chunk, how) for chunk in (0, size))
    assert parts.kv_lengths == whole.kv_lengths
    assert parts.kv_bytes == whole.kv_bytes
    assert parts.kept_audio_tokens == whole.kept_audio_tokens
    assert [positions.tolist() for positions in parts.kept_positions or ()] == [
        positions.tolist() for positions in whole.kept_positions or ()
    ]
    torch.testing.assert_close(parts.logits, whole.logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("key", "method", "size", "batch"), crossed())
def test_chunked_prefill_gives_the_replies_of_unchunked_prefill(
    loaded: Any, key: str, method: Method, size: int, batch: int
) -> None:
    lm = loaded(key, "sdpa")
    skip_unless_carried(lm, method)
    assert_same(lm, prompts(batch), method, size)


@pytest.mark.parametrize("key", [HOME, pytest.param("gemma3n", marks=pytest.mark.long)])
@pytest.mark.parametrize("method", [Base(), get_method("fast_v", 0.6), get_method("dart", 0.6)], ids=lambda m: m.key)
def test_chunked_prefill_equals_unchunked_prefill_under_eager_attention(loaded: Any, key: str, method: Method) -> None:
    lm = loaded(key, "eager")
    if key == "gemma3n" and method.key == "fast_v":
        method = replace(method, layer=1)
    skip_unless_carried(lm, method)
    for batch in (1, 2):  # alone, no prompt is padded
        assert_same(lm, prompts(batch), method, 7)


@pytest.fixture(scope="module")
def windowed(family_checkpoint: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gemma's checkpoint with a window that is far shorter than the prompt, and shared keys."""
    return tiny_gemma3n.with_window(family_checkpoint("gemma3n"), tmp_path_factory.mktemp("windows"), 20)


@pytest.mark.parametrize("attention", ["sdpa", pytest.param("eager", marks=pytest.mark.long)])
def test_sliding_windows_stay_correct_under_chunked_prefill_with_removed_tokens(windowed: Path, attention: str) -> None:
    lm = FAMILIES["gemma3n"].load(windowed, attention)
    lm.model.double()  # so that rounding decides no near-tie
    for method, size, batch, how in (
        (Base(), 50, 1, GRAPH),
        (get_method("frame:0.9", layer=2), 13, 1, EAGER),
        (get_method("merge_adjacent:0.6", layer=1), 50, 2, EAGER),
    ):
        assert_same(lm, prompts(batch), method, size, how)


class Received(Frame):
    """A pruner that ranks by attention without declaring it."""

    scored = True

    def select(self, evidence: Evidence) -> torch.Tensor:
        return evidence.seen.received(evidence.positions).topk(evidence.n_keep).indices


def test_methods_that_rank_tokens_by_attention_in_sliding_window_layers_refuse_chunked_prefill(windowed: Path) -> None:
    lm = FAMILIES["gemma3n"].load(windowed)
    with pytest.raises(MethodError, match=r"ranks_by_attention = True.*PREFILL_CHUNK=0"):
        reply(lm, prompts(2), Received(0.5, layer=1), 13)


@pytest.mark.parametrize("name", ["base", "frame:0.5", "snapkv:0.5"])
def test_graph_decode_after_chunked_prefill_gives_the_replies_of_unchunked_prefill(lm: AudioLM, name: str) -> None:
    assert_same(lm, prompts(1), get_method(name), 9, GRAPH)


def test_ratio_zero_gives_the_replies_of_base_under_chunked_prefill(lm: AudioLM) -> None:
    done = [reply(lm, prompts(1), method, 7) for method in (Base(), Frame(0.0))]
    assert torch.equal(*(generation.logits for generation in done))


def test_no_decoder_layer_gets_more_tokens_at_once_than_a_chunk(lm: AudioLM) -> None:
    """The last norm gets chunks too: its float32 copies of a whole prompt would be larger than the states."""
    widths: list[int] = []
    parts = [layer.mlp for layer in lm.decoder_layers]
    handles = [part.register_forward_hook(lambda _m, args, _out: widths.append(args[0].shape[-2])) for part in parts]
    reply(lm, prompts(1), Base(), 7)
    for handle in handles:
        handle.remove()
    assert max(widths) == 7
    assert NOW.get() is None
    assert not ALL_ATTENTION_FUNCTIONS._local_mapping


def test_chunked_prefill_runs_the_audio_tower_only_once(lm: AudioLM) -> None:
    runs: list[int] = []
    with lm.audio_tower.register_forward_hook(lambda *_args: runs.append(1)):
        stages = reply(lm, prompts(1), Base(), 7).stages
    assert len(runs) == 1
    assert min(stages.encoder, stages.llm_prefill, stages.decode) > 0


def test_the_attention_mask_of_a_captured_layer_is_on_the_device_of_the_layer() -> None:
    """With a device map, masks are made on the first GPU. Here `meta` represents the second GPU."""
    seen: list[Attention] = []
    module = torch.nn.Module()
    query, keys = torch.zeros(1, 2, 3, 4, device="meta"), torch.zeros(1, 2, 6, 4, device="meta")
    with attention_watched("sdpa", {module: seen.append}):
        for last, end in ((False, 3), (True, 6)):
            token = NOW.set(Part(last, torch.ones(1, 6, dtype=torch.bool), 0))
            key = keys[:, :, :end]
            ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, key, torch.ones(1, 1, 3, end, device="meta").bool())
            NOW.reset(token)
    assert seen[0].mask is not None
    assert seen[0].mask.device == seen[0].query.device


class Hooked(Frame):
    """A pruner that may also change the model in its own way."""

    key = "hooked"

    def applied_to(self, lm: AudioLM, inputs: Any) -> Any:
        return super().applied_to(lm, inputs)


class TestRefused:
    @pytest.mark.parametrize("method", [Hooked(0.5), Foreign(name="theirs")], ids=["hooked", "foreign"])
    def test_a_run_with_a_method_without_chunked_prefill_is_refused_before_loading(
        self, method: Method, tiny_checkpoint: Path, tmp_path: Path, no_env: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task_folders.build_tau(tmp_path / "data" / "TAU")
        monkeypatch.setattr(AudioLM, "load", classmethod(lambda *_args, **_more: pytest.fail("loaded")))
        settings = read(tmp_path, tiny_checkpoint, prefill_chunk=8)
        with pytest.raises(SettingsError, match=r"PREFILL_CHUNK=8: .*chunked_prefill = True.*allowed: 0"):
            list(run(["tau"], HOME, settings, [method], progress=False))

    def test_a_sweep_plan_with_a_method_without_chunked_prefill_is_refused(
        self, tiny_checkpoint: Path, tmp_path: Path, no_env: Any
    ) -> None:
        settings = read(tmp_path, tiny_checkpoint, prefill_chunk=8)
        with pytest.raises(SettingsError, match=r"PREFILL_CHUNK=8: .*allowed: 0"):
            plan_sweep([get_task("tau")], get_model(HOME), settings, [Hooked(0.5)])

    def test_generate_with_a_method_without_chunked_prefill_is_refused(self, lm: AudioLM) -> None:
        with pytest.raises(ModelError, match="PREFILL_CHUNK=7"):
            reply(lm, prompts(1), Hooked(0.5), 7)

    def test_chunked_prefill_of_whisper_is_refused_since_its_prompt_has_few_tokens(self) -> None:
        assert "cross-attention" in get_model("whisper-base").load_family().whole_because

    @pytest.mark.parametrize("value", ["-1", "1.5", "all"])
    def test_a_chunk_setting_that_is_not_a_number_of_tokens_is_refused(self, value: str) -> None:
        with pytest.raises(SettingsError, match="PREFILL_CHUNK"):
            RunSettings.read({"PREFILL_CHUNK": value})


def read(tmp_path: Path, checkpoint: Path, **more: Any) -> RunSettings:
    flags = {"data": str(tmp_path / "data"), "model_path": str(checkpoint), "results": tmp_path, "limit": 2}
    return RunSettings.read({}, **flags, max_new_tokens=2, timing=False, **more)


def test_the_identity_of_a_run_holds_the_prefill_chunk_size_only_if_prefill_is_chunked(
    tiny_checkpoint: Path, tmp_path: Path, no_env: Any
) -> None:
    """A folder of an earlier version has no chunk size, so only a run without chunks resumes it."""
    task_folders.build_tau(tmp_path / "data" / "TAU")
    (result,) = run(["tau"], HOME, read(tmp_path, tiny_checkpoint), progress=False)
    assert "prefill_chunk" not in read_json(result.folder / "run.json")["identity"]
    with pytest.raises(RecordError, match="prefill_chunk"):
        list(run(["tau"], HOME, read(tmp_path, tiny_checkpoint, prefill_chunk=64), progress=False))
    settings = read(tmp_path, tiny_checkpoint, prefill_chunk=64)
    (result,) = run(["tau"], HOME, replace(settings, results=tmp_path / "other"), progress=False)
    facts = read_json(result.folder / "run.json")
    assert facts["identity"]["prefill_chunk"] == facts["settings"]["prefill_chunk"] == 64


# Peak memory, counted at the published shapes on the meta device, which computes nothing.

CHUNK = 4096
#: Families whose decoder is built with two layers; the caches of the others are added. Not Gemma, whose layers share
#: keys, and not Qwen3-Omni, whose default sizes in transformers do not fit together.
COUNTED = ["qwen2.5-omni-7b", "voxtral", "aero-1", "phi4mm", "qwen2-audio", "audio-flamingo-3"]


def decoder_of(key: str, layers: int) -> tuple[Any, Any, int]:
    """Return a family's LLM with `layers` layers on the meta device, its config, and its full number of layers."""
    spec = get_model(key)
    family, folder = spec.load_family(), published_config(spec.checkpoint)
    whole = family.read_config(folder) if folder else family.architecture.config_class()
    config = whole.get_text_config(decoder=True)
    all_layers, config._attn_implementation = config.num_hidden_layers, "counted"
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    if key == "phi4mm":
        same = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
        most = {"max_position_embeddings": config.max_position_embeddings, "num_hidden_layers": layers}
        config = LlamaConfig(**{name: getattr(config, name) for name in same}, **most)  # without its towers
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        if type(config) in AutoModel._model_mapping:
            return AutoModel.from_config(config, dtype=torch.bfloat16), config, all_layers
        whole = getattr(whole, "thinker_config", whole)
        whole._attn_implementation = "sdpa"
        model = family.architecture._from_config(whole, dtype=torch.bfloat16)
        return model.model.language_model, config, all_layers


def without_scores(_module: Any, query: torch.Tensor, key: torch.Tensor, _value: Any, *_rest: Any, **_more: Any) -> Any:
    """Allocate only the output, like a fused attention kernel. A CPU's math kernel would also allocate all scores."""
    return torch.empty_like(query).transpose(1, 2).contiguous(), None


def counted(decoder: Any, config: Any, tokens: int, size: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Return the peak bytes alive in a prefill of `tokens` tokens, with states and cache, and the cache's bytes."""
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, "sdpa", without_scores)
    inputs = SimpleNamespace(prompt_tokens=[tokens], audio_mask=torch.zeros(1, tokens, dtype=torch.bool))
    fake = SimpleNamespace(decoder=decoder, decoder_layers=decoder.layers, attn_implementation="sdpa")
    cache, places = DynamicCache(config=config), torch.arange(tokens, device="meta")[None]
    with (
        torch.inference_mode(),
        prefill_in_chunks(fake, inputs, Trace((tokens,)), size) if size else nullcontext(),  # type: ignore[arg-type]
        LiveBytes([*decoder.parameters(), *decoder.buffers()]) as live,
    ):
        states = torch.empty(1, tokens, config.hidden_size, dtype=torch.bfloat16, device="meta")
        decoder(inputs_embeds=states, past_key_values=cache, position_ids=places, use_cache=True)
    return live.peak, sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


@pytest.mark.parametrize(
    "key", [COUNTED[0], *(pytest.param(model_key, marks=pytest.mark.long) for model_key in COUNTED[1:])]
)
def test_peak_memory_of_chunked_prefill_is_about_weights_plus_kv_cache_plus_one_chunk(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each family's longest prompt, it is at most 1.2 times that sum. Whole prefill takes more."""
    decoder, config, layers = decoder_of(key, 2)
    spec = get_model(key)
    most = config.max_position_embeddings
    tokens = min(most, round(spec.most_seconds * spec.tokens_per_second)) if spec.most_seconds else most
    weights = sum(parameter.nbytes for layer in decoder.layers for parameter in layer.parameters()) / 2 * layers
    weights += 2 * 2 * config.vocab_size * config.hidden_size  # embeddings, and the LM head
    (whole, cache), (parts, same) = (counted(decoder, config, tokens, size, monkeypatch) for size in (0, CHUNK))
    chunk, of_chunk = counted(decoder, config, CHUNK, 0, monkeypatch)
    assert cache == same
    others = cache / 2 * (layers - 2)
    bound = weights + cache / 2 * layers + chunk - of_chunk
    assert weights + others + parts <= 1.2 * bound
    assert whole > parts

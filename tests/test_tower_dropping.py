"""Dropping inside the audio tower gives the results of a tower that is written layer by layer, without hooks."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import cycle, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tiny_whisper
import torch
from conftest import noise
from families import FAMILIES
from plain_layers import greedy_logits

from audiomarathon.compression.method import Base, Method, kept_count
from audiomarathon.compression.registry import get_method
from audiomarathon.compression.token_pruner import Evidence
from audiomarathon.engine.answer import generations
from audiomarathon.engine.setup import find_setup
from audiomarathon.errors import MethodError, SettingsError
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.loading import patched_attribute
from audiomarathon.models.merge import Merge
from audiomarathon.models.prompt import Inputs, Prompt
from audiomarathon.models.tower_states import TowerStates
from audiomarathon.models.whisper import Whisper
from audiomarathon.settings import RunSettings

DEPTH, STEPS = 4, 3
KEYS = ("whisper", "qwen2-audio", "aero-1", "voxtral", "audio-flamingo-3", "qwen2.5-omni-7b", "qwen3-omni")
METHODS = ("random", "frame", "merge_adjacent", "merge_frame", "a_tome_like")
PACKED = ("qwen2.5-omni-7b", "qwen3-omni")
#: Seconds of each sample's clips: a ragged end, one window, several samples, two clips, several windows.
SHORT = ((3.07,),)
BATCHES = [SHORT, ((30.0,),), ((5.01,), (0.3,)), ((2.0, 7.33), (4.1,)), ((33.3,), (1.2,))]


class Case(NamedTuple):
    key: str
    lm: AudioLM


@functools.cache
def deep(key: str, folder: Path) -> AudioLM:
    """Load a tiny model, and give its tower four layers."""
    if key == "whisper":
        lm: AudioLM = Whisper.load(folder, device="cpu", dtype="float32", attn_implementation="sdpa")
    else:
        lm = FAMILIES[key].load(folder)
    layers: Any = lm.audio_tower.layers
    generator = torch.Generator().manual_seed(0)
    while len(layers) < DEPTH:
        layer = copy.deepcopy(layers[0])
        layer.self_attn.config = layers[0].self_attn.config  # the attention of all layers is switched together
        for tensor in layer.parameters():
            tensor.data += 0.1 * torch.randn(tensor.shape, generator=generator)
        layers.append(layer)
    return lm


@pytest.fixture(scope="session")
def case_of(
    family_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Case]:
    whisper = functools.cache(lambda: tiny_whisper.checkpoint(tmp_path_factory.mktemp("tower") / "tiny", window=10))
    return lambda key: Case(key, deep(key, whisper() if key == "whisper" else family_checkpoint(key)))


def prompts(batch: Sequence[Sequence[float]]) -> list[Prompt]:
    clips = [
        tuple(noise(length, 10 * row + nth) for nth, length in enumerate(lengths)) for row, lengths in enumerate(batch)
    ]
    return [Prompt("Which?" * (row + 1), sample_clips, seed=7 + 100 * row) for row, sample_clips in enumerate(clips)]


def in_tower(name: str, ratio: float, layer: int | None = 2) -> Method:
    return get_method(name, ratio, at="tower", tower_layer=layer)


def generate(lm: AudioLM, inputs: Inputs, method: Method, steps: int = STEPS) -> tuple[Any, dict[str, torch.Tensor]]:
    """Generate; also return the states that enter the tower's layers, its output, and what enters the LLM."""
    seen: dict[str, torch.Tensor] = {}

    def note(name: str, of: Callable[..., torch.Tensor]) -> Callable[..., None]:
        return lambda *given: seen.__setitem__(name, seen.get(name, of(*given)))

    entering = note("llm", lambda _module, args, kwargs: args[0] if args else kwargs["hidden_states"])
    handles = [
        lm.audio_tower.layers[0].register_forward_pre_hook(note("front", lambda _module, args: args[0])),
        lm.audio_tower.register_forward_hook(note("tower", lambda _module, _args, output: output.last_hidden_state)),
        lm.decoder_layers[0].register_forward_pre_hook(entering, with_kwargs=True),
    ]
    with ExitStack() as stack:
        for handle in handles:
            stack.callback(handle.remove)
        stack.enter_context(watched_choices(method))
        return method.generate(lm, inputs, max_new_tokens=steps, ignore_end=True, keep_logits=True), seen


#: By seed and number of states: the states of a window from which a method last chose.
SHOWN: dict[tuple[int, int], torch.Tensor | None] = {}


@contextmanager
def watched_choices(method: Method) -> Iterator[None]:
    """Store in :data:`SHOWN` the states from which the method chooses."""
    select = getattr(type(method), "select", None)

    def noting(method: Any, evidence: Evidence) -> Any:
        SHOWN[evidence.seed, len(evidence.positions)] = evidence.states
        return select(method, evidence)  # type: ignore[misc]

    SHOWN.clear()
    with patched_attribute(type(method), "select", noting) if select else nullcontext():
        yield


# The tower, layer by layer: one window at a time, with plain matrices and a softmax.


def layer_of(layer: Any, x: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Return a layer's output; `visible` tells which states are keys. Shapes (S, D) and (S,)."""
    attention, heads = layer.self_attn, layer.self_attn.num_heads
    normed = layer.self_attn_layer_norm(x)
    query, key, value = (
        part(normed).view(len(x), heads, -1).transpose(0, 1)
        for part in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    x = x + attention.out_proj((weights @ value).transpose(0, 1).reshape(len(x), -1))
    return x + layer.fc2(layer.activation_fn(layer.fc1(layer.final_layer_norm(x))))


class Window(NamedTuple):
    """A window: its states that enter the tower, padding included, and the family's facts about them."""

    states: torch.Tensor
    tokens: int
    each: int  # states of an audio token
    visible: torch.Tensor
    seed: int
    sample: int


def windows_of(case: Case, batch: list[Prompt], front: torch.Tensor) -> list[Window]:
    """Cut what enters the tower into windows, from the clips' lengths alone."""
    windows: list[Window] = []
    begun = 0
    for sample, prompt in enumerate(batch):
        nth = 0
        for clip in prompt.clips:
            size = {"qwen2.5-omni-7b": 32000, "qwen3-omni": 128000}.get(case.key, 480000)
            lengths = [min(size, len(clip) - start) for start in range(0, len(clip), size)]
            if isinstance(case.lm, Whisper):  # cuts at quiet moments: test_whisper.py
                lengths = [len(window) for window in case.lm.cut(clip)]
            for samples in lengths:
                frames = -(-samples // 160)
                if case.key == "qwen3-omni":
                    tokens = frames // 100 * 13 + (frames % 100 + 7) // 8
                    real, each = tokens, 1
                else:
                    real = (frames - 1) // 2 + 1
                    each = {"whisper": 1, "voxtral": 4}.get(case.key, 2)
                    tokens = 375 if case.key == "voxtral" else real // each
                if case.key in PACKED:
                    states, visible = front[begun : begun + real], torch.ones(real, dtype=torch.bool)
                    begun += real
                else:
                    states = front[len(windows)]
                    visible = torch.ones(len(states), dtype=torch.bool)
                    if case.key not in ("whisper", "voxtral"):
                        visible[real:] = False
                if case.key == "whisper":
                    tokens = -(-samples // 320)
                windows.append(Window(states, tokens, each, visible, prompt.seed + nth, sample))
                nth += 1
    return windows


def stride(total: int, keep: int) -> list[int]:
    return [i * total // keep for i in range(keep)]


def towers_output(case: Case, window: Window, method: Method, layer: int, *, masked: bool = False) -> torch.Tensor:
    """Return a window's states after the tower's last layer; `masked` hides states instead of dropping them."""
    layers: Any = case.lm.audio_tower.layers
    x, visible, schedule = window.states, window.visible, {layer: 1.0}
    if method.key == "a_tome_like" and layer < DEPTH - 1:  # the same fraction in each of the layers left
        each = (1 - method.ratio) ** (1 / (DEPTH - layer))
        schedule = {layer + n: (1 - each ** (n + 1)) / method.ratio for n in range(DEPTH - layer)}
        schedule[DEPTH - 1] = 1.0
    sound, keep = window.each * window.tokens, window.each * kept_count(window.tokens, method.ratio)
    whole = 0 if case.key in PACKED else window.each * kept_count(len(x) // window.each, method.ratio)
    now, stays = sound, torch.ones(len(x), dtype=torch.bool)
    for index, tower_layer in enumerate(layers):
        if share := schedule.get(index):
            then = sound - round(share * (sound - keep))
            wide = len(window.states) - round(share * (len(window.states) - whole))
            rest = [now + place for place in stride(len(x) - now, wide - then)] if whole else []
            places, first = reduced(tower_layer, x[:now], then, method, window.seed)
            if masked:
                x = x.clone()
                x[places] = first
                stays = torch.zeros(len(x), dtype=torch.bool)
                stays[[*places, *rest]] = True
            else:
                x, visible = torch.cat([first, x[rest]]), visible[[*places, *rest]]
                stays = torch.ones(len(x), dtype=torch.bool)
            now = then
        x = layer_of(tower_layer, x, visible & stays)
    if masked:
        return x[places]
    return x if case.key in ("whisper", "voxtral") else x[:keep]


def reduced(layer: Any, x: torch.Tensor, keep: int, method: Method, seed: int) -> tuple[list[int], torch.Tensor]:
    """Return the positions that are kept of a window's sound, and their states.

    The method chooses from the states that it saw, which must equal those of the layers up to rounding. Otherwise
    rounding would decide between states that are alike, and several steps make such ties likely.
    """
    if keep == len(x):
        return list(range(keep)), x
    shown = layer.self_attn.k_proj(layer.self_attn_layer_norm(x)) if method.key == "a_tome_like" else x
    if (seen := SHOWN.get((seed, len(x)))) is not None:
        torch.testing.assert_close(seen, shown, atol=2e-5, rtol=1e-4)
        shown = seen
    chosen: Any = method.select(Evidence(torch.arange(len(x)), keep, seed, states=shown))  # type: ignore[attr-defined]
    if not isinstance(chosen, Merge):
        places = sorted(chosen.tolist())
        return places, x[places]
    rows = [(x[chosen.group == group] * chosen.weight[chosen.group == group][:, None]).sum(0) for group in range(keep)]
    return chosen.kept.tolist(), torch.stack(rows)


def embeddings(case: Case, states: torch.Tensor) -> torch.Tensor:
    """Return the embeddings of audio tokens that the LLM gets for a window."""
    tower: Any = case.lm.audio_tower
    model: Any = case.lm.model.model
    if case.key == "qwen3-omni":
        return tower.proj2(tower.act(tower.proj1(tower.ln_post(states))))
    if case.key == "qwen2.5-omni-7b":
        return tower.proj(tower.ln_post(states.unflatten(0, (-1, 2)).mean(1)))
    if case.key == "voxtral":
        return model.multi_modal_projector(tower.layer_norm(states).reshape(-1, 4 * states.shape[1]))
    return model.multi_modal_projector(tower.layer_norm(states.unflatten(0, (-1, 2)).mean(1)))


def shorter_prompt(lm: AudioLM, ids: list[int], audio: torch.Tensor, steps: int) -> torch.Tensor:
    """Return the logits of a prompt with these audio tokens."""
    x: torch.Tensor = lm.decoder.embed_tokens(torch.tensor([ids]))  # type: ignore[operator]
    x[0, torch.tensor(ids) == lm.audio_token] = audio
    return greedy_logits(lm, x, steps)


def check(case: Case, batch: Sequence[Sequence[float]], method: Method, layer: int) -> None:
    lm, asked = case.lm, prompts(batch)
    inputs = lm.prepare(asked)
    with torch.inference_mode():
        _done, plain = generate(lm, inputs, Base(), 1)
        done, seen = generate(lm, inputs, method)
        windows = windows_of(case, asked, plain["front"])
        for sample in range(len(asked)):
            sample_windows = [window for window in windows if window.sample == sample]
            kept = sum(kept_count(window.tokens, method.ratio) for window in sample_windows)
            assert done.kept_audio_tokens[sample] == kept
            audio = inputs.audio_mask[sample].nonzero().flatten()
            assert sum(window.tokens for window in sample_windows) == len(audio)
            assert int(torch.isin(done.kept_positions[sample], audio).sum()) == kept
        outputs = [towers_output(case, window, method, layer) for window in windows]
        if case.key == "whisper":
            expected = torch.stack([lm.audio_tower.layer_norm(output) for output in outputs])  # type: ignore[operator]
            torch.testing.assert_close(seen["tower"], expected, atol=2e-5, rtol=1e-4)
            return
        for sample in range(len(asked)):
            pairs = zip(windows, outputs, strict=True)
            audio = torch.cat([embeddings(case, embedded) for window, embedded in pairs if window.sample == sample])
            ids = short_ids(inputs, sample, [window for window in windows if window.sample == sample], method.ratio)
            logits = shorter_prompt(lm, ids, audio, STEPS)
            torch.testing.assert_close(done.logits[:, sample], logits, atol=5e-5, rtol=1e-4)
    assert set(done.kv_lengths) == {max(len(positions) for positions in done.kept_positions)}


def short_ids(inputs: Inputs, sample: int, windows: Sequence[Window], ratio: float) -> list[int]:
    """Return the prompt's tokens, with as many audio tokens of each window as it keeps."""
    there = inputs.attention_mask[sample].bool()
    ids, audio = inputs.tensors["input_ids"][sample, there].tolist(), inputs.audio_mask[sample, there].tolist()
    stays = iter([place < kept_count(window.tokens, ratio) for window in windows for place in range(window.tokens)])
    return [token for token, heard in zip(ids, audio, strict=True) if not heard or next(stays)]


#: A tower that pads its windows to 30 s hears two clips of a sample, or two samples, which halves the time.
PADDED = {"qwen2-audio": ((2.0, 7.33),), "aero-1": ((7.33,), (4.1,)), "voxtral": ((2.0, 7.33),)}
PADDED["audio-flamingo-3"] = PADDED["aero-1"]
METHODS_IN_TURN = zip(KEYS, cycle(("merge_frame", "random")), strict=False)
FAST = [(key, PADDED.get(key, BATCHES[3]), name) for key, name in METHODS_IN_TURN]
FAST += [("whisper", SHORT, "merge_adjacent"), ("qwen2-audio", SHORT, "a_tome_like")]
FAST += [("qwen2.5-omni-7b", SHORT, "a_tome_like")]


@pytest.mark.parametrize(("key", "batch", "name"), FAST, ids=str)
def test_pruning_in_the_tower_equals_a_reference_computed_layer_by_layer(
    case_of: Callable[[str], Case], key: str, batch: Any, name: str
) -> None:
    check(case_of(key), batch, in_tower(name, 0.6), 2)


@pytest.mark.parametrize("key", ["qwen2-audio", "voxtral"])
def test_the_tower_keeps_one_audio_token_of_each_window_at_ratio_0_999(
    case_of: Callable[[str], Case], key: str
) -> None:
    check(case_of(key), SHORT, in_tower("frame", 0.999), 2)


@pytest.mark.long
@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.93])
@pytest.mark.parametrize("layer", [0, 1, 3])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("key", KEYS)
def test_tower_pruning_in_every_family_and_in_batches_equals_a_layer_by_layer_reference(
    case_of: Callable[[str], Case], key: str, name: str, batch: Any, layer: int, ratio: float
) -> None:
    check(case_of(key), batch, in_tower(name, ratio, layer), layer)


@pytest.mark.parametrize(
    ("key", "name"),
    [*product(["qwen2.5-omni-7b"], METHODS), ("whisper", "random"), ("voxtral", "merge_frame")],
)
def test_tower_pruning_at_ratio_0_gives_the_logits_of_base_bit_for_bit(
    case_of: Callable[[str], Case], key: str, name: str
) -> None:
    lm = case_of(key).lm
    inputs = lm.prepare(prompts(((2.5,),)))
    unpruned, base = (generate(lm, inputs, method)[0] for method in (in_tower(name, 0.0), Base()))
    assert torch.equal(unpruned.logits, base.logits)


@pytest.mark.parametrize("key", ["whisper", "qwen2-audio"])
def test_dropping_audio_tower_states_equals_hiding_them_from_later_tower_layers(
    case_of: Callable[[str], Case], key: str
) -> None:
    case = case_of(key)
    asked = prompts(SHORT)
    with torch.inference_mode():
        _done, plain = generate(case.lm, case.lm.prepare(asked), Base(), 1)
        (window,) = windows_of(case, asked, plain["front"])
        method = in_tower("frame", 0.7)
        dropped, hidden = (towers_output(case, window, method, 2, masked=masked) for masked in (False, True))
    torch.testing.assert_close(dropped[: len(hidden)], hidden, atol=2e-5, rtol=1e-4)


def test_tower_pruning_combines_with_eager_attention_and_with_a_press(
    case_of: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = case_of("qwen2-audio").lm
    inputs = lm.prepare(prompts(SHORT))
    joined = get_method("frame:0.5+snapkv:0.5", at="tower")
    generation = generate(lm, inputs, joined)[0]
    pruned = generate(lm, inputs, in_tower("frame", 0.5))[0]
    assert generation.kept_audio_tokens == tuple(kept_count(count, 0.5) for count in pruned.kept_audio_tokens)
    assert joined.label == "frame-0.5-tower+snapkv-0.5"
    monkeypatch.setattr(lm.audio_tower.config, "_attn_implementation", "eager")
    eager = generate(lm, inputs, in_tower("frame", 0.5))[0]
    torch.testing.assert_close(eager.logits, pruned.logits, atol=5e-5, rtol=1e-4)


def test_tower_pruning_leaves_the_model_unchanged(case_of: Callable[[str], Case]) -> None:
    lm = case_of("qwen2.5-omni-7b").lm
    inputs = lm.prepare(prompts(((2.5,),)))
    before = generate(lm, inputs, Base())[0].logits
    generate(lm, inputs, in_tower("merge_adjacent", 0.5))
    assert torch.equal(generate(lm, inputs, Base())[0].logits, before)
    assert lm.shares_tower


def test_a_method_that_prunes_in_the_tower_does_not_reuse_tower_output_of_others(
    case_of: Callable[[str], Case],
) -> None:
    lm = case_of("qwen2-audio").lm
    inputs = lm.prepare(prompts(SHORT))
    pruned = in_tower("frame", 0.5)
    alone = {method.label: generate(lm, inputs, method)[0].replies for method in (Base(), pruned)}
    for order in ([Base(), pruned, Base()], [pruned, Base(), pruned]):
        for method, done in generations(lm, inputs, order, STEPS):
            assert done.replies[0].text == alone[method.label][0].text
            assert done.stages.encoder > 0


def test_the_audio_tower_runs_again_for_a_method_that_prunes_in_it_even_if_nothing_drops(
    case_of: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = case_of("qwen2-audio").lm
    inputs, ran = lm.prepare(prompts(SHORT)), []
    forward = lm.audio_tower.forward
    monkeypatch.setattr(lm.audio_tower, "forward", lambda *args, **more: ran.append(1) or forward(*args, **more))
    for order in ([Base(), in_tower("frame", 1e-4)], [in_tower("frame", 1e-4), Base()]):
        ran.clear()
        assert [len(ran) for _method, _done in generations(lm, inputs, order, STEPS)] == [1, 2]


def test_the_count_of_tower_states_rounds_an_odd_number_of_mel_frames_up() -> None:
    """The tower's second convolution has a stride of two, and padding."""
    states = TowerStates.padded(torch.tensor([3000, 2999, 1]), torch.tensor([750, 750, 1]), 1500)
    assert states.windows == ((1500, 750), (1500, 750), (1, 1))


class TestPlaces:
    def test_method_label_and_parameters_name_the_place_of_pruning(self) -> None:
        assert in_tower("frame", 0.5, 16).label == "frame-0.5-tower16"
        assert in_tower("frame", 0.5, None).label == "frame-0.5-tower"
        assert in_tower("frame", 0.5, 16).parameters() == {"ratio": 0.5, "at": "tower", "tower_layer": 16}
        assert get_method("frame", 0.5).parameters() == {"ratio": 0.5, "layer": 2}  # as in folders of older versions
        assert get_method("frame", 0.5, at="input").parameters() == {"ratio": 0.5, "at": "input"}

    def test_the_default_layer_of_tower_pruning_is_the_middle_one(self, case_of: Callable[[str], Case]) -> None:
        case = case_of("whisper")
        inputs = case.lm.prepare(prompts(SHORT))
        half, named = (generate(case.lm, inputs, in_tower("frame", 0.5, layer))[1]["tower"] for layer in (None, 2))
        assert torch.equal(half, named)

    @pytest.mark.parametrize("name", ["fast_v", "dart"])
    def test_methods_that_need_attention_of_the_llm_are_refused_in_the_tower(
        self, case_of: Callable[[str], Case], name: str
    ) -> None:
        with pytest.raises(MethodError, match=r"attention of the LLM.*allowed: PRUNE_AT=layer"):
            in_tower(name, 0.5).check(case_of("qwen2-audio").lm)

    def test_a_layer_that_the_tower_lacks_is_refused(self, case_of: Callable[[str], Case]) -> None:
        with pytest.raises(MethodError, match=r"PRUNE_TOWER_LAYER=4 .*0–3"):
            in_tower("frame", 0.5, 4).check(case_of("qwen2-audio").lm)

    @pytest.mark.parametrize("key", ["phi4mm", "gemma3n"])
    def test_towers_with_convolutions_are_refused_before_loading(
        self, family_checkpoint: Callable[[str], Path], key: str
    ) -> None:
        settings = RunSettings(model_path=str(family_checkpoint(key)))
        with pytest.raises(MethodError, match="convolve over neighbouring states"):
            find_setup(key, settings, [in_tower("frame", 0.5)])

    def test_a_tower_layer_given_without_pruning_in_the_tower_is_refused(self) -> None:
        with pytest.raises(SettingsError, match=r"PRUNE_TOWER_LAYER=3 with PRUNE_AT=input"):
            RunSettings.read({"PRUNE_AT": "input", "PRUNE_TOWER_LAYER": "3"})

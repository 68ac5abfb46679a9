"""The certificate: every family passes it, and each planted fault fails the check that names it."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import task_folders
import torch
from conftest import ALL, HOME, KINDS, call, succeed
from families import FAMILIES
from transformers import GenerationConfig

import audiomarathon
from audiomarathon.certify import certificate as certificates
from audiomarathon.certify import timing_checks
from audiomarathon.certify.bench import Bench, Replied, match, speech_like
from audiomarathon.certify.certificate import Certificate, certify
from audiomarathon.certify.check_result import Finding
from audiomarathon.certify.method_checks import RATIO, dropping, wrong_positions
from audiomarathon.certify.model_checks import hears
from audiomarathon.certify.oracles import Hidden
from audiomarathon.certify.timing_checks import fresh_lengths
from audiomarathon.compression import press
from audiomarathon.compression.dropping import Drop
from audiomarathon.compression.method import Base, kept_count
from audiomarathon.compression.presses.snapkv import SnapKV
from audiomarathon.compression.pruners.fast_v import FastV
from audiomarathon.compression.pruners.random import Random
from audiomarathon.compression.registry import all_methods, get_method
from audiomarathon.engine import encoder_cache
from audiomarathon.engine import stamp as stamps
from audiomarathon.engine.engine import LocalEngine, open_local
from audiomarathon.engine.setup import Setup
from audiomarathon.models import audio_lm
from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.merge import Merge
from audiomarathon.models.prompt import Inputs, Prompt
from audiomarathon.models.timing import Stages
from audiomarathon.settings import RunSettings

pytestmark = pytest.mark.usefixtures("few_steps")
SECONDS = 1.0
SOME = (Base(), Random(), FastV(), SnapKV())


def session_of(model: str, folder: Path) -> LocalEngine:
    return open_local(model, RunSettings.read({}, model_path=str(folder), device="cpu"), ())


def changed_inputs(session: LocalEngine, monkeypatch: pytest.MonkeyPatch, change: Callable[[Inputs], Inputs]) -> None:
    """Change the inputs that the model prepares before it gets them."""
    prepare = session.lm.prepare
    monkeypatch.setattr(session.lm, "prepare", lambda prompts: change(prepare(prompts)))


@pytest.fixture(scope="module")
def session(tiny_checkpoint: Path) -> LocalEngine:
    """The tiny Qwen2.5-Omni, to plant faults in."""
    return session_of("qwen2.5-omni-7b", tiny_checkpoint)


@contextmanager
def checks_limited_to(*names: str) -> Iterator[None]:
    """Limit a certificate to a few methods and to the named checks (default: all except timing)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "all_methods", lambda: SOME)
        chosen = [check for check in certificates.checks() if check.name in (names or {check.name} - {"timing"})]
        assert len(names) in (0, len(chosen))
        patch.setattr(certificates, "checks", lambda *_, **__: chosen)
        yield


def failed(session: LocalEngine, *names: str) -> set[str]:
    """Return which of these checks fail."""
    with checks_limited_to(*names):
        return {check.name for check, finding in certify(session, SECONDS).rows if finding.verdict == "fail"}


OFTEN = (HOME, "phi4mm")  # a family without an adapter and one with it


@pytest.mark.parametrize(
    "key", [*OFTEN, *(pytest.param(key, marks=pytest.mark.long) for key in sorted({*FAMILIES} - {*OFTEN}))]
)
def test_every_model_family_passes_its_certification(
    key: str, session: LocalEngine, family_checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certify every method in the family HOME, and a method of each kind in the others."""
    family_session = session if key == HOME else session_of(key, family_checkpoint(key))
    some = [method for method in all_methods() if method.key in (*KINDS, "dart")]
    if not ALL and key != HOME:
        monkeypatch.setattr(certificates, "all_methods", lambda: some)
    certificate = certify(family_session, SECONDS)
    findings = {check.name: finding for check, finding in certificate.rows}
    assert certificate.verdict == "pass", {name: f for name, f in findings.items() if f.verdict == "fail"}
    assert {"documented", "ratio 0", "dropping dart", "dropping in steps", "pressing snapkv", "leftovers"} <= {
        *findings
    }
    assert findings["documented"].figure.startswith("our inputs") == (key == "aero-1")  # its code is on the hub
    unchecked = {name for name, finding in findings.items() if finding.verdict != "pass"}
    without_presses = {name for name in unchecked if name.startswith("pressing")}
    assert bool(without_presses) == key.startswith("gemma3n")
    assert ("graph equals eager" in unchecked) == bool(family_session.lm.why_eager)
    elsewhere = {name for name in unchecked if name.endswith((" at input", " at tower"))}
    assert bool([name for name in elsewhere if name.endswith("tower")]) == bool(family_session.lm.no_tower_drop)
    assert unchecked - without_presses - elsewhere <= {"adapter", "graph equals eager", "dropping keep_speech"}


@pytest.mark.parametrize(("moved", "verdicts"), [([5], (False, True)), (range(8), (False, False)), ([], (True, True))])
def test_certification_tolerates_logits_that_differ_at_one_step_but_not_at_all_steps(
    moved: Iterable[int], verdicts: tuple[bool, bool]
) -> None:
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(0))
    other = logits.clone()
    other[list(moved)] += 0.2 * torch.randn(50, generator=torch.Generator().manual_seed(1))
    reply, two = Replied(tuple(range(8)), other), Replied(tuple(range(8)), logits)
    assert tuple(match(reply, two, jumps=jumps).within(0.03) for jumps in (False, True)) == verdicts


@pytest.mark.parametrize("jumped", [True, False])
def test_certification_tolerates_a_different_token_only_where_the_logits_also_differ(jumped: bool) -> None:
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(0))
    other = logits.clone()
    other[5] *= -1 if jumped else 1
    tokens = tuple(logits.argmax(-1).tolist())
    sampled = (*tokens[:5], int(logits[5].argmin()), *tokens[6:])
    assert match(Replied(sampled, other), Replied(tokens, logits), jumps=True).within(0.03) == jumped


@pytest.mark.long
def test_a_mixture_of_experts_model_passes_certification_in_bfloat16(family_checkpoint: Any) -> None:
    path = str(family_checkpoint("qwen3-omni"))
    session = open_local("qwen3-omni", RunSettings.read({}, model_path=path, device="cpu", dtype="bfloat16"), ())
    assert failed(session) == set()


def test_flash_attention_of_the_llm_is_replaced_by_sdpa_while_a_method_is_applied(family_checkpoint: Any) -> None:
    lm = session_of("phi4mm", family_checkpoint("phi4mm")).lm
    config, inputs = lm.decoder.config, lm.prepare([Prompt("?", (speech_like(1, 1.0, 16000),))])
    config._attn_implementation = {"": "flash_attention_2", "audio_config": "eager"}
    with Hidden(kept=torch.arange(3)).applied_to(lm, inputs):
        assert (config._attn_implementation, config.audio_config._attn_implementation) == ("sdpa", "eager")
    assert (config._attn_implementation, config.audio_config._attn_implementation) == ("flash_attention_2", "eager")


def test_certify_reports_a_pruner_that_drops_text_or_keeps_a_wrong_number_of_audio_tokens(session: LocalEngine) -> None:
    inputs = session.lm.prepare([Prompt("?", (speech_like(1, 1.0, 16000),))])
    text, audio = ((mask[0].nonzero().flatten()) for mask in (~inputs.audio_mask, inputs.audio_mask))
    kept = audio[: kept_count(len(audio), RATIO)]
    assert wrong_positions(inputs, torch.cat([text, kept])) == ""
    assert "1 text token" in wrong_positions(inputs, torch.cat([text[1:], kept]))
    for other in (kept[1:], audio[: len(kept) + 1]):
        assert "audio tokens were kept" in wrong_positions(inputs, torch.cat([text, other]))


@pytest.mark.parametrize(
    ("wall", "decode", "said"),
    [
        (1.05, 0.1, ""),
        (0.9, 0.1, "stages take longer than the call"),
        (1.5, 0.1, "stages do not account for the call"),
        (1.05, 0.0, "not measured: decode"),
        (1.05, -0.01, "as long to decode as"),
    ],
)
def test_certification_fails_if_the_stage_times_do_not_add_up_to_the_time_of_the_whole_call(
    monkeypatch: pytest.MonkeyPatch, wall: float, decode: float, said: str
) -> None:
    """A call takes `wall` times the sum of its stages. Decoding a token takes `decode` seconds."""

    def timed(_bench: Any, tokens: int) -> Any:
        stages = Stages(0.5, 0.5, (1.0 if decode < 0 else 0.0) + decode * tokens)
        return timing_checks._Timed(stages, wall * (stages.prefill + stages.decode))

    monkeypatch.setattr(timing_checks, "_timed", timed)
    finding = timing_checks.timing(None)  # type: ignore[arg-type]
    assert finding.verdict == ("fail" if said else "pass")
    assert said in finding.figure


@pytest.mark.parametrize(
    ("slow_lengths", "verdict"), [(0, "pass"), (3, "pass"), (4, "fail")], ids=["none", "by chance", "always"]
)
def test_slow_first_calls_at_every_new_length_fail_the_timing_check_of_certification(
    session: LocalEngine, monkeypatch: pytest.MonkeyPatch, slow_lengths: int, verdict: str
) -> None:
    """Each attempt tries a new length. It passes if its first call is as fast as later calls."""
    met: dict[int, int] = {}

    def generate(_base: Base, _lm: AudioLM, inputs: Any, **_: Any) -> Any:
        length = inputs.audio_mask.shape[1]
        calls = met[length] = met.get(length, 0) + 1
        slow = 1.2 if calls == 1 and len(met) <= slow_lengths else 1.0
        return SimpleNamespace(stages=Stages(1.0, slow, 1.0))

    monkeypatch.setattr(timing_checks, "run_uncounted", lambda *_, **__: None)
    monkeypatch.setattr(Base, "generate", generate)
    finding = fresh_lengths(Bench(session.lm, session.setup.checkpoint.path, SECONDS))
    assert finding.verdict == verdict
    assert f"llm_prefill {'1.20' if verdict == 'fail' else '1.00'}" in finding.figure
    assert len(met) == min(slow_lengths + 1, 4)


def test_a_model_that_ignores_the_end_of_long_clips_fails_certification(
    session: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, prepare = Bench(session.lm, session.setup.checkpoint.path, 2.0), session.lm.prepare
    assert hears(bench).verdict == "pass"
    rate = session.lm.sampling_rate

    def deaf(prompts: Any) -> Any:
        """Silence the audio after 4 s. Only the longer clip is longer than that."""
        return prepare(
            [replace(prompt, clips=tuple(_silent_from(clip, 4 * rate) for clip in prompt.clips)) for prompt in prompts]
        )

    monkeypatch.setattr(session.lm, "prepare", deaf)
    assert hears(bench).verdict == "fail"


def _silent_from(clip: np.ndarray, place: int) -> np.ndarray:
    return np.concatenate([clip[:place], np.zeros_like(clip[place:])])


def test_an_audio_mask_shifted_by_one_position_fails_certification(
    session: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shifted(inputs: Any) -> Any:
        return replace(inputs, audio_mask=inputs.audio_mask.roll(1, dims=-1))

    changed_inputs(session, monkeypatch, shifted)
    # each method drops exactly the tokens of the mask, so only the mask's own check fails
    assert failed(session, "audio mask", "dropping random", "pressing snapkv") == {"audio mask"}


def test_input_features_that_differ_from_those_of_the_processor_fail_certification(
    session: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def louder(inputs: Inputs) -> Inputs:
        tensors = {**inputs.tensors, "input_features": inputs.tensors["input_features"] + 0.05}
        return replace(inputs, tensors=tensors)

    changed_inputs(session, monkeypatch, louder)
    assert failed(session, "documented", "hears", "audio mask", "batch") == {"documented"}


@pytest.mark.long
def test_a_model_that_receives_long_audio_in_shuffled_order_fails_certification(
    session: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All audio reaches the model, so only the documented reply on the longer clip shows the fault."""

    def rolled(inputs: Inputs) -> Inputs:
        features = inputs.tensors["input_features"].clone()
        for row, frames in zip(features, inputs.tensors["feature_attention_mask"].sum(-1).tolist(), strict=True):
            if frames > 150:
                row[:, :frames] = row[:, :frames].roll(100, dims=-1)
        return replace(inputs, tensors={**inputs.tensors, "input_features": features})

    changed_inputs(session, monkeypatch, rolled)
    assert failed(session) == {"documented"}


def test_a_pruner_that_drops_other_tokens_than_it_reports_fails_certification(
    session: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = Drop.keep

    def off_by_one(drop: Drop, chosen: Any) -> None:
        keep(drop, chosen)
        right = drop.kept_positions
        drop.index = drop.index.roll(1, dims=-1)
        drop.kept_positions = lambda: tuple(row.roll(-1) for row in right())  # type: ignore[method-assign]

    monkeypatch.setattr(Drop, "keep", off_by_one)
    wrong = {"dropping random", "dropping fast_v"}
    assert failed(session, *wrong, "audio mask", "ratio 0", "leftovers") == wrong


def test_a_pruner_that_slightly_alters_the_hidden_states_of_kept_tokens_fails_certification(
    session: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply changes less than by rounding. Only the layer's input shows the fault."""
    states, bench = Drop.states, Bench(session.lm, session.setup.checkpoint.path, SECONDS)
    monkeypatch.setattr(Drop, "states", lambda drop, hidden: states(drop, hidden) * (1 + 5e-7))
    finding = dropping(bench, Random())
    assert finding.verdict == "fail"
    assert "hidden states that enter layer" in finding.figure


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_token_merging_that_omits_the_weight_of_a_token_fails_certification(
    tiny_checkpoint: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = RunSettings.read({}, model_path=str(tiny_checkpoint), dtype=dtype)
    bench = Bench(open_local(HOME, settings).lm, tiny_checkpoint, SECONDS)
    for method in (get_method("merge_adjacent", 0.5), get_method("merge_frame", 0.5)):
        assert "hidden states" not in dropping(bench, method).figure
    of = Merge.of

    def without_one(merge: Merge, states: torch.Tensor) -> torch.Tensor:
        weight = merge.weight.clone()
        weight[len(weight) // 2] = 0
        return of(replace(merge, weight=weight), states)

    monkeypatch.setattr(Merge, "of", without_one)
    finding = dropping(bench, get_method("merge_adjacent", 0.5))
    assert finding.verdict == "fail"
    assert "hidden states that enter layer" in finding.figure


@pytest.mark.long
def test_a_pruner_whose_dropped_tokens_stay_visible_in_decode_fails_certification(
    session: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach = Drop.attach

    def but_the_last(drop: Drop, layers: Any, first: int, decide: Any) -> list[Any]:
        handles = attach(drop, layers, first, decide)
        handles.pop().remove()
        return handles

    monkeypatch.setattr(Drop, "attach", but_the_last)
    assert "dropping random" in failed(session)


def test_a_press_that_keeps_keys_and_values_of_different_cache_entries_fails_certification(
    session: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    compress = press._Squeeze._compress

    def other_values(squeeze: Any, caches: list[Any], index: int, *rest: Any) -> None:
        compress(squeeze, caches, index, *rest)
        caches[index].values = caches[index].values.roll(1, dims=2)

    monkeypatch.setattr(press._Squeeze, "_compress", other_values)
    assert failed(session, "pressing snapkv", "dropping fast_v", "ratio 0", "leftovers") == {"pressing snapkv"}


def test_a_method_that_leaves_a_hook_on_the_model_fails_certification(
    session: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied_to, handles = FastV.applied_to, []

    @contextmanager
    def leaving(method: FastV, lm: AudioLM, inputs: Any) -> Iterator[Any]:
        handles.append(lm.decoder_layers[1].register_forward_pre_hook(lambda *_: None))
        with applied_to(method, lm, inputs) as trace:
            yield trace

    monkeypatch.setattr(FastV, "applied_to", leaving)
    try:
        # graph decode would not run the hook
        changed = {"leftovers", "graph equals eager"}
        assert failed(session, *changed, "ratio 0", "dropping fast_v") == changed
    finally:
        for handle in handles:
            handle.remove()


def test_a_model_whose_adapter_cannot_be_switched_off_fails_certification(
    session: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Switching the adapter off changes nothing."""
    monkeypatch.setattr(session.lm, "without_adapter", nullcontext)
    assert failed(session, "adapter", "documented", "leftovers") == {"adapter"}


@pytest.mark.long
def test_a_model_that_runs_audio_prompts_without_its_adapter_fails_certification(family_checkpoint: Any) -> None:
    session = session_of("phi4mm", family_checkpoint("phi4mm"))
    session.lm.model.disable_adapters()
    assert failed(session, "adapter") == {"adapter"}


def test_generation_that_samples_instead_of_greedy_decoding_fails_certification(
    session: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sampling(**options: Any) -> Any:
        return GenerationConfig(**options | {"do_sample": True, "temperature": 100.0})

    monkeypatch.setattr(audio_lm, "GenerationConfig", sampling)
    assert failed(session, "greedy", "documented") == {"greedy", "documented"}


@pytest.mark.long
def test_a_generation_config_with_sampling_switched_on_fails_certification(
    session: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.lm.model, "generation_config", GenerationConfig(do_sample=True, top_p=0.5))
    assert failed(session) == {"leftovers"}


def test_reusing_a_cached_encoder_output_of_an_earlier_call_fails_certification(
    session: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, stale = encoder_cache.encoder_shared, []

    @contextmanager
    def remembering(lm: AudioLM) -> Iterator[encoder_cache.Tower]:
        with shared(lm) as memory:
            memory.output.extend(stale)
            yield memory
            stale[:] = memory.output

    monkeypatch.setattr(encoder_cache, "encoder_shared", remembering)
    assert failed(session, "shared encoder", "documented", "hears", "leftovers") == {"shared encoder"}


def test_an_audio_tower_that_returns_its_first_output_for_later_clips_fails_certification(session: LocalEngine) -> None:
    tower = session.lm.audio_tower
    forward, memory = tower.forward, []

    def once(*args: Any, **kwargs: Any) -> Any:
        memory.append(forward(*args, **kwargs) if not memory else memory[0])
        return memory[0]

    tower.forward = once
    try:
        wrong = {"hears", "audio mask", "shared encoder", "leftovers"}
        assert failed(session, *wrong) == wrong
    finally:
        del tower.forward


@pytest.fixture
def certified(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """Store a certificate of a setup in a cache that only this test uses."""
    monkeypatch.setenv("AUDIOMARATHON_CACHE", str(tmp_path))

    def store(setup: Setup, verdict: str = "pass") -> Path:
        row = (next(certificates.checks()), Finding(verdict, "0 of 0"))
        about = stamps.about(setup)
        return certificates.store(Certificate(about, "tiny", "abc", "2026-01-01T00:00:00+00:00", 4.0, 1.0, (row,)))

    return store


def test_a_run_records_the_certificate_of_its_model_unless_the_certificate_file_is_damaged(
    session: LocalEngine, certified: Callable[..., Path]
) -> None:
    assert stamps.stamp(session.setup) is None
    file = certified(session.setup)
    when = {"date": "2026-01-01T00:00:00+00:00", "version": audiomarathon.__version__, "commit": "abc"}
    what = {"audio_seconds": 4.0, "verdict": "pass", "checks": {"documented": "pass"}}
    assert stamps.stamp(session.setup) == when | what
    file.write_text(file.read_text()[:40])
    assert stamps.stamp(session.setup) is None, "a damaged certificate counts"


@pytest.mark.parametrize(
    "other",
    [
        lambda s: replace(s, checkpoint_hash="another"),
        lambda s: replace(s, hardware=replace(s.hardware, name="another")),
        lambda s: replace(s, hardware=replace(s.hardware, dtype="bfloat16")),
        lambda s: replace(s, settings=replace(s.settings, attn_implementation="eager")),
    ],
    ids=["checkpoint", "device", "dtype", "attention"],
)
def test_a_certificate_of_another_checkpoint_device_precision_or_attention_is_not_recorded(
    session: LocalEngine, certified: Callable[..., Path], other: Any
) -> None:
    certified(session.setup)
    assert stamps.stamp(other(session.setup)) is None


@pytest.mark.parametrize("package", ["audiomarathon", "torch", "transformers"])
def test_a_certificate_of_another_package_version_is_not_recorded(
    session: LocalEngine, certified: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    certified(session.setup)
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0" if name == package else version(name))
    monkeypatch.setattr(stamps, "__version__", "0" if package == "audiomarathon" else stamps.__version__)
    assert stamps.stamp(session.setup) is None


def test_a_certificate_that_holds_only_an_old_weak_checkpoint_hash_is_marked_as_weak(
    session: LocalEngine, certified: Callable[..., Path]
) -> None:
    strong = replace(session.setup, checkpoint_hash="2:0123456789abcdef:fedcba9876543210")
    certified(replace(session.setup, checkpoint_hash="0123456789abcdef"))
    with pytest.warns(UserWarning, match="weak fingerprint"):
        assert stamps.stamp(strong)["weak_fingerprint"] is True
    certified(strong)
    assert "weak_fingerprint" not in stamps.stamp(strong)


def test_a_failed_certificate_is_recorded_with_a_warning(session: LocalEngine, certified: Callable[..., Path]) -> None:
    certified(session.setup, "fail")
    with pytest.warns(UserWarning, match=r"FAILED .*documented"):
        stamp = stamps.stamp(session.setup)
    assert stamp["verdict"] == "fail"


def test_certify_prints_a_table_and_writes_json_that_later_runs_record(
    tiny_checkpoint: Path, tmp_path: Path, no_env: Any
) -> None:
    no_env("AUDIOMARATHON_CACHE", str(tmp_path / "cache"))
    chosen = ["--model", "qwen2.5-omni", "--model-path", str(tiny_checkpoint), "--device", "cpu"]
    out = tmp_path / "new" / "certificate.json"
    with checks_limited_to("documented", "ratio 0", "dropping fast_v"):
        shown = succeed("certify", *chosen, "--seconds", "1.5", "-o", out)
    assert all(words in shown for words in ("PASS", "dropping fast_v", "when it fails"))
    content = json.loads(out.read_text())
    assert content["verdict"] == "pass"
    tau, results = task_folders.build_tau(tmp_path / "data" / "TAU"), tmp_path / "results"
    succeed("run", "tau", *chosen, "--data", tau, "--limit", "1", "--max-new-tokens", "2", "--results", results)
    held = json.loads(next(results.rglob("run.json")).read_text())["certificate"]
    assert held["verdict"] == "pass"
    assert held["checks"] == {name: finding["verdict"] for name, finding in content["checks"].items()}


def test_certify_refuses_clips_too_short_to_check(no_env: Any) -> None:
    code, said = call("certify", "--seconds", "0.2")
    assert code == 2
    assert "--seconds 0.2: not allowed" in said

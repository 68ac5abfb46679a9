"""MMAU-Pro's samples of several clips, from the table to the records, on tiny checkpoints of two families."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from builders import records_in
from families import FAMILIES
from lalm_folders import ROWS, mmau_pro_folder

from audiomarathon.audio.decode import decode
from audiomarathon.benchmarks import get_task
from audiomarathon.compression.method import Base, Method
from audiomarathon.compression.registry import get_method
from audiomarathon.engine.run import run
from audiomarathon.models.prompt import Inputs, Prompt
from audiomarathon.runs.record_line import unpack
from audiomarathon.settings import RunSettings

SEVERAL = {"m2": 2, "m3": 3, "o2": 2, "c1": 1}  # clips a sample; the first lasts 1 s, each next a second longer


@pytest.mark.filterwarnings("ignore:.*NOTHING IS PRUNED")
@pytest.mark.parametrize(
    ("key", "pruner", "press"), [("qwen2.5-omni-7b", "fast_v", "snapkv"), ("voxtral", "frame", "streaming_llm")]
)
def test_the_model_hears_all_clips_of_a_sample_in_their_order(
    key: str, pruner: str, press: str, family_checkpoint: Callable[[str], Path], tmp_path: Path, no_env: object
) -> None:
    family, checkpoint = FAMILIES[key], family_checkpoint(key)
    root = mmau_pro_folder(tmp_path / "data", rows=[row for row in ROWS if row["id"] in SEVERAL])
    settings = RunSettings.read(
        {}, data=str(root), model_path=str(checkpoint), results=tmp_path / "out", max_new_tokens=2, timing=False
    )
    methods = [get_method("base"), *(get_method(name, 0.5) for name in (pruner, press))]
    base, pruned, pressed = run(["mmau_pro"], key, settings, methods, progress=False)
    alone = {second: family.audio_tokens(16000 * second) for second in (1, 2, 3)}
    for whole, at_half, kept in zip(*(records_in(result.folder) for result in (base, pruned, pressed)), strict=True):
        clips = SEVERAL[whole["id"]]
        tokens = sum(alone[1 + place] for place in range(clips))
        assert (whole["clip_seconds"], whole["audio_tokens"]) == (sum(range(1, clips + 1)), tokens)
        assert whole["kept_audio_tokens"] == tokens
        half = tokens - int(tokens * 0.5 + 0.5)
        assert at_half["kept_audio_tokens"] == kept["kept_audio_tokens"] == half
        assert unpack(at_half["kept_audio_bits"], tokens).sum() == half
        assert kept["kv_bytes"] < whole["kv_bytes"]

    lm = family.load(checkpoint)
    task = get_task("mmau_pro")
    (sample,) = [sample for sample in task.load(task.find(root)).samples if sample.id == "m3"]
    clips = tuple(decode(path, lm.sampling_rate) for path in sample.clips)
    straight, swapped = (lm.prepare([Prompt(task.prompt(sample), order)]) for order in (clips, clips[::-1]))
    assert not torch.equal(straight.tensors["input_features"], swapped.tensors["input_features"])

    def logits(inputs: Inputs, method: Method) -> torch.Tensor | None:
        return method.generate(lm, inputs, max_new_tokens=2, keep_logits=True, ignore_end=True).logits

    plain = logits(straight, Base())
    assert not torch.equal(plain, logits(swapped, Base()))
    for name in (pruner, press):
        assert torch.equal(plain, logits(straight, get_method(name, 0.0)))
        assert not torch.equal(plain, logits(straight, replace(get_method(name, 0.0), ratio=0.9)))

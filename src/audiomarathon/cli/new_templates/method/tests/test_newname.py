"""The method keeps the right tokens, and runs on the model that ships with AudioMarathon."""

import json
from pathlib import Path

import torch
from newname.method import NewName

from audiomarathon import evaluate
from audiomarathon.compression.token_pruner import Evidence, Scored


def test_the_largest_are_kept() -> None:
    hidden = torch.tensor([[1.0, 0.0], [0.0, 5.0], [3.0, 0.0], [0.0, 2.0]])
    scored = Scored(torch.zeros(1, 4), torch.zeros(1, 4, 2), hidden, torch.nn.Identity())
    evidence = Evidence(torch.arange(4), n_keep=2, seed=0, scored=scored)
    assert sorted(NewName(0.5).select(evidence).tolist()) == [1, 2]


def test_half_of_the_audio_is_dropped(tmp_path: Path) -> None:
    where = {"model": "embedded", "data": "mini", "results": str(tmp_path), "limit": 1}
    (result,) = evaluate("desed", method="newname:0.5", **where)  # by name: the package has to be installed
    (record,) = map(json.loads, (result.folder / "samples.jsonl").read_text().splitlines())
    assert abs(record["kept_audio_tokens"] - record["audio_tokens"] / 2) <= 1

"""SmolLM2-135M-Instruct as a judge, here and behind `transformers serve`: a real model on a real server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from real_weights import real_weights
from toy_judged import Grade, Grades, replies_to
from transformers_server import serving

from audiomarathon.endpoint.client import Endpoint
from audiomarathon.judges.cache import Cache
from audiomarathon.judges.endpoint import EndpointJudge
from audiomarathon.judges.judge import Judge
from audiomarathon.judges.judgements import Request
from audiomarathon.judges.judging import Bench, Case, judge_run
from audiomarathon.judges.local import LocalJudge
from audiomarathon.judges.protocol import Messages
from audiomarathon.records import Record
from audiomarathon.runs.folder import read_records
from audiomarathon.runs.scored import judged

pytestmark = pytest.mark.real


class Plain(Grade):
    """A grading prompt that a small model can follow."""

    name = "plain"
    max_new_tokens = 24

    def messages(self, record: Record) -> Messages:
        asked = (
            f"[Reference answer]\n{record.reference['answer']}\n\n[Reply]\n{record.text}\n\nGrade the reply: 2 if it "
            "holds the reference answer, else 0. Answer with one line, such as\nGrade: 0"
        )
        return [{"role": "system", "content": "You grade replies."}, {"role": "user", "content": asked}]


class Plainly(Grades):
    """The metrics of `Plain`."""

    protocols = (Plain(),)


@pytest.fixture(scope="module")
def smollm2() -> Path:
    return real_weights("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def served(smollm2: Path) -> Iterator[str]:
    """Serve the model in float32 with `transformers serve`; yield the address."""
    with serving(smollm2) as address:
        yield address


def answers(judge: Judge, requests: Sequence[Request]) -> list[str]:
    replies = {request.hash: reply for request, reply in judge.ask(requests)}
    assert [reply.error for reply in replies.values()] == [None] * len(requests)
    return [replies[request.hash].text for request in requests]


def requests_for(folder: Path) -> list[Request]:
    asked = Case(folder, list(read_records(folder).values()), Plain()).asked()
    requests = [Request(Plain().messages(record), 24) for record in asked]
    return list({request.hash: request for request in requests}.values())


def same_or_a_near_tie(judge: LocalJudge, request: Request, answer: str, other: str) -> bool:
    """Return whether texts agree, or first differ where the model's two best logits are less than 1e-3 apart."""
    if answer == other:
        return True
    model, tokenizer = judge._loaded
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (answer, other)]
    shared = (place for place, pair in enumerate(zip(*ids, strict=False)) if pair[0] != pair[1])
    common = next(shared, min(map(len, ids)))
    with torch.inference_mode():
        logits = model(torch.tensor([judge._tokens(request) + ids[0][:common]])).logits[0, -1]
    first, second = logits.topk(2).values
    return bool(first - second < 1e-3)


def test_a_small_local_judge_gives_verdicts_and_is_certified_as_unreliable(smollm2: Path, tmp_path: Path) -> None:
    folder = replies_to(tmp_path / "run", ["It is a0.", "no", "a2 it is", "", "I hear a1 there", "a2"])
    judge = LocalJudge("smollm2", str(smollm2))
    case = Case(folder, list(read_records(folder).values()), Plain())
    assert judge_run(case, Bench("smollm2", judge, Cache(tmp_path, judge.identity()))) == 0
    verdicts = list(judged(Plainly(), read_records(folder).values()).values())
    certificate = Plainly().certificates(verdicts)["smollm2"]
    print(certificate, Plainly().notes(verdicts), [verdict.values["readings"] for verdict in verdicts])  # noqa: T201
    assert certificate.weak
    assert any("weak" in note for note in Plainly().notes(verdicts))
    alone, together = (LocalJudge("s", str(smollm2), size) for size in (1, 8))
    requests = requests_for(folder)
    for request, *texts in zip(requests, answers(alone, requests), answers(together, requests), strict=True):
        assert same_or_a_near_tie(alone, request, *texts)


def test_a_local_judge_gives_the_same_verdicts_through_a_server(smollm2: Path, served: str, tmp_path: Path) -> None:
    requests = requests_for(replies_to(tmp_path / "run", ["It is a0.", "no", "I hear a1 there"]))
    local, behind = LocalJudge("l", str(smollm2)), EndpointJudge("e", Endpoint(str(smollm2), served, ""), at_once=1)
    here, there = answers(local, requests), answers(behind, requests)
    same = sum(answer == other for answer, other in zip(here, there, strict=True))
    print(f"{same} of {len(requests)} texts are the same", here[:3])  # noqa: T201
    for request, text, other in zip(requests, here, there, strict=True):
        assert same_or_a_near_tie(local, request, text, other)

"""SmolLM2-135M-Instruct as a judge, here and behind `transformers serve`: a real model on a real server."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from conftest import succeed
from real_recordings import build_jasco
from real_weights import real_weights
from toy_judged import Grade, Grades, replies_to
from transformers_server import serving

from audiomarathon.benchmarks import get_task
from audiomarathon.benchmarks.rows import as_csv
from audiomarathon.endpoint.client import Endpoint
from audiomarathon.judges.cache import Cache
from audiomarathon.judges.endpoint import EndpointJudge
from audiomarathon.judges.judge import Judge
from audiomarathon.judges.judgements import Request, lines_in, request_of, second_of
from audiomarathon.judges.judging import Bench, Case, judge_run
from audiomarathon.judges.local import LocalJudge
from audiomarathon.judges.protocol import Messages
from audiomarathon.records import Record
from audiomarathon.runs.folder import read_records
from audiomarathon.runs.read import Run
from audiomarathon.runs.scored import judged
from audiomarathon.wings.jasco.rubric import Strict

pytestmark = pytest.mark.real


class Plain(Grade):
    """Grades in a form that a small model can follow."""

    name = "plain"
    max_new_tokens = 24

    def messages(self, record: Record) -> Messages:
        asked = (
            f"[Reference answer]\n{record.reference['answer']}\n\n[Reply]\n{record.text}\n\nGrade the reply: 2 if it "
            "holds the reference answer, else 0. Answer with one line, such as\nGrade: 0"
        )
        return [{"role": "system", "content": "You grade replies."}, {"role": "user", "content": asked}]


class Plainly(Grades):
    """Figures of `Plain`."""

    protocols = (Plain(),)


@pytest.fixture(scope="module")
def smollm2() -> Path:
    return real_weights("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def served(smollm2: Path) -> Iterator[str]:
    """An address at which `transformers serve` has the model, in float32."""
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
    """Whether texts agree, or part where the model's two best tokens are less than 1e-3 apart."""
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


@pytest.fixture(scope="module")
def judged_jasco(tmp_path_factory: pytest.TempPathFactory, served: str, smollm2: Path) -> Iterator[tuple[Path, str]]:
    """Voice prompts over sounds as JASCO, with replies to two of its twelve clips (for time) brought in as users do.

    Yields the run with its anchors judged behind the server, and what the command said. Answers are of 32 tokens: given
    a thousand this model fills them with one line again and again, for 20 s each.
    """
    place = tmp_path_factory.mktemp("jasco")
    clone, file = build_jasco(place / "clone"), place / "replies.csv"
    succeed("jasco", "example", "-o", file, "--data", clone)
    rows = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))))
    assert len(rows) == 12 * 8
    replies = [row | {"allm_output": f"{row['tgt_text']} I hear {row['audio_sound'].lower()}."} for row in rows[:16]]
    file.write_text(as_csv(replies, replies[0]), encoding="utf-8")
    succeed("jasco", "import", file, "--model-name", "M", "--results", place / "out")
    run = next((place / "out").rglob("run.json")).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Strict, "max_new_tokens", 32)
        patch.setenv("OPENAI_BASE_URL", served)
        for name in ("OPENAI_API_KEY", "OPENAI_PRICE_IN", "OPENAI_PRICE_OUT"):
            patch.delenv(name, raising=False)
        options = ("--with", f"smollm2=endpoint:{smollm2}", "--anchors-only", "--no-cache", "--batch-size", 2)
        yield run, succeed("judge", run, *options)


def test_a_small_local_judge_of_jasco_anchors_is_marked_as_unreliable(judged_jasco: tuple[Path, str]) -> None:
    folder, output = judged_jasco
    lines = list(lines_in(folder / "judgements-smollm2.jsonl"))
    said = {(judgement.sample, judgement.request_hash): judgement for judgement in lines}
    assert len(said) == len(lines)  # one line a request
    asked = 0
    for record in Case(folder, list(read_records(folder).values()), Strict(), anchors_only=True).asked():
        first = request_of(Strict(), record)
        again = second_of(Strict(), said[record.id, first.hash].text, record)
        asked += 1 + (again is not None and (record.id, again.hash) in said)
        assert again is None or (record.id, again.hash) in said
    assert asked == len(lines) >= 14
    assert [judgement.error for judgement in lines] == [None] * len(lines)
    assert all(1_000 < judgement.prompt_tokens < 1_400 for judgement in lines if judgement.prompt_tokens)
    scorer, verdicts = get_task("jasco").scorer, list(Run.read(folder).verdicts.values())
    certificate = scorer.certificates(verdicts)["smollm2"]
    print(certificate, f"{len(lines)} requests")  # noqa: T201
    assert [n for _right, n in certificate.kinds.values()] == [2, 2, 4, 2, 2, 2]
    assert certificate.weak
    assert output.count("weak") == len(certificate.weak)

"""The judge answers every request, with an answer from its table."""

from audiomarathon.judges.judgements import Request
from audiomarathon.judges.registry import open_judges


def test_every_request_is_answered() -> None:
    judge = open_judges("newname")["newname"]  # by name: the package has to be installed
    requests = [Request([{"role": "user", "content": text}], 100) for text in ("A dog barks.", "Sorry, I cannot say.")]
    ratings = [reply.text.splitlines()[0] for _request, reply in judge.ask(requests)]
    assert ratings == ["Rating: 1", "Rating: 0"]

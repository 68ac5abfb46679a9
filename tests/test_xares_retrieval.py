"""Retrieval of captions and clips: towers against a plain version of X-ARES', ranks, and the roles of splits."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_probing_runs import results_of, write
from test_xares_grades import BandsEncoder, tone
from tiny_base import byte_tokenizer
from torch import nn

from audiomarathon.errors import ModelError, RecordError
from audiomarathon.records import Record
from audiomarathon.runs.read import Run
from audiomarathon.wings.encoders.encoder import from_module
from audiomarathon.wings.encoders.metrics.retrieval import average_precision, places_of, recall
from audiomarathon.wings.encoders.probing.probe_input import PUBLISHED
from audiomarathon.wings.encoders.probing.published_probes import learning_rate
from audiomarathon.wings.encoders.probing.retrieval import Towers, trained_towers
from audiomarathon.wings.encoders.scoring.retrieved import Retrieved, places_to_reply
from audiomarathon.wings.encoders.xares.captioned import CaptionedTask
from audiomarathon.wings.encoders.xares.task import Recipe
from audiomarathon.wings.encoders.xares.tasks import equipped, named

WORDS = ("silence", "a hum", "a buzz", "a whistle", "a siren", "a scream")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer(("<end>",), end="<end>", pad="<end>").save_pretrained(folder)
    return str(folder)


def task_of(tokenizer: str, **recipe: Any) -> CaptionedTask:
    (task,) = named(["clotho"])
    assert equipped(*named(["esc50"]), llm="llm", tokenizer=tokenizer) == named(["esc50"])[0]
    caption_task = equipped(task, tokenizer=tokenizer)
    assert isinstance(caption_task, CaptionedTask)
    changed = replace(caption_task.recipe, **{"batch": 36, "epochs": 6, "crop": None} | recipe)
    return replace(caption_task, recipe=changed)


def write_clotho(root: Path) -> Path:
    """Write clips whose captions state the level of their low tone."""
    for part, many in (("development", 36), ("evaluation", 12), ("validation", 18)):
        clips = []
        for place in range(many):
            level = place % 6
            captions = {f"caption_{n}": f"{WORDS[level]}, {n} of {part}" for n in range(1, 4)}
            clips.append((f"clip{place}", captions, tone(1.8 * level, place + 100 * many)))
        write(root / "clotho", f"clotho_{part}-0", clips)
    return root


class PlainTowers(nn.Module):
    """X-ARES' retrieval model without our shortcuts: each word of a batch passes both layers of the text tower."""

    def __init__(self, dim: int, words: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.audio = nn.Sequential(nn.Linear(dim, 1024), nn.GELU(), nn.Linear(1024, 1024))
        self.words = nn.Embedding(words, 1024)
        self.text = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024))
        self.temperature = nn.Parameter(torch.tensor(1 / 0.07).log())

    def forward(self, clips: torch.Tensor, captions: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        ids = nn.utils.rnn.pad_sequence(captions, True)
        there = nn.utils.rnn.pad_sequence([torch.ones(len(caption)) for caption in captions], True)[..., None]
        text = (self.text(self.words(ids)) * there).sum(1) / there.sum(1)
        return self.audio(self.norm(clips)), text

    def loss(self, audio: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        similar = self.temperature.exp() * audio @ text.T
        a2t = -torch.log_softmax(similar, 1).diagonal().mean()
        t2a = -torch.log_softmax(similar.T, 1).diagonal().mean()
        return (a2t + t2a) / 2 + audio.abs().mean() / audio.norm() + text.abs().mean() / text.norm()


@pytest.mark.parametrize("valid", [[8, 9, 10], [8]])  # with one valid clip every epoch is perfect: the first is kept
def test_trained_retrieval_towers_rank_clips_as_a_plain_reference_does(valid: list[int]) -> None:
    rng = torch.Generator().manual_seed(3)
    clips = torch.randn(14, 8, generator=rng)
    counts = [torch.randint(3, 9, (2,), generator=rng).tolist() for _ in clips]
    captions = [[torch.randint(0, 40, (n,), generator=rng) for n in pair] for pair in counts]
    recipe, rows = Recipe(batch=5, epochs=2, lr=1e-3), ([*range(8)], valid, [11, 12, 13])
    (test_ranks,) = trained_towers(clips, captions, rows, 60, recipe, [42])

    torch.manual_seed(42)
    plain = PlainTowers(8, 60)
    adam, order = torch.optim.Adam(plain.parameters(), lr=1e-3), torch.Generator().manual_seed(42)
    pairs, best, expected = [(row, place) for row in rows[0] for place in range(2)], -1.0, []

    def places(some: list[int]) -> list[dict[str, list[int]]]:
        with torch.no_grad():
            each = [plain(clips[[row]].expand(2, -1), captions[row]) for row in some]
        audio, text = torch.stack([pair[0][0] for pair in each]), torch.cat([pair[1] for pair in each])
        cosine = torch.nn.functional.cosine_similarity(audio[:, None], text[None], dim=-1)
        ranks, backward = cosine.argsort(1, descending=True), cosine.argsort(0, descending=True)
        found = []
        for place in range(len(some)):
            its = (2 * place, 2 * place + 1)
            at = sorted(1 + ranks[place].tolist().index(caption) for caption in its)
            found.append({"captions": at, "clips": [1 + backward[:, n].tolist().index(place) for n in its]})
        return found

    for epoch in range(2):
        adam.param_groups[0]["lr"] = learning_rate(1e-3, epoch, 2)
        for drawn in torch.split(torch.randperm(16, generator=order), 5):
            batch = [pairs[place] for place in drawn]
            adam.zero_grad()
            plain.loss(*plain(clips[[row for row, _ in batch]], [captions[row][at] for row, at in batch])).backward()
            adam.step()
        ranked = places(rows[1])
        score = np.mean([(1 in ranks["captions"]) + ranks["clips"].count(1) / 2 for ranks in ranked])
        if score > best:
            best, expected = float(score), places(rows[2])
    assert test_ranks == expected


def test_retrieval_loss_and_gradients_equal_those_of_a_plain_reference() -> None:
    torch.manual_seed(0)
    ours, clips = Towers(8, 30).double(), torch.randn(4, 8).double()
    captions = [torch.tensor(ids) for ids in ([1, 2, 2, 3], [4], [29, 1], [5, 5, 5])]
    plain = PlainTowers(8, 30).double()
    plain.load_state_dict({name.replace("sharpness", "temperature"): row for name, row in ours.state_dict().items()})
    losses = ours.loss(ours.of_clips(clips), ours.of_captions(captions)), plain.loss(*plain(clips, captions))
    torch.autograd.backward(losses)
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-12)
    theirs = dict(plain.named_parameters())
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        expected = theirs[name.replace("sharpness", "temperature")].grad
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-8, atol=1e-12)


def test_a_tie_in_retrieval_scores_ranks_the_correct_item_last() -> None:
    scores = np.array([0.9, 0.5, 0.5, 0.1, 0.5])
    assert places_of(scores, [0]) == [1]
    assert places_of(scores, [1]) == [4]
    assert places_of(scores, [1, 2, 4]) == [2, 3, 4]  # tied correct items are not counted against each other
    assert places_of(np.zeros(10), [3]) == [10]
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores, chosen = rng.standard_normal(30), rng.choice(30, 5, replace=False)
        order = np.argsort(-scores).tolist()
        assert places_of(scores, chosen) == sorted(order.index(index) + 1 for index in chosen)


def test_recall_and_average_precision_equal_values_by_hand() -> None:
    queries = [[1, 7], [4], [2, 3, 12]]
    assert [recall(queries, k) for k in (1, 2, 5)] == pytest.approx([1 / 3, 2 / 3, 1])
    each = [(1 + 2 / 7) / 2, 1 / 4, (1 / 2 + 2 / 3 + 0) / 3]
    assert average_precision(queries, 10) == pytest.approx(sum(each) / 3)


def test_recall_in_both_retrieval_directions_equals_values_by_hand() -> None:
    scorer, known = Retrieved(), {"answer": "x", "clips": 20, "captions": 40}
    seeds = [{"captions": [1, 9], "clips": [1, 6]}, {"captions": [3, 4], "clips": [2, 11]}]
    verdict = scorer.judge(Record("a", "a", reply=places_to_reply(seeds), reference=known))
    assert verdict["seeds"] == [0.75, 0.0]
    expected = {"clip_to_caption_r1": 0.5, "clip_to_caption_r5": 1, "caption_to_clip_r1": 0.25}
    expected |= {"caption_to_clip_r5": 0.5, "caption_to_clip_r10": 0.75, "clip_to_caption_r10": 1}
    assert {name: verdict["figures"][name] for name in expected} == expected
    assert verdict["figures"]["caption_to_clip_map10"] == pytest.approx(((1 + 1 / 6) / 2 + (1 / 2 + 0) / 2) / 2)
    for odd in ({"captions": [], "clips": [1]}, {"captions": [41], "clips": [1]}, {"captions": [1], "clips": [0]}):
        with pytest.raises(ValueError, match="lacks ranks"):
            scorer.judge(Record("a", "a", reply=places_to_reply([odd]), reference=known))


def test_standard_retrieval_is_tested_on_the_part_that_x_ares_calls_valid(tmp_path: Path, tokenizer: str) -> None:
    task = task_of(tokenizer, epochs=2)
    root, encoder = write_clotho(tmp_path), from_module(BandsEncoder())
    results = results_of(root, tmp_path / "results", encoder, task, seeds=(42, 43))
    ours, released = results["linear"], results[PUBLISHED[0]]
    assert {*results} == {"linear", PUBLISHED[0]}
    for result, part, many in ((ours, "valid", 12), (released, "test", 18)):
        ids = Run.read(result.folder).records
        assert (len(ids), {id_.partition("/")[0] for id_ in ids}) == (many, {part})
        figures = result.summary
        both = (figures["clip_to_caption_r1"], figures["caption_to_clip_r1"])
        assert figures["score"] == pytest.approx(sum(both) / 2, abs=1e-9)
        assert figures["chance"] == 1 / many
        assert figures["clip_to_caption_r5"] > 2.5 / many  # six kinds of clips, two or three of each
        assert len(figures["seeds"]) == 2
        assert figures["intervals"]["score"][0] < figures["score"] < figures["intervals"]["score"][1]


def test_a_different_tokenizer_in_the_same_results_folder_is_refused(tmp_path: Path, tokenizer: str) -> None:
    root, encoder = write_clotho(tmp_path), from_module(BandsEncoder())
    how: dict[str, Any] = {"protocol": "standard", "seeds": (42,)}
    moved, other = shutil.copytree(tokenizer, tmp_path / "moved"), tmp_path / "other"
    for place in (tokenizer, moved):
        results_of(root, tmp_path / "results", encoder, task_of(str(place), epochs=1), **how)
    byte_tokenizer(("<end>", "<more>"), end="<end>", pad="<end>").save_pretrained(other)
    with pytest.raises(RecordError, match="tokenizer"):
        results_of(root, tmp_path / "results", encoder, task_of(str(other)), **how)
    with pytest.raises(ModelError, match="--tokenizer"):
        results_of(root, tmp_path / "more", encoder, task_of(str(tmp_path / "none")), **how)

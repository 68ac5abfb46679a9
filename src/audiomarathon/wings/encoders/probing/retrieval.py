"""X-ARES' retrieval probe: two small networks that map clips and captions to nearby vectors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from audiomarathon.terminal import progress_of
from audiomarathon.wings.encoders.metrics.retrieval import places_of, recall
from audiomarathon.wings.encoders.probing.probe_input import Predicted, Problem, Step
from audiomarathon.wings.encoders.probing.published_probes import learning_rate
from audiomarathon.wings.encoders.scoring.retrieved import Places, places_to_reply
from audiomarathon.wings.encoders.xares.captioned import CaptionedTask
from audiomarathon.wings.encoders.xares.task import Recipe

_WIDTH = 1024
_TEMPERATURE = 0.07


class Towers(nn.Module):
    """One network ("tower") for a clip's embedding and one for a caption's words.

    Initial weights are drawn in the same order as in X-ARES.

    Word vectors start at random, so no language model is involved.
    """

    def __init__(self, dim: int, words: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.audio = nn.Sequential(nn.Linear(dim, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, _WIDTH))
        self.words = nn.Embedding(words, _WIDTH)
        self.text = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, _WIDTH))
        self.sharpness = nn.Parameter(torch.tensor(1 / _TEMPERATURE).log())

    def of_clips(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return a vector for each clip, from embeddings of the shape (clips, dim)."""
        vectors: torch.Tensor = self.audio(self.norm(embeddings))
        return vectors

    def of_captions(self, captions: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return a vector for each caption, which is given as a tensor of token numbers.

        X-ARES averages the last layer's output over words. That layer is linear, so here it is applied to the average.
        The layers before it do not depend on a word's neighbours, so each word is computed once.
        """
        known, places = torch.unique(torch.cat([*captions]), return_inverse=True)
        hidden = self.text[1](self.text[0](self.words(known)))
        starts = torch.tensor([0, *(len(caption) for caption in captions[:-1])], device=places.device).cumsum(0)
        vectors: torch.Tensor = self.text[2](functional.embedding_bag(places, hidden, starts, mode="mean"))
        return vectors

    def loss(self, clips: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
        """Return X-ARES' loss: InfoNCE on dot products in both directions, plus a term that favours sparse vectors."""
        products = self.sharpness.exp() * clips @ captions.T
        right = torch.arange(len(products), device=products.device)
        both = functional.cross_entropy(products, right) + functional.cross_entropy(products.T, right)
        sparse = [each.abs().mean() / each.square().sum().sqrt() for each in (clips, captions)]
        return both / 2 + sparse[0] + sparse[1]


def trained_towers(
    embeddings: torch.Tensor, captions: Sequence[Sequence[torch.Tensor]], rows: Sequence[Sequence[int]], words: int,
    recipe: Recipe, seeds: Sequence[int], step: Step = lambda _n: None
) -> list[list[Places]]:  # fmt: skip
    """Train the two networks with each seed, and rank the test clips.

    The first epoch with the best mean R@1 on valid is kept.

    Return, for each seed, the :data:`Places` (ranks) of each test clip: those of its captions among all captions, and
    the clip's own rank among all clips for each of its captions.

    Parameters
    ----------
    embeddings, captions
        Each clip's embedding, shape (clips, dim), and the token numbers of its captions.
    rows
        Row numbers of the clips to train on, to validate on and to test on.
    words
        Size of the tokenizer's vocabulary. Tokens that are in no caption get no gradient: their vectors are drawn, so
        that the random state is the same as in X-ARES, and then dropped.
    step
        Called after each epoch.
    """
    used = torch.unique(torch.cat([*chain.from_iterable(captions)]))
    numbered = [[torch.searchsorted(used, caption) for caption in clip_captions] for clip_captions in captions]
    train, valid, test = rows
    pairs = [(row, place) for row in train for place in range(len(captions[row]))]
    per_seed = list[list[Places]]()
    for seed in seeds:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            towers = Towers(embeddings.shape[1], words)
        towers.words.weight = nn.Parameter(towers.words.weight.detach()[used.cpu()])
        towers.to(embeddings.device)
        adam = torch.optim.Adam(towers.parameters(), lr=recipe.lr)
        order, kept, highest = torch.Generator().manual_seed(seed), dict[str, torch.Tensor](), -1.0
        for epoch in range(recipe.epochs):
            adam.param_groups[0]["lr"] = learning_rate(recipe.lr, epoch, recipe.epochs)
            for drawn in torch.split(torch.randperm(len(pairs), generator=order), recipe.batch):
                batch = [pairs[place] for place in drawn]
                clips = towers.of_clips(embeddings[[row for row, _ in batch]])
                adam.zero_grad()
                loss = towers.loss(clips, towers.of_captions([numbered[row][place] for row, place in batch]))
                torch.autograd.backward(loss)
                adam.step()
            valued = _places(towers, embeddings, numbered, valid)
            both = sum(
                recall([places["captions"]], 1) + recall([[at] for at in places["clips"]], 1) for places in valued
            )
            score = round(both, 9)  # so that the order of summation does not matter
            step(1)
            if score > highest:
                highest, kept = score, {name: value.clone() for name, value in towers.state_dict().items()}
        towers.load_state_dict(kept)
        per_seed.append(_places(towers, embeddings, numbered, test))
    return per_seed


@torch.no_grad()
def _places(
    towers: Towers, embeddings: torch.Tensor, captions: Sequence[Sequence[torch.Tensor]], rows: Sequence[int]
) -> list[Places]:
    """Rank the clips in `rows` and their captions by the cosine of their vectors.

    Return, for each clip, the rank of each of its captions among all captions, and, for each of its captions, the rank
    of the clip among all clips.
    """
    clips = towers.of_clips(embeddings[[*rows]])
    texts = towers.of_captions([caption for row in rows for caption in captions[row]])
    unit = [functional.normalize(each.double(), dim=1).cpu().numpy() for each in (clips, texts)]
    cosines = (unit[0] @ unit[1].T).round(12)
    ends = np.cumsum([len(captions[row]) for row in rows])
    caption_ranges = [range(end - len(captions[row]), end) for end, row in zip(ends, rows, strict=True)]
    return [
        {
            "captions": places_of(cosines[place], its),
            "clips": [places_of(cosines[:, caption], [place])[0] for caption in its],
        }
        for place, its in enumerate(caption_ranges)
    ]


def predict_places(problem: Problem) -> list[Predicted]:
    """Rank all captions for each test clip, and all test clips for each caption.

    Return (clip, reply's text, reference) for each test clip. For each seed, the text has the ranks of the clip's
    captions among all captions, and the clip's rank among all clips for each of its captions.
    """
    task, clips, device = problem.encoded.task, problem.clips, problem.encoded.device
    assert isinstance(task, CaptionedTask)
    tokenizer = task.load_tokenizer()
    captions = [[torch.tensor(ids, device=device) for ids in tokenizer([*clip.facts]).input_ids] for clip in clips]
    embeddings, predicted = torch.as_tensor(problem.embeddings, device=device), list[Predicted]()
    for split in problem.splits:
        rows = [problem.rows(*parts) for parts in (split.train, (split.valid,), (split.test,))]
        with progress_of(task.recipe.epochs * len(problem.seeds), f"{task.name} ({problem.setting})", "epoch") as step:
            seeds = trained_towers(embeddings, captions, rows, len(tokenizer), task.recipe, problem.seeds, step)
        tested = [clips[row] for row in rows[2]]
        many = {"clips": len(tested), "captions": sum(len(clip.facts) for clip in tested)}
        predicted += [
            (clip, places_to_reply(places), {"answer": "; ".join(clip.facts), **many})
            for clip, places in zip(tested, zip(*seeds, strict=True), strict=True)
        ]
    return predicted

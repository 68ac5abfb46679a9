"""Probes of embeddings: closed forms against definitions, X-ARES' probes against its loop written out in torch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import average_precision_score

from audiomarathon.errors import DataError
from audiomarathon.wings.encoders.metrics.average_precision import average_precisions, parts_in_mean
from audiomarathon.wings.encoders.probing import linear_and_knn as standard
from audiomarathon.wings.encoders.probing import published_probes as published
from audiomarathon.wings.encoders.probing import scores
from audiomarathon.wings.encoders.probing.clips import Clips, Split, held_out, one_hot, rotated

FOLDS = ("a", "b", "c", "d")


def made(clips: int = 120, dim: int = 12, classes: int = 3, *, noise: float = 1.5, seed: int = 0) -> Clips:
    """Clips of classes with Gaussian embeddings, in folds of unequal size."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(classes, size=clips)
    centres = rng.standard_normal((classes, dim))
    embeddings = (centres[targets] + noise * rng.standard_normal((clips, dim))).astype(np.float32)
    return Clips(embeddings, targets, rng.choice(FOLDS, clips, p=[0.4, 0.3, 0.2, 0.1]))


def tagged(**settings: Any) -> Clips:
    """Clips with several labels each."""
    clips = made(classes=4, **settings)
    rng = np.random.default_rng(1)
    return replace(clips, targets=one_hot(clips.targets, 4).astype(np.int64) | (rng.random((120, 4)) < 0.2))


def moments(clips: Clips, *parts: str) -> standard.Moments:
    rows = clips.rows(*parts)
    return standard.moments(standard.standardised(clips.embeddings[rows]), clips.targets[rows], clips.classes)


def test_standardised_embeddings_equal_a_layer_norm_without_gain_and_bias() -> None:
    x = np.vstack([made().embeddings, np.full((1, 12), 3.0), 1e4 * np.arange(12.0)[None]])
    expected = torch.nn.functional.layer_norm(torch.tensor(x, dtype=torch.float64), (12,)).numpy()
    np.testing.assert_allclose(standard.standardised(x), expected, atol=1e-12)


class TestClosedForms:
    @pytest.mark.parametrize("penalty", [1e-3, 0.3, 20.0])
    def test_scores_of_the_lda_probe_equal_the_log_posterior_of_a_gaussian_model(self, penalty: float) -> None:
        clips = made()
        x, y = standard.standardised(clips.embeddings), clips.targets
        (head,) = standard.lda(moments(clips, *FOLDS), [penalty])
        centres = [x[y == c].mean(0) for c in range(3)]
        within = sum(np.outer(row - centres[c], row - centres[c]) for row, c in zip(x, y, strict=True)) / len(x)
        inverse = np.linalg.inv(within + penalty * np.eye(12))
        joint = [np.log((y == c).mean()) - ((x - m) @ inverse * (x - m)).sum(1) / 2 for c, m in enumerate(centres)]
        posterior = np.exp(joint - np.logaddexp.reduce(joint)).T
        ours = np.exp(head(x) - np.logaddexp.reduce(head(x), axis=1)[:, None])
        np.testing.assert_allclose(ours, posterior, atol=1e-9)

    @pytest.mark.parametrize("penalty", [1e-4, 1.0])
    def test_ridge_predictions_equal_those_of_scikit_learn(self, penalty: float) -> None:
        clips = tagged()
        x, y = standard.standardised(clips.embeddings), clips.targets
        (head,) = standard.ridge(moments(clips, *FOLDS), [penalty])
        theirs = Ridge(alpha=penalty * len(x)).fit(x, y)
        np.testing.assert_allclose(head(x), theirs.predict(x), atol=1e-9)

    @pytest.mark.parametrize("clips", [made(), tagged()], ids=["classes", "labels"])
    def test_feature_moments_of_two_folds_add_up_to_the_moments_of_all_clips(
        self, clips: Clips, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(standard, "_BLOCK", 7)
        summed = moments(clips, "a") + moments(clips, "b")
        for whole in (moments(clips, "a", "b"), standard._moments_of(clips, clips.rows("a", "b"))):
            for name in ("gram", "cross", "inputs", "targets", "clips"):
                np.testing.assert_allclose(getattr(whole, name), getattr(summed, name), atol=1e-10)

    def test_a_class_without_clips_is_never_predicted_by_lda(self) -> None:
        clips = made()
        few = replace(clips, targets=np.where(clips.targets == 1, 3, clips.targets))
        for head in standard.lda(moments(few, *FOLDS), standard.LDA_PENALTIES):
            logits = head(standard.standardised(few.embeddings))
            assert np.isneginf(logits[:, 1]).all()
            assert np.isfinite(logits[:, [0, 2, 3]]).all()

    def test_the_linear_probe_separates_classes_with_fewer_clips_than_dimensions(self) -> None:
        clips = made(40, dim=300, noise=0.5)
        predictions = standard.linear_probe(clips, rotated(FOLDS))
        assert scores.figure(predictions.scores, clips.targets[predictions.rows]) == 1.0


class TestLinearProbe:
    @pytest.mark.parametrize("clips", [made(), tagged()], ids=["lda", "ridge"])
    def test_the_regularisation_penalty_of_the_linear_probe_is_chosen_on_the_validation_fold(
        self, clips: Clips
    ) -> None:
        fit, grid = standard.lda, standard.LDA_PENALTIES
        if clips.multi_label:
            fit, grid = standard.ridge, standard.RIDGE_PENALTIES
        predictions = standard.linear_probe(clips, rotated(FOLDS))
        rows, expected = [], []
        x, y = standard.standardised(clips.embeddings), clips.targets
        for split, chosen in zip(rotated(FOLDS), predictions.penalties, strict=True):
            valid, test = clips.rows(split.valid), clips.rows(split.test)
            figures = [scores.figure(head(x[valid]), y[valid]) for head in fit(moments(clips, *split.train), grid)]
            assert chosen == max(p for p, figure in zip(grid, figures, strict=True) if figure == max(figures))
            (head,) = fit(moments(clips, *split.train, split.valid), [chosen])
            rows += test.tolist()
            expected.append(head(x[test]))
        assert sorted(rows) == list(range(120))
        assert predictions.rows.tolist() == rows
        np.testing.assert_allclose(predictions.scores, np.concatenate(expected), atol=1e-8)

    @pytest.mark.parametrize("split", [Split(("a", "b"), "c", "c"), Split(("a", "b"), "b", "c"), Split((), "b", "c")])
    def test_probes_refuse_a_split_whose_train_validation_and_test_folds_overlap_or_are_empty(
        self, split: Split
    ) -> None:
        for probe in (standard.linear_probe, standard.knn):
            with pytest.raises(DataError, match="must be different parts"):
                probe(made(), [split])


def cosine_votes(clips: Clips, known: np.ndarray, asked: np.ndarray, centred: bool) -> np.ndarray:
    x = clips.embeddings.astype(np.float64)
    x = x - x[known].mean(0) if centred else x
    votes = np.zeros((len(asked), clips.classes))
    for place, i in enumerate(asked):
        near = sorted(((x[i] @ x[j] / np.sqrt(x[i] @ x[i] * (x[j] @ x[j])), j) for j in known), reverse=True)
        for cosine, j in near[:10]:
            votes[place, clips.targets[j]] += np.exp(cosine / 0.07)
    return votes / votes.sum(1)[:, None]


class TestNeighbours:
    @pytest.mark.parametrize("centred", [False, True])
    def test_knn_equals_a_loop_over_clips(self, centred: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        clips = made()
        monkeypatch.setattr(standard, "_SIMILARITIES", 500)
        predictions = standard.knn(clips, rotated(FOLDS), centred=centred)
        expected = [
            cosine_votes(clips, clips.rows(*split.train, split.valid), clips.rows(split.test), centred)
            for split in rotated(FOLDS)
        ]
        np.testing.assert_allclose(predictions.scores, np.concatenate(expected), atol=1e-9)

    @pytest.mark.parametrize("loudest", [2, 5, 9])
    def test_all_clips_tied_with_the_tenth_neighbour_vote_in_knn(self, loudest: int) -> None:
        """Twelve copies, some louder (their cosines differ by rounding), seven of class 1: all twelve vote."""
        copies = np.linspace(0.1, loudest, 12)[:, None] * [1.1, 2.3, 0.17]
        x = np.vstack([copies, -copies[:1], copies[4:5] / 3, -copies[:1]])
        targets = np.array([0] * 5 + [1] * 7 + [0, 0, 0])
        clips = Clips(x, targets, np.array(["train"] * 13 + ["test", "valid"]))
        predictions = standard.knn(clips, [Split(("train",), "valid", "test")])
        np.testing.assert_allclose(predictions.scores, [[5 / 12, 7 / 12]])

    def test_knn_as_published_normalises_train_embeddings_per_feature_instead_of_per_clip(self) -> None:
        clips = made()
        predictions = published.knn(clips, rotated(FOLDS, as_published=True))
        ours = iter(predictions.scores)
        for fold in FOLDS:
            train, test = clips.embeddings[clips.parts != fold], clips.embeddings[clips.parts == fold]
            y = clips.targets[clips.parts != fold]
            for clip in test:
                similar = (train / np.sqrt((train**2).sum(axis=0))) @ (clip / np.linalg.norm(clip))
                nearest = np.argsort(similar)[-10:]
                weights = np.exp(similar[nearest] / 0.07)
                expected = np.bincount(y[nearest], weights / weights.sum(), 3)
                np.testing.assert_allclose(next(ours), expected, atol=1e-5)

    def test_knn_works_with_two_train_clips(self) -> None:
        clips = Clips(np.eye(4), np.array([0, 1, 0, 1]), np.array(FOLDS))
        assert [len(probe.knn(clips, rotated(FOLDS)).scores) for probe in (standard, published)] == [4, 4]

    @pytest.mark.parametrize("knn", [standard.knn, published.knn])
    def test_knn_refuses_multi_label_tasks(self, knn: Callable[..., Any]) -> None:
        with pytest.raises(DataError, match="single-label"):
            knn(tagged(), rotated(FOLDS))


PROBES: dict[str, Callable[[Clips], Any]] = {
    "linear": lambda clips: standard.linear_probe(clips, rotated(FOLDS)),
    "cosine": lambda clips: standard.knn(clips, rotated(FOLDS)),
    "centred": lambda clips: standard.knn(clips, rotated(FOLDS), centred=True),
    "published": lambda clips: published.knn(clips, rotated(FOLDS, as_published=True)),
}


@pytest.mark.parametrize("name", PROBES)
class TestEveryProbe:
    def test_a_probe_predicts_the_only_class_if_there_is_one_class(self, name: str) -> None:
        assert not PROBES[name](replace(made(), targets=np.zeros(120, dtype=np.int64))).predicted.any()

    @pytest.mark.filterwarnings("error")
    def test_a_probe_predicts_the_majority_class_for_constant_embeddings(self, name: str) -> None:
        targets = np.arange(120) % 5 // 2  # 0, 0, 1, 1, 2
        targets[:60] = 1
        clips = replace(made(), embeddings=np.zeros((120, 12)), targets=targets)
        predictions = PROBES[name](clips)
        assert predictions.scores.shape == (120, 3)
        if name != "published":  # there, the first ten of the equally similar clips vote
            assert (predictions.predicted == 1).all()


@pytest.mark.parametrize("probe", [*PROBES.values(), lambda c: published.linear_probe(c, rotated(FOLDS), epochs=1)])
def test_probes_accept_float16_embeddings_and_int32_targets(probe: Callable[[Clips], Any]) -> None:
    clips = made()
    probe(replace(clips, embeddings=clips.embeddings.astype(np.float16), targets=clips.targets.astype(np.int32)))


def written_out(
    clips: Clips, split: Split, head: torch.nn.Linear, generator: torch.Generator, batch: int, epochs: int
) -> list[Any]:
    """Train by X-ARES' loop in plain torch; return the logits of the best and of the last epoch."""
    model = torch.nn.Sequential(torch.nn.LayerNorm(head.in_features), head)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.tensor(clips.embeddings)
    y = torch.tensor(clips.targets, dtype=torch.float32 if clips.multi_label else torch.int64)
    loss = torch.nn.BCEWithLogitsLoss() if clips.multi_label else torch.nn.CrossEntropyLoss()
    train, valid, test = (torch.tensor(clips.rows(*names)) for names in (split.train, [split.valid], [split.test]))
    highest, best = -1.0, None
    for epoch in range(epochs):
        adam.param_groups[0]["lr"] = 1e-3 * (0.55 + 0.45 * np.cos(np.pi * epoch / epochs))
        order = train[torch.randperm(len(train), generator=generator)]
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            adam.zero_grad()
            loss(model(x[rows]), y[rows]).backward()
            adam.step()
        with torch.no_grad():
            logits, right, last = model(x[valid]).numpy(), clips.targets[valid.numpy()], model(x[test]).numpy()
        exact = float((logits.argmax(-1) == right).mean()) if not clips.multi_label else 0.0
        score = average_precision_score(right, logits, average="macro") if clips.multi_label else exact
        if score > highest:
            highest, best = score, last
    return [best, last]


def test_published_probes_use_one_torch_thread_and_restore_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = torch.get_num_threads(), list[int]()
    real = published.Heads.step
    monkeypatch.setattr(published.Heads, "step", lambda *how: (seen.append(torch.get_num_threads()), real(*how))[1])
    torch.set_num_threads(2)
    try:
        published.linear_probe(made(), rotated(FOLDS, as_published=True), epochs=1)
        assert (torch.get_num_threads(), {*seen}) == (2, {1})
    finally:
        torch.set_num_threads(before)


class TestPublishedLinearProbe:
    @pytest.mark.parametrize("clips", [made(), tagged()], ids=["cross-entropy", "binary cross-entropy"])
    @pytest.mark.parametrize("as_published", [False, True], ids=["own validation", "validation is test"])
    def test_logits_of_the_published_linear_probe_equal_those_of_the_x_ares_training_loop(
        self, clips: Clips, as_published: bool
    ) -> None:
        """Folds are unequal, last batches are short, and each of two seeds has its own head and order."""
        splits = rotated(FOLDS, as_published=as_published)
        trained = published.linear_probe(clips, splits, seeds=(42, 7), batch=32, epochs=3)
        assert trained.logits.shape == trained.last_logits.shape == (2, 120, clips.classes)
        for place, seed in enumerate((42, 7)):
            heads, generator = published.initial_heads(12, clips.classes, 4, seed), torch.Generator().manual_seed(seed)
            expected = [written_out(clips, *fold, generator, 32, 3) for fold in zip(splits, heads, strict=True)]
            for ours, theirs in zip((trained.logits, trained.last_logits), zip(*expected, strict=True), strict=True):
                np.testing.assert_allclose(ours[place], np.concatenate(theirs), atol=2e-6)
        assert sorted(trained.rows.tolist()) == list(range(120))

    @pytest.mark.parametrize("clips", [made(), tagged()], ids=["cross-entropy", "binary cross-entropy"])
    def test_gradients_of_the_published_linear_probe_equal_those_of_torch(self, clips: Clips) -> None:
        """Adam cancels constant factors of gradients, so equal weights do not prove equal gradients."""
        heads = published.Heads(published.initial_heads(12, clips.classes, 2, 42))
        heads.gain.uniform_(0.5, 2)
        heads.shift.uniform_(-1, 1)
        names = ("weight", "bias", "gain", "shift")
        leaves = [getattr(heads, name).clone().requires_grad_() for name in names]
        x = torch.tensor(clips.embeddings[:20]).view(2, 10, 12)
        y = torch.tensor(clips.targets[:20]).unflatten(0, (2, 10))
        for place in range(2):
            weight, bias, gain, shift = (leaf[place] for leaf in leaves)
            logits = (x[place] * gain + shift) @ weight.T + bias
            loss = torch.nn.BCEWithLogitsLoss() if clips.multi_label else torch.nn.CrossEntropyLoss()
            loss(logits, y[place].float() if clips.multi_label else y[place]).backward()
        heads.step(x, y, 0.0)
        for name, leaf in zip(names, leaves, strict=True):
            np.testing.assert_allclose(getattr(heads, name).grad, leaf.grad, atol=1e-6)

    def test_initial_weights_of_the_published_linear_probe_equal_those_of_torch(self) -> None:
        torch.manual_seed(1)
        before = torch.get_rng_state()
        heads = published.initial_heads(12, 3, 2, 42)
        assert torch.equal(before, torch.get_rng_state())
        torch.manual_seed(42)
        for layer in heads:
            torch.nn.LayerNorm(12)  # X-ARES makes it first
            torch.testing.assert_close(layer.state_dict(), torch.nn.Linear(12, 3).state_dict(), rtol=0, atol=0)

    def test_the_published_linear_probe_keeps_the_weights_of_the_first_of_equally_good_epochs(self) -> None:
        clips = made(noise=0.01)
        easy = replace(clips, embeddings=clips.embeddings * 100)
        splits = [Split(("a", "c"), "b", "d")]
        long = published.linear_probe(easy, splits, seeds=(42,), epochs=30, lr=0.1)
        first = published.linear_probe(easy, splits, seeds=(42,), epochs=1, lr=0.1)
        assert scores.published_figure(long.logits[0], easy.targets[long.rows]) == 1.0
        np.testing.assert_allclose(long.logits, first.logits, atol=1e-5)


class TestAveragePrecision:
    @pytest.mark.parametrize("decimals", [1, 9], ids=["ties", "no ties"])
    def test_average_precision_equals_that_of_scikit_learn(self, decimals: int) -> None:
        rng = np.random.default_rng(0)
        values, targets = rng.standard_normal((40, 5)).round(decimals), (rng.random((40, 5)) < 0.3).astype(np.int64)
        targets[:, 4] = 0
        precisions = average_precisions(values, targets)
        expected = [average_precision_score(targets[:, label], values[:, label]) for label in range(4)]
        np.testing.assert_allclose(precisions, [*expected, np.nan], atol=1e-12)
        assert scores.figure(values, targets) == pytest.approx(np.mean(expected))
        assert scores.published_figure(values, targets) == pytest.approx(np.sum(expected) / 5)
        assert scores.figure(values, np.zeros_like(targets)) == 0.0
        assert np.isnan(parts_in_mean(values, np.zeros_like(targets))).all()

    @pytest.mark.parametrize("decimals", [1, 9], ids=["ties", "no ties"])
    def test_the_mean_of_the_terms_of_single_clips_equals_the_average_precision(self, decimals: int) -> None:
        rng = np.random.default_rng(1)
        values, targets = rng.standard_normal((30, 3)).round(decimals), (rng.random((30, 3)) < 0.4).astype(np.int64)
        parts = parts_in_mean(values, targets)

        def weighted(weights: np.ndarray) -> float:
            return float(average_precision_score(targets, values, average="macro", sample_weight=weights))

        assert parts.mean() == pytest.approx(weighted(np.ones(30)))
        for clip in range(30):
            more, less = np.ones(30), np.ones(30)
            more[clip], less[clip] = 1 + 1e-5, 1 - 1e-5
            slope = (weighted(more) - weighted(less)) / 2e-5
            assert parts[clip] - parts.mean() == pytest.approx(30 * slope, abs=1e-5)


class TestSplits:
    def test_rotating_folds_gives_each_fold_one_turn_as_the_test_part(self) -> None:
        assert rotated(["a", "b", "c"]) == [Split(("c",), "b", "a"), Split(("a",), "c", "b"), Split(("b",), "a", "c")]
        assert rotated(["a", "b"], as_published=True) == [Split(("b",), "a", "a"), Split(("a",), "b", "b")]

    @pytest.mark.parametrize(("folds", "as_published"), [("ab", False), ("a", True), ("aab", False), ("", True)])
    def test_rotating_too_few_folds_is_refused(self, folds: str, as_published: bool) -> None:
        with pytest.raises(DataError, match="or more, all different"):
            rotated(list(folds), as_published=as_published)

    def test_whole_clusters_are_held_out_for_validation_with_about_15_percent_of_each_class(self) -> None:
        rng = np.random.default_rng(0)
        targets, clusters = rng.integers(4, size=2000), [f"speaker {i}" for i in rng.integers(100, size=2000)]
        chosen = held_out(clusters, targets)
        assert not {*np.array(clusters)[chosen]} & {*np.array(clusters)[~chosen]}
        shares = [chosen[targets == label].mean() for label in range(4)]
        assert shares == pytest.approx([0.15] * 4, abs=0.04)
        order = rng.permutation(2000)
        np.testing.assert_array_equal(held_out(np.array(clusters)[order].tolist(), targets[order]), chosen[order])
        np.testing.assert_array_equal(held_out(clusters, one_hot(targets, 4).astype(int)), chosen)
        assert (held_out(clusters, targets, seed=1) != chosen).any()

    def test_one_of_two_large_clusters_is_held_out_for_validation(self) -> None:
        assert held_out(["x", "y", "x", "y"], np.array([0, 0, 1, 1])).sum() == 2
        with pytest.raises(DataError, match="two or more"):
            held_out(["x", "x"], np.array([0, 1]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embeddings": np.array([[1.0, 2], [np.nan, 0], [1, 1]])}, "row 1 holds NaN or infinity"),
        ({"embeddings": np.array([[1.0, 2], [3, 0], [1, -np.inf]])}, "row 2 holds NaN or infinity"),
        ({"embeddings": np.ones(3)}, r"shape \(3,\); allowed: \(clips, dim\)"),
        ({"embeddings": np.ones((0, 2))}, r"shape \(0, 2\)"),
        ({"targets": np.array([0, 1])}, "a target and a part for each embedding"),
        ({"parts": np.array(["a"])}, "a target and a part for each embedding"),
        ({"targets": np.array([0, -1, 1])}, "from -1 to 1; allowed: integers, class numbers from 0"),
        ({"targets": np.array([0.0, 1, 1])}, "float64"),
        ({"targets": np.array([[0, 1], [2, 0], [1, 1]])}, "from 0 to 2; allowed: integers, 0 or 1"),
    ],
)
def test_clips_with_invalid_embeddings_or_targets_or_split_parts_are_a_one_line_error(
    change: dict[str, Any], message: str
) -> None:
    good = {"embeddings": np.eye(3), "targets": np.array([0, 1, 0]), "parts": np.array(["a", "b", "c"])}
    with pytest.raises(DataError, match=message) as refused:
        Clips(**(good | change))
    assert "\n" not in str(refused.value)


def test_the_error_for_a_split_part_without_clips_names_the_part() -> None:
    with pytest.raises(DataError, match="no clips in z; parts with clips: a, b, c, d"):
        made().rows("a", "z")

"""Agreement of judges against scikit-learn, krippendorff, and worked examples."""

from __future__ import annotations

import krippendorff
import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from audiomarathon.judges.agreement import agreement, cohen_kappa, krippendorff_alpha
from audiomarathon.judges.anchors import certificate_of, wilson


def test_kappa_and_alpha_match_reference_libraries_on_random_tables() -> None:
    rng = np.random.default_rng(0)
    for _ in range(80):
        n, levels = int(rng.integers(3, 40)), int(rng.integers(2, 6))
        table = rng.integers(0, levels, (n, 3)).tolist()
        first, second = [row[0] for row in table], [row[1] for row in table]
        for scale, weights in (("nominal", None), ("ordinal", "quadratic")):
            kappa = cohen_kappa(first, second, scale)
            if kappa is not None:
                expected = cohen_kappa_score(first, second, labels=range(levels), weights=weights)
                assert kappa == pytest.approx(expected, abs=1e-12)
            holed = [[None if rng.random() < 0.2 else rating for rating in row] for row in table]
            alpha = krippendorff_alpha(holed, scale)
            data = np.array([[np.nan if rating is None else rating for rating in row] for row in holed], float).T
            if alpha is not None:
                expected = krippendorff.alpha(data, level_of_measurement=scale)
                assert alpha == pytest.approx(expected, abs=1e-12)


def test_agreement_of_two_judges_equals_cohens_published_example() -> None:
    first, second = ["a"] * 25 + ["b"] * 25, ["a"] * 20 + ["b"] * 5 + ["a"] * 10 + ["b"] * 15
    agreed = agreement({"A": first, "B": second, "C": [None] * 50}, "nominal")
    pair = agreed["pairs"]["A / B"]
    assert (pair["n"], pair["agree"]) == (50, 0.7)
    assert pair["kappa"] == pytest.approx(0.4)  # Cohen 1960: (0.7 − 0.5) / (1 − 0.5)
    assert agreed["pairs"]["A / C"] == {"n": 0, "agree": None, "kappa": None}
    assert agreed["n"] == 50


def test_agreement_of_judges_without_common_or_without_differing_ratings_is_none() -> None:
    assert cohen_kappa([2, 2, 2], [2, 2, 2]) is None
    assert cohen_kappa([], []) is None
    assert krippendorff_alpha([[1, 1], [1, None]], "ordinal") is None
    assert krippendorff_alpha([], "nominal") is None
    assert agreement({}, "nominal") == {"n": 0, "alpha": None, "pairs": {}}


def test_the_quality_check_of_a_judge_names_the_kinds_of_replies_that_it_judges_badly() -> None:
    assert certificate_of([("a", True), ("a", True), ("b", True), ("b", False)]).weak == ["b"]
    assert wilson(8, 10) == pytest.approx((0.4901624715, 0.9433178485))

"""What is made of members' probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

from phalanx.ensembles import Prediction, score

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 4, 500)
LOGITS = 2.0 * np.eye(4)[LABELS] + RNG.normal(size=(3, 500, 4))
PREDICTION = Prediction(softmax(LOGITS, -1))


def test_the_mean_and_weights():
    np.testing.assert_allclose(PREDICTION.mean, PREDICTION.probabilities.mean(0))
    weighted = PREDICTION.weighted([1, 0, 3])
    np.testing.assert_allclose(weighted.mean, PREDICTION.probabilities[[0, 2, 2, 2]].mean(0))
    np.testing.assert_allclose(weighted.subset([2]).mean, PREDICTION.probabilities[2])
    np.testing.assert_allclose(PREDICTION.subset([0, 1]).mean, PREDICTION.probabilities[:2].mean(0))


@pytest.mark.parametrize("weights", [[1, 2], [0, 0, 0], [1, -1, 1], [1, np.nan, 1], [1, np.inf, 1]])
def test_weights_that_are_none(weights):
    with pytest.raises(ValueError, match="a weight of at least 0 for each of 3 members"):
        PREDICTION.weighted(weights)


@pytest.mark.parametrize("members", [[], [3], [-4], [0.5], [[0, 1]]])
def test_members_that_there_are_not(members):
    with pytest.raises(ValueError, match="give numbers of members, from 0 to 2, one at least"):
        PREDICTION.subset(members)


def test_one_member_and_members_of_a_mask():
    np.testing.assert_allclose(PREDICTION.subset(-1).mean, PREDICTION.probabilities[2])
    np.testing.assert_allclose(PREDICTION.subset([True, False, True]).mean, PREDICTION.probabilities[[0, 2]].mean(0))
    with pytest.raises(ValueError, match="not all of them 0"):
        PREDICTION.weighted([1, 0, 0]).subset([1, 2])


@pytest.mark.parametrize("labels", [LABELS - 1, LABELS + 1, LABELS.astype(float)])
def test_labels_that_are_no_classes(labels):
    for judge in (PREDICTION.scores, PREDICTION.member_scores, PREDICTION.calibration, PREDICTION.temperature):
        with pytest.raises(ValueError, match="expected whole numbers from 0 to 3, got"):
            judge(labels)


def test_members_that_have_diverged_are_named():
    lost = Prediction(np.where(np.arange(3)[:, None, None] == 1, np.nan, PREDICTION.probabilities))
    for judge in (lost.scores, lost.member_scores, lost.calibration, lost.temperature):
        with pytest.raises(ValueError, match=r"members \[1\] predict probabilities that are not finite"):
            judge(LABELS)
    lost.subset([0, 2]).scores(LABELS)


def test_members_that_agree_disagree_on_nothing():
    alike = Prediction(np.repeat(PREDICTION.probabilities[:1], 4, axis=0))
    np.testing.assert_allclose(alike.vote_entropy, 0.0, atol=1e-10)
    np.testing.assert_allclose(alike.mutual_information, 0.0, atol=1e-10)


def test_members_that_are_sure_of_different_classes():
    opposed = Prediction(np.array([[[1.0, 0.0]], [[0.0, 1.0]]]))
    np.testing.assert_allclose(opposed.vote_entropy, np.log(2), rtol=1e-6)
    np.testing.assert_allclose(opposed.mutual_information, np.log(2), rtol=1e-6)
    unsure = Prediction(np.full((2, 1, 2), 0.5))
    np.testing.assert_allclose(unsure.mutual_information, 0.0, atol=1e-10)


def test_scores_of_known_probabilities():
    p = np.array([[0.8, 0.2], [0.4, 0.6], [0.9, 0.1]])
    found = score(p, np.array([0, 1, 1]))
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.nll == pytest.approx(-np.log([0.8, 0.6, 0.1]).mean())
    assert found.brier == pytest.approx(np.mean([2 * 0.2**2, 2 * 0.4**2, 2 * 0.9**2]))
    with pytest.raises(ValueError, match=r"3 rows were predicted, but labels have shape \(2,\)"):
        score(p, np.array([0, 1]))


def test_the_ensemble_is_better_than_its_mean_member():
    whole, each = PREDICTION.scores(LABELS), PREDICTION.member_scores(LABELS)
    assert whole.nll < np.mean([s.nll for s in each]) and whole.accuracy > np.mean([s.accuracy for s in each])


@pytest.mark.parametrize("true", [0.5, 1.0, 3.0])
def test_the_temperature_is_found(true):
    rng = np.random.default_rng(1)
    p = softmax(2 * rng.normal(size=(20_000, 4)), -1)
    labels = (p.cumsum(-1) > rng.random((20_000, 1))).argmax(-1)
    sharpened = Prediction(softmax(np.log(p) * true, -1)[None])
    # the estimate's standard error is some 1.5% of it
    assert sharpened.temperature(labels) == pytest.approx(true, rel=0.08)
    np.testing.assert_allclose(sharpened.tempered(true), p, atol=5e-4)


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.inf])
def test_temperatures_that_are_none(temperature):
    with pytest.raises(ValueError, match="the temperature must be positive"):
        PREDICTION.tempered(temperature)

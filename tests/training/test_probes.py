"""Structural probes: the published definitions, and trainings of them."""

import random

import numpy as np
import pytest
import torch

from bertworks.metrics.trees import GoldTree, tree_metrics
from bertworks.training import probes
from bertworks.training.probes import WordStates, predictions, probe_outputs, train_probe
from tests.support.treebanks import random_sentence


def words_of(states: list[np.ndarray]) -> WordStates:
    return WordStates(np.concatenate(states), np.cumsum([0, *map(len, states)]))


@pytest.mark.parametrize("kind", ["distance", "depth"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-5)])
def test_outputs_are_the_definition(kind: str, dtype: torch.dtype, tolerance: float):
    torch.manual_seed(0)
    matrix, x = torch.randn(8, 5, dtype=dtype) / 4, torch.randn(3, 7, 8, dtype=dtype)
    matrix.requires_grad_()
    mapped = x @ matrix
    oracle = (
        (mapped[:, :, None] - mapped[:, None]).square().sum(-1)
        if kind == "distance"
        else mapped.square().sum(-1)
    )
    outputs = probe_outputs(matrix, x, kind)
    weights = torch.randn(outputs.shape, dtype=dtype)
    torch.testing.assert_close(outputs, oracle, atol=tolerance, rtol=tolerance)
    (gradient,), (expected,) = (
        torch.autograd.grad((y * weights).sum(), matrix) for y in (outputs, oracle)
    )
    torch.testing.assert_close(gradient, expected, atol=1e-4 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("kind", ["distance", "depth"])
def test_the_loss_is_that_of_the_paper(kind: str):
    """Sentence by sentence, without padding: the sum of absolute errors by the number of pairs, or
    of words."""
    rng = np.random.default_rng(0)
    lengths = [3, 7, 1, 5]
    words = words_of([rng.normal(size=(n, 6)).astype(np.float16) for n in lengths])
    gold = [rng.integers(0, 5, (n, n) if kind == "distance" else n) for n in lengths]
    matrix = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    loss = float(probes._loss(matrix, words, gold, [3, 0, 2, 1], kind))
    outputs = predictions(matrix, words, range(4), kind)
    assert [one.shape for one in outputs] == [one.shape for one in gold]
    assert loss == pytest.approx(sum(np.abs(a - b).mean() for a, b in zip(outputs, gold)), rel=1e-5)


def trained(*arguments, **settings) -> probes.Probe:
    """The probe at the end of its training."""
    *_, (_, probe) = train_probe(*arguments, **settings)
    return probe


def planted(count: int, seed: int = 0) -> tuple[WordStates, list[GoldTree]]:
    """States that have the trees in them, in half of their directions: a word is the sum of the
    edges above it, each a direction by itself, so that squared distances of words are those in the
    tree. The other half is noise."""
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    turn, states, gold = np.linalg.qr(np.random.default_rng(9).normal(size=(24, 24)))[0], [], []
    for sentence in (random_sentence(draw, 5, 10) for _ in range(count)):
        x = np.zeros((len(sentence.words), 24))
        for word in range(len(x)):
            above = word
            while sentence.heads[above] >= 0:
                x[word, above] = 12
                above = sentence.heads[above]
        x[:, 12:] = rng.normal(size=(len(x), 12)) * 12
        states.append((x @ turn).astype(np.float16))
        gold.append(GoldTree(sentence.heads, sentence.is_punctuation))
    return words_of(states), gold


def test_a_probe_finds_trees_that_are_in_the_states():
    words, gold = planted(440)
    train, dev, test = range(360), range(360, 400), list(range(400, 440))
    outputs = []
    for kind, truth in (
        ("distance", [t.distances for t in gold]),
        ("depth", [t.depths for t in gold]),
    ):
        probe = trained(words, truth, train, dev, kind=kind, rank=16, epochs=40)
        assert probe.dev_loss < 0.2
        outputs.append(predictions(probe.matrix, words, test, kind))
    metrics = tree_metrics([gold[n] for n in test], *outputs)
    assert {name for name, metric in metrics.items() if metric.value == 1} >= {
        "uuas",
        "root_accuracy",
    }
    # ties in the tree, none in what is predicted
    assert all(metric.value > 0.9 for metric in metrics.values())


def test_a_training_is_a_function_of_its_seed():
    words, gold = planted(60)
    truth = [tree.distances for tree in gold]

    def matrix(seed: int) -> torch.Tensor:
        settings = {"kind": "distance", "rank": 5, "epochs": 3, "seed": seed}
        return trained(words, truth, range(50), range(50, 60), **settings).matrix

    assert torch.equal(matrix(0), matrix(0))
    assert not torch.equal(matrix(0), matrix(1))
    assert matrix(0).shape == (24, 5)


def test_the_best_epoch_is_kept_and_five_without_gain_end_the_training(
    monkeypatch: pytest.MonkeyPatch,
):
    words, gold = planted(60)
    truth, losses = [tree.depths for tree in gold], []
    original = probes._loss

    def noted(*arguments):
        loss = original(*arguments)
        losses.extend([float(loss.detach()) / 10] * (not torch.is_grad_enabled()))
        return loss

    monkeypatch.setattr(probes, "_loss", noted)
    monkeypatch.setattr(probes, "_LEARNING_RATE", 3.0)  # it diverges, so that few epochs are better
    probe = trained(words, truth, range(50), range(50, 60), kind="depth", rank=5, epochs=40)
    best = int(np.argmin(losses))
    assert probe.epochs == len(losses) < 40
    assert probe.dev_loss == pytest.approx(min(losses), abs=2e-4)
    errors = zip(predictions(probe.matrix, words, range(50, 60), "depth"), truth[50:])
    assert np.mean([np.abs(a - b).mean() for a, b in errors]) == pytest.approx(
        probe.dev_loss, rel=1e-5
    )
    assert len(losses) >= best + 5

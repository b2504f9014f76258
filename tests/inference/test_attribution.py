"""Attributions: gradients and occlusion, against plain sums."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from bertworks.inference.attribution import TOLERANCE
from bertworks.inference.explain import Explanation, explain
from bertworks.tasks.task import log_odds
from tests.inference.test_explain import LABELS, TEXT, found as found, reviews as reviews, theirs
from tests.support.fine import tokenizer


def number_of(
    network: transformers.BertForSequenceClassification, label: int, **inputs: torch.Tensor
) -> torch.Tensor:
    return log_odds(network(**inputs).logits, label)


def baseline_of(ids: torch.Tensor, other: int) -> torch.Tensor:
    t = tokenizer()
    return torch.where((ids == t.cls_id) | (ids == t.sep_id), ids, torch.tensor(other))


@pytest.mark.parametrize("baseline", ["mask", "pad"])
def test_integrated_gradients_are_those_of_a_plain_sum(reviews: Path, baseline: str):
    """The definition, by transformers' network: 300 steps, their midpoints."""
    ours = explain(reviews, TEXT, baseline=baseline)
    t, network = tokenizer(), theirs(reviews)
    label = LABELS["classification"].index(ours.answer[0][0])
    ids = torch.tensor([t.encode(TEXT).ids])
    other = baseline_of(ids, t.mask_id if baseline == "mask" else t.pad_id)
    words = network.bert.embeddings.word_embeddings.weight.detach()
    base, difference = words[other], words[ids] - words[other]
    x = (base + (torch.arange(300)[:, None, None] + 0.5) / 300 * difference).requires_grad_()
    number_of(network, label, inputs_embeds=x).sum().backward()
    expected = (difference * x.grad.mean(0)).sum(-1)[0].numpy()
    assert ours.gradients is not None
    assert ours.gradients.attributions == pytest.approx(expected, abs=2e-3)
    assert abs(ours.gradients.error) <= TOLERANCE * np.abs(ours.gradients.attributions).sum()
    with torch.no_grad():
        ends = [float(number_of(network, label, input_ids=one)) for one in (other, ids)]
    assert [ours.gradients.start, ours.gradients.end] == pytest.approx(ends, abs=1e-4)


def test_occlusion_is_the_fall_without_each_word(reviews: Path, found: Explanation):
    t, network = tokenizer(), theirs(reviews)
    label = LABELS["classification"].index(found.answer[0][0])
    ids = torch.tensor([t.encode(TEXT).ids])
    with torch.no_grad():
        whole = float(number_of(network, label, input_ids=ids))
        for (first, end), fall in zip(found.spans, found.occlusion, strict=True):
            hidden = ids.clone()
            hidden[0, first:end] = baseline_of(ids, t.mask_id)[0, first:end]
            assert fall == pytest.approx(
                whole - float(number_of(network, label, input_ids=hidden)), abs=1e-4
            )


def test_log_odds_do_not_change_with_what_is_added_to_all():
    logits = torch.randn(3, 4)
    p = logits.softmax(-1)[:, 2]
    assert torch.allclose(log_odds(logits, 2), (p / (1 - p)).log(), atol=1e-5)
    assert torch.allclose(log_odds(logits, 2), log_odds(logits + 5, 2), atol=1e-5)
    assert torch.equal(log_odds(logits[:, :1], 0), logits[:, 0])

"""The two language models of ELMo: against numpy in float64, and what each of them has read."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bertworks.batching.batch import Batch, collate
from bertworks.batching.examples import Example, TokenSequence, keyed_rng
from bertworks.batching.spelled_words import DIRECTED_OBJECTIVES, SpelledWords
from bertworks.checkpoints.allennlp import load_elmo
from bertworks.models.embeddings import Characters
from bertworks.models.layers import count_parameters
from bertworks.models.recurrent import DirectedLSTM
from bertworks.models.transformer import Encoder
from bertworks.text.tokenizer import SPELLED, SPELLING_BYTES
from bertworks.training.loop import evaluate
from bertworks.training.objectives import PretrainingModel, num_trained
from bertworks.training.recipe import load_recipe
from tests.support.elmo import arrays_of, marked_states_of, write_elmo

LONG = "a" * 47 + "é" + "b" * 20  # of which the network reads the first byte of the é
WORDS = ["", "the", "cat", "sat", "on", "mat", ".", "日本語", LONG, "😀", "rare", "rarer"]
NUM_PREDICTED = 10  # "rare" and "rarer" are the unknown word in the output layer alone
# of one word, of many, one with the unknown word, and one with words that cannot be predicted
TEXTS = [[2], [1, 2, 3, 4, 1, 5, 6], [8, 0, 7, 9, 6], [1, 10, 11, 3]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PretrainingModel:
    """With a weight of its own everywhere, also in each bias."""
    pytest.importorskip("h5py")
    weights, options = write_elmo(tmp_path_factory.mktemp("elmo"), arrays=arrays_of(scale=0.3))
    (config, state, _), _ = load_elmo(weights, options)
    recipe = load_recipe("elmo-small", [f"encoder.vocab_size={NUM_PREDICTED}"])
    vocabulary = {"vocab_size": NUM_PREDICTED}
    torch.manual_seed(0)
    network = PretrainingModel(type(config)(**vars(config) | vocabulary), recipe.weights)
    missing = network.load_state_dict(dict(state), strict=False).missing_keys
    assert missing == ["word_output.weight", "word_output.bias"]
    assert network.word_output is not None
    for parameter in network.word_output.parameters():
        nn.init.normal_(parameter)
    return network.double().eval()


def example(numbers: list[int]) -> Example:
    spellings = np.array([word.encode() for word in WORDS], SPELLED)
    ids = np.array(numbers)
    sequence = TokenSequence(ids, np.zeros_like(ids), np.zeros(len(ids), np.bool_), {})
    return SpelledWords(spellings)(sequence, keyed_rng("test"))


def batch(*texts: list[int]) -> Batch:
    return collate([example(numbers) for numbers in texts])


def oracle(model: PretrainingModel, numbers: list[int]) -> dict[str, tuple[float, int]]:
    """The losses of a text and the correct predictions, word by word."""
    arrays = arrays_of(scale=0.3)
    # the unknown word has no letters, only its marks
    states = marked_states_of([WORDS[n] for n in numbers], arrays)[0][-1]
    width = states.shape[1] // 2
    weight, bias = (p.detach().numpy() for p in model.word_output.parameters())  # type: ignore[union-attr]
    result = {}
    for kind, half, step in zip(
        DIRECTED_OBJECTIVES, (slice(0, width), slice(width, None)), (-1, 1), strict=True
    ):
        loss, correct = 0.0, 0
        for place, number in enumerate(numbers, 1):
            logits = weight @ states[place + step, half] + bias
            label = number if number < NUM_PREDICTED else 0
            loss += np.log(np.exp(logits).sum()) - logits[label]
            correct += int(logits.argmax() == label)
        result[kind] = loss, correct
    return result


def test_losses_are_those_of_the_definition(model: PretrainingModel):
    for numbers in TEXTS:
        losses = model(batch(numbers))
        for kind, (loss, correct) in oracle(model, numbers).items():
            # the probabilities of the labels are taken in float32
            assert losses[kind].loss.item() == pytest.approx(loss, rel=1e-6)
            assert losses[kind].correct.item() == correct
        assert model.counts(batch(numbers)) == dict.fromkeys(DIRECTED_OBJECTIVES, len(numbers))


def test_states_are_those_of_the_definition(model: PretrainingModel):
    whole = batch(*TEXTS)
    halves = model.encoder.predicting_states(whole.input_ids, whole.layout)
    texts = [[WORDS[n] for n in numbers] for numbers in TEXTS]
    states = [marked_states_of(words, arrays_of(scale=0.3))[0][-1] for words in texts]
    width = halves[0].shape[1]
    expected = (
        np.concatenate([x[:-2, :width] for x in states]),
        np.concatenate([x[2:, width:] for x in states]),
    )
    for half, other in zip(halves, expected, strict=True):
        np.testing.assert_allclose(half.detach().numpy(), other, rtol=0, atol=1e-7)


def test_a_batch_is_its_texts_one_by_one(model: PretrainingModel):
    whole = model(batch(*TEXTS))
    for kind in DIRECTED_OBJECTIVES:
        parts = [model(batch(numbers))[kind] for numbers in TEXTS]
        assert whole[kind].loss.item() == pytest.approx(sum(p.loss.item() for p in parts))
        assert whole[kind].correct == sum(p.correct for p in parts)
    means = evaluate(model, [batch(*TEXTS[:2]), batch(*TEXTS[2:])])
    count = sum(map(len, TEXTS))
    assert means["backward_lm"].count == count
    assert means["backward_lm"].loss == pytest.approx(whole["backward_lm"].loss.item() / count)


def test_no_state_has_read_the_word_that_it_predicts(model: PretrainingModel):
    """Which words each half of a state depends on, by its gradients, which are 0 or not."""
    step = batch(TEXTS[3], TEXTS[1], TEXTS[0])
    encoder = model.encoder
    vectors = []  # of the words, before anything has read them

    def keep(module: nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        vectors.append(output.detach().requires_grad_())
        return vectors[-1]

    hook = encoder.embeddings.register_forward_hook(keep)
    predicting = encoder.predicting_states(step.input_ids, step.layout)
    states = encoder(*step.inputs)[-1].chunk(2, 1)
    hook.remove()
    starts = step.layout.cu_seqlens.tolist()
    for start, end in pairwise(starts):
        for i in range(start, end):
            for read, half, expected in (
                (vectors[0], predicting[0], range(start, i)),
                (vectors[0], predicting[1], range(i + 1, end)),
                (vectors[1], states[0], range(start, i + 1)),
                (vectors[1], states[1], range(i, end)),
            ):
                (gradient,) = torch.autograd.grad(half[i].sum(), read, retain_graph=True)
                assert gradient.any(1).nonzero().flatten().tolist() == [*expected]


def test_gradients_are_those_of_a_plain_cross_entropy(model: PretrainingModel):
    parameters = [*model.parameters()]
    step = batch(*TEXTS)
    losses = model(step)
    total = sum(model.weights[kind] * losses[kind].loss for kind in DIRECTED_OBJECTIVES)
    ours = torch.autograd.grad(total, parameters)
    assert model.word_output is not None
    labels = step.targets["forward_lm"].labels
    labels = torch.where(labels < NUM_PREDICTED, labels, 0)
    halves = model.encoder.predicting_states(step.input_ids, step.layout)
    plain = sum(F.cross_entropy(model.word_output(x), labels, reduction="sum") for x in halves) / 2
    expected = torch.autograd.grad(plain, parameters)
    for gradient, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-9, atol=1e-11)


def test_dropout_is_of_the_training_alone(model: PretrainingModel):
    step = batch(*TEXTS)
    before = model(step)["forward_lm"].loss
    model.train()
    assert model(step)["forward_lm"].loss != before
    model.eval()
    assert model(step)["forward_lm"].loss == before


def test_the_published_size():
    recipe = load_recipe("elmo")
    assert count_parameters(Encoder, recipe.encoder) == 93_600_848
    assert recipe.encoder.num_parameters() == 93_600_848
    assert num_trained(recipe) == 93_600_848 + 100_000 * (512 + 1)
    small = load_recipe("elmo-small", ["encoder.vocab_size=64"])
    assert small.weights == {"forward_lm": 0.5, "backward_lm": 0.5}
    network = PretrainingModel.of(small)
    lstms = [part for part in network.modules() if isinstance(part, DirectedLSTM)]
    assert len(lstms) == 4
    assert all(part.weight_hr is None for part in lstms)
    assert sum(small.encoder.characters.filters) == 512  # type: ignore[union-attr]


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_first_weights(activation: str):
    settings = [f"encoder.characters.activation={activation}", "encoder.vocab_size=64"]
    recipe = load_recipe("elmo-small", settings)
    torch.manual_seed(0)
    characters = PretrainingModel.of(recipe).encoder.embeddings
    assert isinstance(characters, Characters)
    characters.draw()
    assert characters.character.weight.abs().max() <= 1
    assert characters.character.weight.std().item() == pytest.approx(3**-0.5, rel=0.05)
    filters = characters.filters[-1].weight
    assert isinstance(filters, nn.Parameter)
    expected = 0.05 / 3**0.5 if activation == "relu" else (7 * 16) ** -0.5
    assert filters.std().item() == pytest.approx(expected, rel=0.05)
    highway = characters.highways[0]
    assert isinstance(highway, nn.Linear)
    assert highway.bias.tolist() == [0.0] * 512 + [-2.0] * 512
    assert highway.weight.std().item() == pytest.approx(512**-0.5, rel=0.05)


def test_spellings_are_those_of_the_network():
    part = batch([8, 0])
    assert part.input_ids.shape == (2, SPELLING_BYTES)
    assert bytes(part.input_ids[0].tolist()) == LONG.encode()[:SPELLING_BYTES]
    assert not part.input_ids[1].any()

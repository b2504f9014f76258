"""Replaced tokens (Clark et al. 2020): the loss, the generator, what is shared, and a whole run."""

import json
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
import transformers
from scipy.stats import chisquare

from bertworks.batching.batch import Batch, Batches, collate
from bertworks.batching.examples import TokenSequence, add_special_tokens
from bertworks.batching.sampling import ExampleStream, Masker, MaskingConfig
from bertworks.checkpoints.storage import read_tensors
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.masked_lm import detection_scores, ranking_figures
from bertworks.models.config import PRESETS, EncoderConfig
from bertworks.models.heads import LMHead
from bertworks.runs.pretrain import estimate, pretrain
from bertworks.text.tokenizer import Template
from bertworks.training.loop import make_optimizer, train
from bertworks.training.objectives import (
    CHUNK_BYTES,
    SHARED,
    PretrainingModel,
    num_trained,
    sample_tokens,
)
from bertworks.training.recipe import ObjectiveKind, OptimizerConfig, load_recipe
from tests.batching.test_batch import Numbers
from tests.batching.test_sampling import CLS, SEP, every, make_store, planned
from tests.support.tiny import write_corpus, write_recipe
from tests.training.test_loop import SMALL

CONFIG = replace(
    SMALL,
    vocab_size=1000,
    embedding_size=16,
    family="electra",
    pooler="first_gelu",
    pooler_dropout=True,
)
OBJECTIVES: dict[ObjectiveKind, float] = {"masked_lm": 1.0, "replaced_token": 50.0}
MASKING = MaskingConfig(mask=0.85, random=0.0)
TINY = [
    (
        "[vocabulary]",
        '[[objectives]]\nkind = "masked_lm"\n[[objectives]]\nkind = "replaced_token"\nweight = 50\n'
        "[vocabulary]",
    ),
    (
        "[optimizer]",
        'embedding_size = 16\nfamily = "electra"\npooler = "first_gelu"\npooler_dropout = true\n'
        '[sampling]\nformat = "full_sentences"\n[masking]\nmask = 0.85\nrandom = 0.0\n[optimizer]',
    ),
    ('title = "Tiny"', 'title = "Tiny"\ngenerator_size = 0.5'),
]


def make_model(c: EncoderConfig = CONFIG, seed: int = 0, perturb: float = 0.1) -> PretrainingModel:
    torch.manual_seed(seed)
    model = PretrainingModel(c, OBJECTIVES, generator_size=0.5)
    for p in model.parameters():
        p.data.add_(torch.randn_like(p), alpha=perturb)
    return model.eval()


def stream(**settings) -> ExampleStream:
    return ExampleStream(
        Numbers(50), Masker(MASKING, 4, np.ones(1000, bool), replaces=True), **settings
    )


def batch_of(numbers: range) -> Batch:
    examples = stream()
    return collate([examples[n] for n in numbers])


def test_the_loss_is_the_binary_cross_entropy_of_all_tokens():
    """Against BCEWithLogitsLoss over the padded batch, where the tokens that are attended to count:
    transformers' ElectraForPreTraining."""
    model, batch = make_model().double(), batch_of(range(6))
    masked, input_ids, replaced = model.replace_tokens(batch)
    result, counts = model(batch), model.counts(batch)
    states = model.encoder(input_ids, batch.layout, batch.token_type_ids)[-1]
    logits, there = batch.layout.pad(model.replaced_token(states)), batch.layout.present
    expected = torch.nn.BCEWithLogitsLoss()(
        logits[there], batch.layout.pad(replaced.double())[there]
    )
    assert counts == {
        "masked_lm": len(batch.targets["masked_lm"].labels),
        "replaced_token": int(there.sum()),
    }
    assert result["replaced_token"].loss.item() / counts["replaced_token"] == pytest.approx(
        expected.item(), abs=1e-6
    )
    assert (
        result["replaced_token"].correct
        == ((logits > 0)[there] == batch.layout.pad(replaced.long())[there]).sum()
    )
    assert result["masked_lm"].loss == masked.loss


def test_the_generator_is_a_masked_language_model():
    model, batch = make_model().double(), batch_of(range(6))
    assert model.generator is not None
    logits = model.generator.scores(batch)
    expected = torch.nn.functional.cross_entropy(
        logits, batch.targets["masked_lm"].labels, reduction="sum"
    )
    assert model(batch)["masked_lm"].loss.item() == pytest.approx(expected.item(), rel=1e-6)


def test_no_gradient_passes_from_one_loss_to_the_other_network():
    model, batch = make_model(), batch_of(range(6))
    own = {"masked_lm": "generator.", "replaced_token": ("encoder.", "replaced_token.")}
    for kind, prefix in own.items():
        model.zero_grad(set_to_none=True)
        model(batch)[kind].loss.backward()
        reached = {
            name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()
        }
        shared = {f"encoder.embeddings.{table}.weight" for table in SHARED}
        assert reached > shared
        assert all(name.startswith(prefix) for name in reached - shared), kind


def test_samples_have_the_probabilities_of_the_softmax(monkeypatch: pytest.MonkeyPatch):
    """Tokens that are drawn with uniform numbers: counts against the softmax at temperature 1
    (chi-squared), whole and in chunks; the ends of the range of the numbers give tokens that exist.
    """
    generator = torch.Generator().manual_seed(0)
    embeddings, bias, row = (
        torch.randn(*size, generator=generator) for size in ((12, 8), (12,), (1, 8))
    )
    draws = torch.rand(40_000, generator=generator)
    tokens = sample_tokens(row.expand(len(draws), 8), embeddings, bias, draws)
    p = torch.softmax(row.double() @ embeddings.T.double() + bias.double(), -1)[0]
    counts = torch.bincount(tokens, minlength=12).numpy()
    assert chisquare(counts, (p / p.sum()).numpy() * len(draws)).pvalue > 1e-3
    assert chisquare(counts, np.roll(p.numpy(), 1) * len(draws)).pvalue < 1e-9
    monkeypatch.setattr("bertworks.training.objectives.CHUNK_BYTES", 1000)
    assert CHUNK_BYTES != 1000
    assert torch.equal(
        sample_tokens(row.expand(len(draws), 8)[:999], embeddings, bias, draws[:999]), tokens[:999]
    )
    with monkeypatch.context() as patch:  # rows that fill up a product have no token
        patch.setattr("bertworks.training.objectives.compiles_sizes", lambda _: True)
        assert torch.equal(
            sample_tokens(row.expand(len(draws), 8)[:999], embeddings, bias, draws[:999]),
            tokens[:999],
        )
    ends = sample_tokens(row.expand(2, 8), embeddings, bias, torch.tensor([0.0, 1 - 2**-24]))
    assert ends.tolist() == [0, 11]
    minus = torch.tensor([-torch.inf] + [0.0] * 11)  # a token of probability 0 is never drawn
    assert sample_tokens(row[:, :0], embeddings[:, :0], minus, torch.zeros(1)).tolist() == [1]


@pytest.mark.parametrize("knows", [False, True])
def test_the_fraction_of_replaced_tokens(knows: bool):
    """The masked fraction times (1 - the fraction of samples that are the original), exactly; what
    is not masked stays. A generator that knows the original replaces nothing, and one that knows
    nothing nearly everything."""
    model, batch = make_model(perturb=0.0), batch_of(range(50))
    assert isinstance(model.generator, PretrainingModel)
    assert isinstance(model.generator.lm_head, LMHead)
    target = batch.targets["masked_lm"]
    if knows:  # all labels of a batch of one sequence are one token
        batch = batch_of(range(1))
        target = batch.targets["masked_lm"]
        model.generator.lm_head.bias.data[target.labels[0]] = 100.0
    _, ids, replaced = model.replace_tokens(batch)
    same = (ids[target.positions] == target.labels).float().mean().item()
    masked = len(target.labels) / len(ids)
    assert replaced.float().mean().item() == pytest.approx(masked * (1 - same), abs=1e-6)
    assert same == 1 if knows else same < 0.1
    others = torch.ones(len(ids), dtype=torch.bool).index_fill(0, target.positions, False)
    assert torch.equal(ids[others], batch.input_ids[others])
    assert not replaced[others].any()


def test_masks_are_those_of_electra():
    """max(1, min(N, round(.15 n))) predicted tokens, 85 % [MASK], 15 % as they are, none at
    random."""
    examples = stream()
    shown = kept = 0
    for n in range(2000):
        example = examples[n]
        target, draws = example.targets["masked_lm"], example.targets["replaced_token"]
        assert len(target.labels) == max(1, round(0.15 * len(example.input_ids)))
        assert np.array_equal(target.positions, draws.positions)
        assert draws.labels.dtype == np.float32
        assert ((draws.labels >= 0) & (draws.labels < 1)).all()
        inputs = example.input_ids[target.positions]
        shown += int((inputs == 4).sum())
        kept += int((inputs == target.labels).sum())
        assert ((inputs == 4) | (inputs == target.labels)).all()
    assert shown / (shown + kept) == pytest.approx(0.85, abs=0.02)
    assert (
        Masker(MaskingConfig(max_predictions=19), 4, np.ones(9, bool)).budget(
            512, np.random.default_rng(0)
        )
        == 19
    )


def test_numbers_of_the_generator_change_no_mask():
    """Examples of BERT keep their bits."""
    with_numbers = stream()
    without = ExampleStream(Numbers(50), Masker(MASKING, 4, np.ones(1000, bool)))
    for n in (0, 7, 63):
        one, other = with_numbers[n], without[n]
        assert np.array_equal(one.input_ids, other.input_ids)
        assert np.array_equal(one.targets["masked_lm"].labels, other.targets["masked_lm"].labels)
        assert "replaced_token" not in other.targets


def trained(steps: int, start: int = 0, state=None, tokens: int = 40):
    """Four steps at most, from a state; the state after them. tokens: of a micro-batch."""
    model = make_model(replace(CONFIG, hidden_dropout=0.1), perturb=0.0)
    c = OptimizerConfig(learning_rate=1e-3, warmup=0.5)
    optimizer = make_optimizer(model, c)
    if state is not None:
        model.load_state_dict(state[0])
        optimizer.load_state_dict(state[1])
    taken = (
        list(train(model, optimizer, Batches(stream(), 13, tokens), c, 4, seed=3, start=start))
        if steps == 4
        else []
    )
    if steps < 4:
        for step in train(
            model, optimizer, Batches(stream(), 13, tokens), c, 4, seed=3, start=start
        ):
            taken.append(step)
            if step.number == steps:
                break
    return (model.state_dict(), optimizer.state_dict()), taken


def test_a_resumed_training_has_the_same_bits():
    whole, _ = trained(4)
    half, _ = trained(2)
    resumed, _ = trained(4, start=2, state=half)
    assert all(torch.equal(value, resumed[0][name]) for name, value in whole[0].items())
    assert any(not torch.equal(value, half[0][name]) for name, value in whole[0].items())


def test_shared_tables_are_one_parameter():
    """Also after a load on the meta device, as in a resumed run; the gradient is the sum of both
    losses' gradients."""
    model = make_model()
    names = {name for name, _ in model.named_parameters()}
    assert model.generator is not None
    own = {
        n.removeprefix("generator.encoder.embeddings.")
        for n in names
        if "generator.encoder.embeddings." in n
    }
    # a projection, too, is not shared; this generator needs none
    assert own == {"norm.weight", "norm.bias"}
    with torch.device("meta"):
        empty = PretrainingModel(CONFIG, OBJECTIVES, generator_size=0.5)
    empty = empty.to_empty(device="cpu")
    for network in (model, empty):
        for table in SHARED:
            one, other = (
                getattr(n.encoder.embeddings, table).weight for n in (network, network.generator)
            )
            assert one is other
    batch, gradients = batch_of(range(6)), []
    for kinds in (["masked_lm"], ["replaced_token"], ["masked_lm", "replaced_token"]):
        model.zero_grad(set_to_none=True)
        losses = model(batch)
        torch.stack([losses[kind].loss for kind in kinds]).sum().backward()
        gradients.append(model.encoder.embeddings.token.weight.grad.clone())
    torch.testing.assert_close(gradients[0] + gradients[1], gradients[2])
    assert gradients[0].any()
    assert gradients[1].any()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-training of 40 steps."""
    path = tmp_path_factory.mktemp("electra")
    text, recipe = write_corpus(path / "text.jsonl"), write_recipe(path / "recipe.toml", *TINY)
    events = list(pretrain([text], path / "model", recipe=str(recipe), device="cpu", workers=1))
    assert events[-1].kind == "done"
    return path / "model"


def test_the_folder_is_the_discriminator_and_the_generator_is_beside_it(folder: Path):
    for path, name, share in (
        (folder, "ElectraForPreTraining", 1),
        (folder / "generator", "ElectraForMaskedLM", 2),
    ):
        settings = json.loads((path / "config.json").read_text())
        assert settings["architectures"] == [name]
        assert settings["hidden_size"] == 32 // share
        read, info = getattr(transformers, name).from_pretrained(path, output_loading_info=True)
        assert not any(info.values()), info
        assert read.num_parameters() == sum(
            x.numel() for x in read_tensors(path / "model.safetensors").values()
        )
    both = [read_tensors(path / "model.safetensors") for path in (folder, folder / "generator")]
    tables = [name for name in both[0] if "embeddings." in name and "_embeddings.weight" in name]
    assert len(tables) == 3
    assert all(torch.equal(both[0][name], both[1][name]) for name in tables)
    assert not torch.equal(*(tensors["electra.embeddings.LayerNorm.weight"] for tensors in both))


def test_a_checkpoint_has_shared_tables_once(folder: Path):
    (path,) = list((folder / "checkpoints").glob("step-*40"))
    names = [n for file in path.glob("*.safetensors") for n in read_tensors(file)]
    assert sum("token.weight" in name and name.startswith("parameter/") for name in names) == 1


def test_figures_are_recorded_and_the_discriminator_learns(folder: Path):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluations = [line["evaluation"] for line in lines if "evaluation" in line]
    assert evaluations[-1]["masked_lm_loss"] < evaluations[0]["masked_lm_loss"]
    assert evaluations[-1]["replaced_token_loss"] < evaluations[0]["replaced_token_loss"]
    weighted = [line for line in lines if "loss" in line][-1]
    parts = weighted["masked_lm_loss"] + 50 * weighted["replaced_token_loss"]
    assert weighted["loss"] == pytest.approx(parts)
    assert "Replaced tokens: accuracy" in (folder / "report.html").read_text()


@pytest.mark.slow
def test_the_estimate_counts_the_discriminator(tmp_path: Path):
    text, recipe = (
        write_corpus(tmp_path / "text.jsonl"),
        write_recipe(tmp_path / "recipe.toml", *TINY),
    )
    cost = estimate([text], recipe=str(recipe), device="cpu")
    sizes = {
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
        "vocab_size": 300,
    }
    model = PretrainingModel(replace(CONFIG, **sizes), OBJECTIVES, generator_size=0.5)
    counts = {n: p.numel() for n, p in model.named_parameters()}
    assert cost.trained == sum(counts.values())
    assert cost.parameters == sum(
        count for name, count in counts.items() if not name.startswith("generator.")
    )
    assert (
        f"parameters   {cost.parameters:,}, and {cost.trained - cost.parameters:,} of the generator"
        in str(cost)
    )


def slow_segments(
    sentences: list[list[int]], length: int, random: Random, short_rate: float
) -> list[list[list[int]]]:
    """The published algorithm, sentence by sentence, for one document."""
    results, chunk = [], []

    def new_target() -> int:
        return 5 + int(random.random() * (length - 4)) if random.random() < short_rate else length

    target = new_target()
    for number, sentence in enumerate(sentences):
        chunk.append(sentence)
        if sum(map(len, chunk)) < target and number < len(sentences) - 1:
            continue
        half = 10**9 if random.random() < 0.1 else (target - 3) // 2
        first, second = [], []
        for one in chunk:
            fits = not second and (len(first) + len(one) < half or half == 10**9)
            if not first or fits or (not second and len(first) < half and random.random() < 0.5):
                first += one
            else:
                second += one
        first = first[: length - 2]
        second = second[: max(0, length - len(first) - 3)]
        results.append([first, second] if second else [first])
        chunk = []
        if number < len(sentences) - 1:
            target = new_target()
    return results


@pytest.mark.parametrize("length", [8, 32, 64])
def test_segments_are_those_of_the_published_algorithm(length: int):
    store = make_store(documents=40, longest=length)
    sampler = planned(store, length, seed=5, format="one_segment", short_rate=0.2)
    sequences = iter([sampler[i] for i in range(len(sampler))])
    sizes, singles = [], 0
    for d in every(store):
        starts = store.sentences[store.documents[d] : store.documents[d + 1] + 1].tolist()
        sentences = [store.tokens[a:b].tolist() for a, b in pairwise(starts)]
        random = Random(f"segments 5 0 {starts[0]}")
        for segments in slow_segments(sentences, length, random, 0.2):
            s = next(sequences)
            assert s.input_ids[s.special].tolist() == [CLS] + [SEP] * len(segments)
            assert s.input_ids[~s.special & (s.token_type_ids == 0)].tolist() == segments[0]
            assert s.input_ids[~s.special & (s.token_type_ids == 1)].tolist() == [
                n for part in segments[1:] for n in part
            ]
            assert len(s.input_ids) <= length
            sizes.append(len(s.input_ids))
            singles += len(segments) == 1
    assert next(sequences, None) is None
    assert max(sizes) == length
    assert 0 < singles < len(sizes)


@pytest.mark.parametrize("name", ["electra-small", "electra-mini"])
def test_recipes_are_electra(name: str):
    recipe = load_recipe(name)
    assert recipe.weights == OBJECTIVES
    assert (recipe.masking.mask, recipe.masking.random, recipe.sampling.format) == (
        0.85,
        0.0,
        "one_segment",
    )
    if name == "electra-small":
        c = replace(recipe.encoder, vocab_size=30522)
        assert c == PRESETS[name]
        assert (
            num_trained(replace(recipe, encoder=c))
            == 13_549_057 + 4_620_026 - (30522 + 512 + 2) * 128
        )
        (phase,) = recipe.train.phases
        assert (phase.num_steps, phase.batch_size, phase.sequence_length) == (1_000_000, 128, 128)
        assert (recipe.optimizer.learning_rate, recipe.optimizer.weight_decay) == (5e-4, 0.01)
        assert recipe.optimizer.rate(10_000, 1_000_000) == pytest.approx(5e-4, rel=0.011)
        assert recipe.optimizer.rate(5_000, 1_000_000) == 2.5e-4


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [
                "encoder.family=bert",
                "encoder.pooler=first_tanh",
                "encoder.pooler_dropout=false",
                "encoder.embedding_size=0",
            ],
            r"files of bert have no place for these heads together",
        ),
        (
            [
                "objectives=[{kind='masked_lm'}, {kind='next_sentence'}, {kind='replaced_token'}]",
                "sampling.format=next_sentence",
            ],
            "next_sentence and replaced_token exclude each other",
        ),
        (["generator_size=0"], "generator_size is 0"),
        (["generator_size=1.5"], "a fraction above 0, at most 1"),
    ],
)
def test_wrong_recipes_are_refused(overrides: list[str], message: str, tmp_path: Path):
    text = write_corpus(tmp_path / "text.jsonl")
    with pytest.raises((BertworksError, UsageError), match=message):
        estimate([text], recipe="electra-mini", overrides=overrides, device="cpu")


def test_a_budget_chooses_the_size_of_an_electra(tmp_path: Path):
    text = write_corpus(tmp_path / "text.jsonl")
    cost = estimate([text], budget="20s", recipe="electra", device="cpu")
    assert cost.title.startswith("ELECTRA-")
    assert cost.trained > cost.parameters


@dataclass
class Places:
    """A sampler of a language in which the token at each place is one of five."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, i: int) -> TokenSequence:
        tokens = 10 + 5 * np.arange(16) + np.random.default_rng(i).integers(5, size=16)
        return add_special_tokens([tokens], Template((CLS,), (SEP,), (SEP,)))


def test_a_discriminator_learns_to_find_what_a_generator_replaced():
    """With a generator that draws any token, four of five replaced tokens are in a wrong place, at
    least."""
    examples = ExampleStream(Places(), Masker(MASKING, 4, np.ones(110, bool), replaces=True))
    c = replace(CONFIG, vocab_size=110, hidden_size=32, num_hidden_layers=1, initializer_range=0.1)
    torch.manual_seed(0)
    model = PretrainingModel(c, OBJECTIVES, generator_size=0.25)
    for name, p in model.named_parameters():
        p.requires_grad_(not name.startswith("generator."))
    held_out = [collate([examples[n] for n in range(5000, 5100)])]
    optimizer = OptimizerConfig(learning_rate=1e-2, warmup=0.1)
    before = ranking_figures(detection_scores(model, held_out))
    list(
        train(model, make_optimizer(model, optimizer), Batches(examples, 16, 1000), optimizer, 100)
    )
    after = ranking_figures(detection_scores(model, held_out))
    assert before["replaced_token_auc"] < 0.6
    assert after["replaced_token_auc"] > 0.85
    masked = len(held_out[0].targets["masked_lm"].labels) / len(held_out[0].input_ids)
    assert 0.9 * masked < after["replaced_tokens"] < masked


def test_a_run_that_was_cut_off_ends_with_the_same_bits(folder: Path, tmp_path: Path):
    """Both networks; the tables that they share are one parameter again."""
    text, recipe = (
        write_corpus(tmp_path / "text.jsonl"),
        write_recipe(tmp_path / "recipe.toml", *TINY),
    )
    run = {"recipe": str(recipe), "device": "cpu", "workers": 1}
    events = pretrain([text], tmp_path / "model", **run)
    next(event for event in events if event.kind == "step" and event.fields["step"] == 17)
    events.close()
    resumed = list(pretrain([text], tmp_path / "model", **run))
    assert any(event.text.startswith("resuming after step 15") for event in resumed)
    for part in ("", "generator"):
        one, other = (
            read_tensors(path / part / "model.safetensors") for path in (folder, tmp_path / "model")
        )
        assert all(torch.equal(value, other[name]) for name, value in one.items())

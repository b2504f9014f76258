"""Ablations: arms as arguments, equal steps and operations, resumption, paired differences,
refusals."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertworks as bw
from bertworks.checkpoints.hf_config import can_hold, check_representable
from bertworks.checkpoints.model_folder import load_model
from bertworks.cli.main import main
from bertworks.config import parse_as
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation import ablation as module
from bertworks.evaluation.ablation import (
    NOT_RESOLVED,
    PACKAGED,
    Ablation,
    Arm,
    Measured,
    ablation_tables,
    about_ablation,
    evaluate_ablation,
    measure_held_out,
    measure_training,
    summarize,
)
from bertworks.events import Event
from bertworks.io.options import Documents
from bertworks.metrics.intervals import SAMPLES
from bertworks.runs.prepare import read_text
from bertworks.runs.pretrain_job import held_out_batches, split_documents, split_long_documents
from bertworks.text.corpus import CorpusReader
from bertworks.text.shards import Shards, write_shards
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import VocabularyConfig, train_vocabulary
from bertworks.training.objectives import PretrainingModel, heads_of
from bertworks.training.recipe import Recipe, load_recipe
from tests.support.fine import write_reviews
from tests.support.refusals import refusal
from tests.support.tables import write_text
from tests.support.tiny import write_corpus

HEAD = """
title = "Two depths"
source = "Nobody 2026, table 1"

[vocabulary]
size = 300

[pretrain]
recipe = "bert-mini"
overrides = [
    "encoder.hidden_size=32", "encoder.num_attention_heads=2", "encoder.max_position_embeddings=64",
    "optimizer.learning_rate=1e-3", "train.precision=fp32", "train.held_out_sequences=8",
    "train.evaluate_every=20", "sampling.format=next_sentence",
    "train.phases=[{num_steps=20, batch_size=8, sequence_length=32}]",
]
"""
ARMS = """
[[arms]]
name = "one"
pretrain = {overrides = ["encoder.num_hidden_layers=1"]}
published = {loss = 3.25, MNLI = 84.25}

[[arms]]
name = "two"
title = "twice as deep"
pretrain = {overrides = ["encoder.num_hidden_layers=2"]}
"""
MEASURES = """
[[measures]]
name = "loss"
title = "Loss"
kind = "held_out"
options = {sequence_length = 32, sequences = 12}
"""
OPTIONS = "sequence_length = 32, sequences = 12"
TWO = 'pretrain = {overrides = ["encoder.num_hidden_layers=2"]}'
Write = Callable[..., str]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", 60)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_ablation(head: str = HEAD, arms: str = ARMS, measures: str = MEASURES) -> str:
        path = tmp_path / "ablation.toml"
        path.write_text(head + arms + measures)
        return str(path)

    return write_ablation


def run(name: str, *words: Any, **options: Any) -> dict[str, Any]:
    *_, last = evaluate_ablation(name, *words, device="cpu", **options)
    assert last.kind == "done"
    return last.fields


def figures(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "figures.jsonl").read_text().splitlines()]


# --- trainings
# --------------------------------------------------------------------------------------------------


def test_arms_are_trained_and_compared(write: Write, corpus: Path, tmp_path: Path) -> None:
    result = run(write(), corpus, tmp_path / "out", seeds=2)
    rows = figures(tmp_path / "out")
    assert [(row["arm"], row["seed"]) for row in rows] == [
        ("one", 0),
        ("two", 0),
        ("one", 1),
        ("two", 1),
    ]
    one, two = ([row["value"] for row in rows if row["arm"] == name] for name in ("one", "two"))
    means = result["measures"]["loss"]
    assert means["one"]["mean"] == pytest.approx(np.mean(one))
    assert means["two"]["difference"]["mean"] == pytest.approx(np.mean(two) - np.mean(one))
    table, page = ((tmp_path / "out" / name).read_text() for name in ("table.md", "report.html"))
    for text in (table, page):
        assert "twice as deep" in text
        assert "3.25" in text
        assert "84.25" in text
        assert "2 seeds" in text
    for name, layers in (("one", 1), ("two", 2)):
        folder = tmp_path / "out/arms" / name / "seed-1/model"
        assert load_model(folder).config.num_hidden_layers == layers
        recipe = load_recipe(str(folder / "recipe.toml"))
        assert (recipe.seed, recipe.train.num_steps) == (1, 20)


def test_documents_of_raw_text_end_where_the_user_says(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paragraphs = "".join(f"A short paragraph of a novel, number {n}.\n\n" for n in range(30_000))
    novel = tmp_path / "novel.txt"
    novel.write_text(paragraphs)
    name = write(HEAD.replace("[pretrain]", '[pretrain]\ninputs = "{corpus}"'))
    requested = list[str]()

    @wraps(bw.pretrain)
    def pretrain(*, inputs: list[str], documents: Documents = "auto", **_: Any) -> Iterator[Event]:
        read_text(inputs, documents=documents).separations()
        requested.append(documents)
        raise BertworksError("it is not trained here")

    monkeypatch.setattr(module, "pretrain", pretrain)
    for options, message in (
        ({}, "does a blank line end a document(.|\n)*hint: --documents blank_line"),
        ({"documents": "file"}, "it is not trained here"),
        ({"documents": "blank_line"}, "it is not trained here"),
    ):
        output = tmp_path / str(len(requested))
        with pytest.raises(BertworksError, match=message):
            run(name, [novel], output, **options, overwrite=True)
    assert requested == ["file", "blank_line"]


def test_an_interrupted_ablation_resumes_to_the_same_figures(
    write: Write, corpus: Path, tmp_path: Path
) -> None:
    name = write()
    events = evaluate_ablation(name, [corpus], tmp_path / "out", device="cpu", seeds=1)
    for event in events:  # stopped within the training of the second arm
        if (tmp_path / "out/arms/one/seed-0/figures.json").exists() and event.kind == "step":
            break
    events.close()  # type: ignore[attr-defined]
    assert not (tmp_path / "out/arms/two/seed-0/figures.json").exists()
    saved = (tmp_path / "out/arms/one/seed-0/model/model.safetensors").stat().st_mtime_ns
    run(name, [corpus], tmp_path / "out", seeds=1)
    assert (tmp_path / "out/arms/one/seed-0/model/model.safetensors").stat().st_mtime_ns == saved
    run(name, [corpus], tmp_path / "whole", seeds=1)
    for file in ("figures.jsonl", "table.json", "table.md"):
        assert (tmp_path / "out" / file).read_text() == (tmp_path / "whole" / file).read_text()
    run(name, [corpus], tmp_path / "out", seeds=2)  # one more seed, the first one stays
    assert figures(tmp_path / "out")[:2] == figures(tmp_path / "whole")
    with pytest.raises(UsageError, match="factor"):
        run(name, [corpus], tmp_path / "out", scale=0.5)
    with pytest.raises(UsageError) as error:
        run(write(HEAD.replace("size = 300", "size = 310")), [corpus], tmp_path / "out")
    assert error.value.args[0].endswith(
        "settings:\n  ablation: 'size = 300' there, 'size = 310' now"
    )
    write()
    run(name, [corpus], tmp_path / "out", seeds=1, scale=0.5, overwrite=True)
    assert not (tmp_path / "out/arms/one/seed-1").exists()
    assert (
        load_recipe(str(tmp_path / "out/arms/two/seed-0/model/recipe.toml")).train.num_steps == 10
    )


def test_equal_operations_give_the_arms_their_steps(
    write: Write, corpus: Path, tmp_path: Path
) -> None:
    generator = """
[[arms]]
name = "generator"
pretrain = {recipe = "electra-mini", overrides = [
    "encoder.num_hidden_layers=2", "encoder.embedding_size=16", "sampling.format=one_segment",
]}
"""
    measures = MEASURES.replace("held_out", "training").replace(
        "sequence_length = 32, sequences = 12", "figure='flops'"
    )
    run(
        write('equal = "flops"\n' + HEAD, ARMS + generator, measures),
        corpus,
        tmp_path / "out",
        seeds=1,
        steps=60,
    )
    flops = {row["arm"]: row["value"] for row in figures(tmp_path / "out")}
    recipes = {name: tmp_path / f"out/arms/{name}/seed-0/model/recipe.toml" for name in flops}
    loaded = {name: load_recipe(str(path)) for name, path in recipes.items()}
    assert loaded["one"].train.num_steps == 60
    for name, recipe in loaded.items():
        assert flops[name] == operations(recipe)
        step = flops[name] / recipe.train.num_steps
        assert abs(flops[name] - flops["one"]) <= step / 2
    assert len({recipe.train.num_steps for recipe in loaded.values()}) == 3


def operations(recipe: Recipe) -> float:
    """Of a recipe with one phase; a finished token is one that is predicted, or the first one."""
    (phase,) = recipe.train.phases
    each = recipe.flops_per_token(32, min(1, 0.15 + 1 / 32))
    return phase.num_steps * phase.batch_size * 32 * each


def test_equal_time_is_a_budget(
    write: Write, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    @wraps(bw.pretrain)
    def pretrain(**arguments: Any) -> Iterator[Event]:
        given.append(arguments)
        raise BertworksError("enough")

    monkeypatch.setattr(module, "pretrain", pretrain)
    head = HEAD.replace("train.phases=[{num_steps=20, batch_size=8, sequence_length=32}]", "seed=3")
    name = write('equal = "time"\nminutes = 2.0\n' + head)
    with pytest.raises(BertworksError, match="enough"):
        run(name, corpus, tmp_path / "out", scale=0.5)
    assert given[0]["budget"] == "60s"
    assert not any(word.startswith("train.phases=[{num_steps = ") for word in given[0]["overrides"])
    with pytest.raises(UsageError, match="not both"):
        run(name, corpus, tmp_path / "other", steps=5)
    with refusal("the arm one has a number of steps", "train.phases.0.batch_size=64 sets"):
        run(write('equal = "time"\n' + HEAD), corpus, tmp_path / "other")


def test_arms_use_others_and_fine_tune(write: Write, corpus: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_reviews(data / "reviews.csv", 60)
    write_reviews(data / "more.csv", 60)
    arms = """
[[arms]]
name = "continued"
pretrain = {init = "{arm:first}", overrides = ["encoder.num_hidden_layers=1"]}

[[arms]]
name = "first"
compared = false
pretrain = {overrides = ["encoder.num_hidden_layers=1"]}

[[arms]]
name = "again"
model = "{arm:continued/reviews}"
finetune = {new_head = true}
measures = ["reviews"]

[[arms]]
name = "joint"
model = "{arm:first}"
finetune = {data = ["{data}/reviews.csv", "{data}/more.csv"]}
measures = ["reviews"]
"""
    measures = """
[[measures]]
name = "reviews"
title = "Reviews"
kind = "finetuning"
percent = true
[measures.options]
data = "{data}/reviews.csv"
method = "full"
validation = "split"
overrides = ["epochs=1", "max_length=32"]

[[measures]]
name = "seconds"
title = "Seconds"
kind = "cost"
options = {of = "reviews"}

[[measures]]
name = "memory"
title = "GB"
kind = "cost"
options = {of = "reviews", figure = "memory"}
"""
    result = run(
        write(arms=arms, measures=MEASURES + measures), corpus, tmp_path / "out", data=data, seeds=1
    )
    continued = tmp_path / "out/arms/continued/seed-0/model/run.json"
    assert json.loads(continued.read_text())["request"]["init"] == str(
        tmp_path / "out/arms/first/seed-0/model"
    )
    request = json.loads((tmp_path / "out/arms/again/seed-0/reviews/run.json").read_text())[
        "request"
    ]
    assert request["model"] == str(tmp_path / "out/arms/continued/seed-0/reviews")
    assert request["new_head"]
    assert request["data"] == str(data / "reviews.csv")
    assert set(result["measures"]["reviews"]) == {"continued", "first", "again", "joint"}
    task = json.loads(
        (tmp_path / "out/arms/joint/seed-0/reviews/tasks/reviews/result.json").read_text()
    )
    assert (
        result["measures"]["reviews"]["joint"]["mean"]
        == task["figures"][task["metric"]]
        == task["score"]
    )
    assert (tmp_path / "out/arms/joint/seed-0/reviews/tasks/more/result.json").exists()
    assert set(result["measures"]["loss"]) == {"continued", "first"}
    stored = json.loads((tmp_path / "out/arms/first/seed-0/figures.json").read_text())["reviews"]
    finished = json.loads((tmp_path / "out/arms/first/seed-0/reviews/finished.json").read_text())[
        "fields"
    ]
    assert stored["value"] == finished["score"]
    assert len(stored["samples"]) == SAMPLES
    lines = (tmp_path / "out/arms/first/seed-0/reviews/metrics.jsonl").read_text().splitlines()
    steps = [step for step in map(json.loads, lines) if "seconds" in step]
    seconds = result["measures"]["seconds"]["first"]["values"]
    assert seconds == [max(step["seconds"] for step in steps)] != [0.0]
    memory = result["measures"]["memory"]["first"]["values"]
    assert memory == [pytest.approx(max(step["memory"] for step in steps) / 1e9)]


def test_a_cost_is_of_a_finetuning(write: Write, corpus: Path, tmp_path: Path) -> None:
    cost = MEASURES.replace('"loss"', '"cost"').replace("held_out", "cost")
    cost = cost.replace(OPTIONS, 'of = "loss"')
    with refusal("the measure cost names 'loss': expected a measure of the kind finetuning", "of"):
        run(write(measures=MEASURES + cost), corpus, tmp_path / "out")


# --- tables
# --------------------------------------------------------------------------------------------------


def fed(values: dict[str, list[float]], noise: float) -> list[dict[str, Any]]:
    """Figures of arms whose rows have the same noise, and a little of their own."""
    shared = np.random.default_rng(0).normal(0, 1, SAMPLES)
    rows = []
    for number, (arm, seeds) in enumerate(values.items(), 1):
        own = np.random.default_rng(number).normal(0, noise, SAMPLES)
        for seed, value in enumerate(seeds):
            samples = [*(value + shared + own)]
            rows.append(
                {"arm": arm, "seed": seed, "measure": "loss", "value": value, "samples": samples}
            )
    return rows


def table(values: dict[str, list[float]], noise: float = 0.01) -> str:
    ablation = parse_as(Ablation, HEAD + ARMS + MEASURES, "x")
    means = summarize(ablation, fed(values, noise))
    (_, _, rows), *_ = ablation_tables(ablation, means)
    return rows[1][2]


def test_differences_are_paired_by_row_and_seed() -> None:
    assert table({"one": [3.0], "two": [2.5]}).startswith("-0.500 (-0.5")
    assert NOT_RESOLVED not in table({"one": [3.0], "two": [2.5]})  # the rows themselves vary by 1
    assert table({"one": [3.0], "two": [2.99]}, noise=0.1).endswith(f": {NOT_RESOLVED}")
    # Seeds differ by much, differences of one seed do not.
    assert NOT_RESOLVED not in table({"one": [3.0, 5.0, 4.0], "two": [2.5, 4.51, 3.5]})
    assert NOT_RESOLVED in table({"one": [3.0, 5.0, 4.0], "two": [2.5, 5.2, 3.9]})


def test_one_seed_without_rows_has_no_interval() -> None:
    ablation = parse_as(Ablation, HEAD + ARMS + MEASURES, "x")
    figures = [{**row, "samples": []} for row in fed({"one": [3.0], "two": [2.0]}, 1)]
    (_, head, rows), (_, others, published) = ablation_tables(
        ablation, summarize(ablation, figures)
    )
    assert head == ["arm", "mean", "difference to one", "published"]
    assert rows == [
        ["one", "3.000", "", "3.25"],
        ["two: twice as deep", "2.000", "-1.000 (one seed: no interval)", ""],
    ]
    assert (others, published[0]) == (["arm", "MNLI"], ["one", "84.25"])
    assert "held-out rows only" in about_ablation(ablation, 1)
    several = [{**row, "samples": []} for row in fed({"one": [3.0, 3.1], "two": [2.0, 2.1]}, 1)]
    low, high = summarize(ablation, several)["loss"]["two"]["difference"]["interval"]
    assert low == pytest.approx(-1)
    assert high == pytest.approx(-1)


# --- what is refused, before anything is trained
# ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (TWO, "pretrain = {recipes = 1}", "no argument 'recipes'"),
        (TWO, "pretrain = {budget = '1h'}", "no argument 'budget'"),
        (TWO, "", "expected pretrain or model"),
        (TWO, "pretrain = {init = '{arm:three}'}", "'arm:three'"),
        (TWO, "pretrain = {init = '{arm:two}'}", "need each other"),
        ("layers=2", "layer=2", "num_hidden_layers"),
        ('name = "two"', 'name = "one"', "different names"),
        ('name = "two"', 'name = "../two"', "letters, digits"),
        ('title = "twice as deep"', "measures = ['lost']", "the measure 'lost'"),
        ('kind = "held_out"', 'kind = "held"', "expected one of bits, cost, held_out"),
        ("sequences = 12", "sequence = 12", "no argument 'sequence'"),
        ("source =", "sauce =", "no such field"),
        ('recipe = "bert-mini"', "", "has no recipe"),
        ("options = {sequence_length = 32, sequences = 12}", "options = 3", "expected a table"),
    ],
)
def test_bad_files_are_refused(
    old: str, new: str, message: str, write: Write, corpus: Path, tmp_path: Path
) -> None:
    name = write()
    text = Path(name).read_text()
    assert old in text
    Path(name).write_text(text.replace(old, new))
    with pytest.raises(UsageError, match=message):
        run(name, corpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bad_calls_are_refused(write: Write, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no ablation called 'table9'") as error:
        run("table9", corpus, tmp_path / "out")
    assert "table8" in str(error.value)
    for options in ({"seeds": 0}, {"scale": 0.0}, {"steps": 5, "scale": 2.0}):
        with pytest.raises(UsageError, match="expected 1 seed"):
            run(write(), corpus, tmp_path / "out", **options)
    finetuned = MEASURES.replace('"loss"', '"task"').replace("held_out", "finetuning")
    finetuned = MEASURES + finetuned.replace(OPTIONS, 'data = "{data}/missing"')
    with pytest.raises(UsageError, match="--data FOLDER"):
        run(write(measures=finetuned), corpus, tmp_path / "out")
    with pytest.raises(BertworksError, match="missing"):
        run(write(measures=finetuned), corpus, tmp_path / "out", data=tmp_path)
    arms = f'{ARMS}finetune = {{overrides = ["epochs=4"]}}'
    twice = finetuned.replace('missing"', 'missing", epochs = 3')
    with pytest.raises(UsageError, match="epochs is set twice"):
        run(write(arms=arms, measures=twice), corpus, tmp_path / "out", data=tmp_path)
    with pytest.raises(UsageError, match="pre-trains on text"):
        run(write(), [], tmp_path / "out")
    with pytest.raises(BertworksError, match="no such file"):
        run(write(), tmp_path / "none.txt", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_ablations_can_be_trained(name: str) -> None:
    """Their recipes are valid, and model folders can hold them."""
    ablation = parse_as(Ablation, PACKAGED[name], name)
    work = module._Work(ablation, ["text"], None, None, Path("none"), "cpu")
    tokens = []
    # what others are trained further from
    bases = {arm.pretrain.get("init") for arm in ablation.arms}
    for arm in ablation.in_order():
        if ablation.arguments(arm):
            recipe = work.recipe(arm)
            pad_token_id = 1 if recipe.vocabulary.special_tokens == "roberta" else 0
            check_representable(recipe.encoder, pad_token_id)
            assert can_hold(recipe.encoder, heads_of(recipe.weights))
            tokens += [recipe.train.num_tokens] * (
                arm.compared and f"{{arm:{arm.name}}}" not in bases
            )
    assert name in bw.list_ablations()
    assert len(set(tokens)) <= 1 or ablation.equal == "time"


def test_the_corpus_stands_alone_or_in_a_list() -> None:
    ablation = parse_as(Ablation, PACKAGED["memory"], "memory")
    work = module._Work(ablation, ["a.txt", "b.txt"], None, None, Path("none"), "cpu")
    for value in ("{corpus}", ["{corpus}"]):
        assert work._fill(0, {"inputs": value}) == {"inputs": ["a.txt", "b.txt"]}
    assert work._fill(0, ["c.txt", "{corpus}"]) == ["c.txt", "a.txt", "b.txt"]


def test_the_command(
    write: Write,
    corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["evaluate", "ablation"]) == 0
    assert "table6        Size of the network" in capsys.readouterr().out
    out = str(tmp_path / "out")
    assert (
        main(
            [
                "evaluate",
                "ablation",
                write(),
                str(corpus),
                "-o",
                out,
                "--seeds",
                "1",
                "--steps",
                "4",
            ]
        )
        == 0
    )
    assert "table.md" in capsys.readouterr().out
    assert "| two: twice as deep |" in (tmp_path / "out/table.md").read_text()
    assert main(["evaluate", "ablation", write(), str(corpus)]) == 2
    assert "-o FOLDER" in capsys.readouterr().err
    shutil.rmtree(out)


def test_held_out_figures_are_those_of_the_network(
    write: Write, corpus: Path, tmp_path: Path
) -> None:
    run(write(), corpus, tmp_path / "out", seeds=1)
    folder, shards = tmp_path / "out/arms/one/seed-0/model", Shards.open(tmp_path / "out/shards")
    arm = Arm(str(folder), 0, shards.folder, tmp_path / "none", {}, {}, "cpu")
    store = split_long_documents(shards)
    documents = split_documents(store, 0)[1]
    batches = held_out_batches(
        store,
        documents,
        shards.tokenizer(),
        format="full_sentences",
        sequence_length=32,
        sequences=12,
    )
    config, state, _ = load_model(folder)
    network = PretrainingModel(config, {"masked_lm": 1.0, "next_sentence": 1.0})
    network.load_state_dict({name: state[name] for name, _ in network.named_parameters()})
    network.eval()
    losses, right, count = 0.0, 0, 0
    with torch.no_grad():
        for batch in batches:
            logits, labels = network.scores(batch), batch.targets["masked_lm"].labels
            losses += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
            right, count = right + int((logits.argmax(-1) == labels).sum()), count + len(labels)

    def measured(**options: Any) -> float:
        result: list[Measured] = []

        def follow() -> Iterator[Event]:
            result.append((yield from measure_held_out(arm, sequence_length=32, **options)))

        list(follow())
        value, samples, _ = result[0]
        assert len(samples) == SAMPLES
        assert min(samples) <= value <= max(samples)
        return value

    assert measured(sequences=12) == pytest.approx(losses / count, abs=2e-5)
    assert measured(sequences=12, figure="perplexity") == pytest.approx(
        np.exp(losses / count), rel=2e-5
    )
    assert measured(sequences=12, figure="accuracy") == pytest.approx(right / count)
    assert measured(sequences=12, mask=0.0, random=0.0) != pytest.approx(losses / count, abs=1e-3)
    for format in ("next_sentence", "sentence_order"):
        options: Any = {"format": format, "sequence_length": 32, "sequences": 9}
        batches = held_out_batches(store, documents, shards.tokenizer(), **options)
        with torch.no_grad():
            for batch in batches:
                states = network.encoder(batch.input_ids, batch.layout, batch.token_type_ids)[-1]
                assert network.pooler is not None
                assert network.next_sentence is not None
                pooled = network.pooler(states[batch.layout.cu_seqlens[:-1].long()])
                expected = (
                    (network.next_sentence(pooled).argmax(-1) == batch.targets[format].labels)
                    .float()
                    .mean()
                )
        assert measured(
            predict="pairs", format=format, figure="accuracy", sequences=9
        ) == pytest.approx(float(expected))
    with pytest.raises(UsageError, match="no pairs"):
        measured(predict="pairs")
    with pytest.raises(BertworksError, match="64 tokens, not 128"):
        list(measure_held_out(arm))


def test_what_cannot_be_measured_is_refused(model: Path, tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt")
    tokenizer = Tokenizer.load(model)
    write_shards(CorpusReader([tmp_path / "a.txt"]), tokenizer, tmp_path / "shards", workers=1)
    arm = Arm(str(model), 0, tmp_path / "shards", tmp_path / "none", {"loss": 1.0}, {}, "cpu")
    with refusal("the training of", "name one of loss"):
        list(measure_training(arm, figure="speed"))
    with refusal("the model reads 64 tokens, not 128", "set sequence_length in the options"):
        list(measure_held_out(arm))
    with refusal("sequences of the format 'full_sentences' have no pairs", "next_sentence"):
        list(measure_held_out(arm, predict="pairs", sequence_length=32))
    vocabulary, _ = train_vocabulary(["other words"] * 5, VocabularyConfig(size=60))
    write_shards(CorpusReader([tmp_path / "a.txt"]), vocabulary, tmp_path / "others", workers=1)
    arm = arm._replace(shards=tmp_path / "others")
    what = "the vocabulary of the model is not that of the held-out text"
    with refusal(what, "measure a fine-tuning instead"):
        list(measure_held_out(arm, sequence_length=32))


def test_absurd_scales_are_refused(write: Write, corpus: Path, tmp_path: Path) -> None:
    with refusal("times the steps or the time", "choose a smaller number of --steps or --scale"):
        run(write(), corpus, tmp_path / "out", scale=1e9)
    assert not (tmp_path / "out").exists()

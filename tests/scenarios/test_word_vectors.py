"""Static vectors that are trained on a text: each recipe learns, its folder serves every command
that reads static vectors, and what has no meaning is refused."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertworks as bw
from bertworks.checkpoints.model_folder import load_model
from bertworks.cli.main import main
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.embedder import Embedder, num_zero
from bertworks.retrieval.index import Index
from bertworks.runs.pretrain import estimate, pretrain
from bertworks.text.tokenizer import Template
from bertworks.training.recipe import load_recipe
from tests.support.fine import tokenizer
from tests.support.refusals import refusal
from tests.support.tiny import assert_same_run, metrics, newest

RECIPES = {"skip-gram": "skip_gram", "cbow": "cbow"}
# Words of a topic stand next to each other, and next to none of another topic.
TOPICS = [
    ["whale", "shark", "squid", "coral", "reef"],
    ["engine", "piston", "valve", "gasket", "rotor"],
    ["sonata", "fugue", "viola", "oboe", "chord"],
]
OVERRIDES = [
    "encoder.hidden_size=16",
    "optimizer.learning_rate=5e-2",
    "context.subsampling=0",
    "train.held_out_sequences=20",
    "train.evaluate_every=50",
    "train.phases.0.num_steps=200",
    "train.phases.0.batch_size=8",
    "train.phases.0.sequence_length=128",
]
TABLE = "encoder.embeddings.token.weight"


def sentences(count: int = 900, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [
        " ".join([*draw.choices(draw.choice(TOPICS), k=5), draw.choice(["and", "or"])]) + "."
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "t.jsonl"
    lines = sentences()
    documents = [" ".join(lines[n : n + 9]).capitalize() for n in range(0, len(lines), 9)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


def run(text: Path, output: Path, recipe: str, *overrides: str, **options: Any) -> list[Any]:
    words = [*OVERRIDES, *overrides]
    return list(
        pretrain([text], output, recipe=recipe, overrides=words, workers=1, device="cpu", **options)
    )


@pytest.fixture(scope="module", params=RECIPES)
def trained(
    request: pytest.FixtureRequest, text: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    output = tmp_path_factory.mktemp("run") / request.param
    events = run(text, output, request.param)
    assert "evaluate similarity" in events[-1].text
    return RECIPES[request.param], output


def test_words_of_a_topic_come_together(trained: tuple[str, Path]):
    kind, folder = trained
    losses = [row["evaluation"][f"{kind}_loss"] for row in metrics(folder) if "evaluation" in row]
    assert losses[0] == pytest.approx(6 * np.log(2), abs=0.01)
    assert losses[-1] < 0.8 * losses[0]
    embedder = Embedder(folder, device="cpu", normalize=True)
    words = [word for topic in TOPICS for word in topic]
    cosines = embedder.embed(words) @ embedder.embed(words).T
    topics = np.arange(len(words)) // 5
    same = topics[:, None] == topics
    assert cosines[same].mean() > cosines[~same].mean() + 0.5


def test_the_folder_is_one_of_static_vectors(trained: tuple[str, Path]):
    _, folder = trained
    config, state, tokens = load_model(folder)
    assert (config.kind, config.hidden_size) == ("static", 16)
    assert set(state) == {TABLE}
    assert tokens.template == Template((), (), ())
    assert not state[TABLE][sorted(tokens.special_ids)].any()
    assert {word for topic in TOPICS for word in topic} <= {*tokens.tokens}
    # the second table is in the checkpoint alone
    checkpoint = (newest(folder) / "state.safetensors").read_bytes()[:4000]
    assert b"parameter/context.weight" in checkpoint
    card = (folder / "README.md").read_text()
    assert "library_name: sentence-transformers" in card
    assert "a vector of 16 numbers for each token" in card
    library = pytest.importorskip("sentence_transformers")
    texts = ["A whale and a shark", "", "?!", "unheard-of", "PISTON valve"]
    vectors = library.SentenceTransformer(str(folder), device="cpu").encode(texts)
    ours = Embedder(folder, device="cpu").embed(texts)
    np.testing.assert_allclose(ours, vectors, atol=1e-6)
    assert num_zero(ours) == 3


def test_commands_read_the_folder(
    trained: tuple[str, Path], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    _, folder = trained
    rows = tmp_path / "rows.csv"
    rows.write_text("text\nwhale reef\nno known words\npiston rotor\nfugue\n")
    assert main(["embed", str(folder), str(rows), "-o", str(tmp_path / "v.npy"), "--json"]) == 0
    done = [json.loads(line) for line in capsys.readouterr().out.splitlines()][-1]
    assert done["without_vector"] == 1
    assert main(["index", str(rows), "--model", str(folder), "-o", str(tmp_path / "idx")]) == 0
    (hit, *_) = Index(tmp_path / "idx", device="cpu").search("shark", ranking="dense")
    assert hit["text"] == "whale reef"
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("whale shark 9\nwhale valve 1\nviola oboe 9\nviola reef 1\nwhale zebra 3\n")
    figures = bw.evaluate_similarity(folder, [pairs])["files"][str(pairs)]
    assert (figures["known"], figures["pairs"]) == (4, 5)
    assert figures["spearman"] > 0.8


def test_a_resumed_training_is_that_without_a_stop(text: Path, tmp_path: Path):
    options: dict[str, Any] = {"recipe": "skip-gram", "workers": 1, "device": "cpu"}
    options["overrides"] = [*OVERRIDES, "context.subsampling=1e-2"]
    list(pretrain([text], tmp_path / "a", **options))
    events = pretrain([text], tmp_path / "b", **options)
    for event in events:
        if event.kind == "evaluation" and event.fields["step"] == 100:
            break
    events.close()  # type: ignore[attr-defined]
    assert load_model(tmp_path / "b").state
    list(pretrain([text], tmp_path / "b", **options))
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_micro_batches_change_only_the_last_bits(text: Path, tmp_path: Path):
    for name, size in (("a", 1024), ("b", 256)):
        run(text, tmp_path / name, "skip-gram", f"train.micro_batch_tokens={size}")
    first, second = (load_model(tmp_path / name).state[TABLE] for name in "ab")
    torch.testing.assert_close(first, second, rtol=0, atol=2e-3)


def test_another_vocabulary_may_be_used(text: Path, tmp_path: Path):
    """Tokens that the text does not have, and special ones, have the vector 0."""
    tokenizer().save(tmp_path / "tokenizer")
    run(text, tmp_path / "a", "cbow", tokenizer=str(tmp_path / "tokenizer"))
    _, state, tokens = load_model(tmp_path / "a")
    known = {number for ids in tokens.ids(sentences()) for number in ids} - tokens.special_ids
    zero = {*np.flatnonzero(~state[TABLE].any(1)).tolist()}
    assert zero == {*range(len(tokens.tokens))} - known


def test_what_static_vectors_cannot_do_is_refused(trained: tuple[str, Path], text: Path):
    _, folder = trained
    model = bw.load(folder)
    for ability in (model.fill, model.generate, model.score):
        with refusal("static vectors do not predict tokens", "use embed"):
            ability(["the whale"])
    with refusal("there is no network to explain", "use embed"):
        model.explain("the whale")
    assert main(["fill", str(folder), "the whale"]) == 1
    with refusal("not trained further", "--recipe skip-gram"):
        run(text, folder.parent / "x", "skip-gram", init=str(folder))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sampling.format=stream"], "sampling.format = 'sentences'"),
        (["initialization=xavier"], "expected initialization = 'published'"),
        (["train.precision=bf16"], "computed in fp32"),
        (["context.window=64"], "expected 1 to 63"),
        (["context.subsampling=2"], "a fraction from 0 to 1"),
        (['objectives=[{kind="masked_lm"}]'], "skip_gram or cbow"),
    ],
)
def test_recipes_without_meaning_are_refused(overrides: list[str], message: str):
    with pytest.raises(UsageError) as caught:
        load_recipe("skip-gram", overrides)
    assert message in str(caught.value)
    with pytest.raises(UsageError, match="which no other network has"):
        load_recipe("bert-tiny", ['objectives=[{kind="skip_gram"}]'])


def test_texts_without_words_or_sentences_are_refused(text: Path, tmp_path: Path):
    rare = tmp_path / "rare.txt"
    rare.write_text("\n\n".join(f"word{n} other{n}." for n in range(60)))
    with refusal("no word of the text occurs 5 times", "vocabulary.min_frequency"):
        run(rare, tmp_path / "a", "skip-gram")
    single = tmp_path / "single.txt"
    single.write_text("\n\n".join(["Whale.", "Shark.", "Reef."] * 60))
    with refusal("no sentence of the held-out text has two words", "whole sentences"):
        run(single, tmp_path / "b", "skip-gram")
    tokens = bw.VocabularyConfig(size=50, algorithm="words", min_frequency=1)
    other, _ = bw.train_vocabulary(["quite other words " * 3], tokens, workers=1)
    other.save(tmp_path / "tokenizer")
    with refusal("none of the words of the text", "leave --tokenizer out"):
        run(text, tmp_path / "c", "cbow", tokenizer=str(tmp_path / "tokenizer"))
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    with pytest.raises(BertworksError):
        run(empty, tmp_path / "d", "skip-gram")


def test_an_estimate_counts_the_second_table(text: Path):
    cost = estimate([text], recipe="skip-gram", speed=False, overrides=["vocabulary.size=1000"])
    assert cost.trained == 2 * cost.parameters == 200_000
    assert "and 100,000 of the second table" in str(cost)
    limited = estimate([text], recipe="cbow", budget="1m", speed=False)
    assert limited.title == load_recipe("cbow").title


@pytest.mark.slow
def test_a_budget_chooses_the_steps(text: Path, tmp_path: Path):
    words = [word for word in OVERRIDES if "num_steps" not in word]
    events = list(
        pretrain(
            [text],
            tmp_path / "a",
            recipe="cbow",
            overrides=words,
            budget="20s",
            workers=1,
            device="cpu",
        )
    )
    assert events[-1].fields["step"] > 0

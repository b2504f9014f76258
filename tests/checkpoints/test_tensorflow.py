"""Google's checkpoints are read without TensorFlow: every number, what the code would have
computed, and no lie."""

import json
import math
import resource
import shutil

import numpy as np
import pytest
import torch

from bertworks.checkpoints.model_folder import load_model
from bertworks.checkpoints.tensorflow import find_checkpoint, load_checkpoint, read_index
from bertworks.cli.main import main
from bertworks.errors import BertworksError
from bertworks.interop.convert import convert, import_checkpoint
from bertworks.models.layout import Layout
from bertworks.models.transformer import Encoder
from tests.support import bundles

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", *(f"##{c}" for c in "abcde")]
CONFIG = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "vocab_size": 20,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}
H, INNER = 8, 12


def layer(prefix, inputs, outputs, norm=False):
    found = {f"{prefix}/dense/kernel": (inputs, outputs), f"{prefix}/dense/bias": (outputs,)}
    return found | (
        {f"{prefix}/LayerNorm/{end}": (outputs,) for end in ("beta", "gamma")} if norm else {}
    )


def shapes():
    """Names and shapes as google-research/bert's modeling.py and run_pretraining.py make them,
    written out here."""
    found = {f"bert/embeddings/LayerNorm/{end}": (H,) for end in ("beta", "gamma")}
    for name, size in (("word", 20), ("position", 16), ("token_type", 2)):
        found[f"bert/embeddings/{name}_embeddings"] = (size, H)
    for number in range(2):
        at = f"bert/encoder/layer_{number}"
        for part in ("query", "key", "value"):
            found |= {
                f"{at}/attention/self/{part}/kernel": (H, H),
                f"{at}/attention/self/{part}/bias": (H,),
            }
        found |= layer(f"{at}/attention/output", H, H, norm=True)
        found |= layer(f"{at}/intermediate", H, INNER) | layer(f"{at}/output", INNER, H, norm=True)
    return found | layer("bert/pooler", H, H)


PRETRAINING = layer("cls/predictions/transform", H, H, norm=True) | {
    "cls/predictions/output_bias": (20,),
    "cls/seq_relationship/output_weights": (2, H),
    "cls/seq_relationship/output_bias": (2,),
}
HEADS = {
    "pretraining": PRETRAINING,
    "classifier": {"output_weights": (3, H), "output_bias": (3,)},
    "squad": {"cls/squad/output_weights": (2, H), "cls/squad/output_bias": (2,)},
    "none": {},
}


def numbers(head="pretraining", seed=0):
    draw = np.random.default_rng(seed)
    return {
        name: draw.normal(1 if name.endswith("gamma") else 0, 0.2, size).astype(np.float32)
        for name, size in (shapes() | HEADS[head]).items()
    }


def with_slots(variables):
    slots = {f"{name}/adam_{m}": value for name, value in variables.items() for m in "mv"}
    return variables | slots | {"global_step": np.array(20, np.int64)}


def written(folder, variables, **options):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bert_config.json").write_text(json.dumps(CONFIG))
    (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n")
    return bundles.write(folder / "bert_model.ckpt", variables, **options)


def last_state(v, c, ids, types, gelu=True):
    """What Google's modeling.py computes for one sequence, in float64, by its own names: [S,
    hidden]."""
    v = {name: value.astype(np.float64) for name, value in v.items()}
    hidden, heads = c["hidden_size"], c["num_attention_heads"]

    def dense(x, name):
        return x @ v[f"{name}/kernel"] + v[f"{name}/bias"]

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * v[f"{name}/LayerNorm/gamma"] + v[f"{name}/LayerNorm/beta"]

    def activation(x):
        exact = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
        return (
            0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
            if gelu
            else exact
        )

    e = "bert/embeddings"
    x = v[f"{e}/word_embeddings"][ids] + v[f"{e}/token_type_embeddings"][types]
    x = norm(x + v[f"{e}/position_embeddings"][: len(ids)], e)
    for number in range(c["num_hidden_layers"]):
        at = f"bert/encoder/layer_{number}"
        q, k, w = (
            dense(x, f"{at}/attention/self/{part}")
            .reshape(len(ids), heads, hidden // heads)
            .transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )
        scores = np.exp(q @ k.transpose(0, 2, 1) / math.sqrt(hidden // heads))
        mixed = (
            (scores / scores.sum(-1, keepdims=True) @ w)
            .transpose(1, 0, 2)
            .reshape(len(ids), hidden)
        )
        x = norm(x + dense(mixed, f"{at}/attention/output/dense"), f"{at}/attention/output")
        inner = activation(dense(x, f"{at}/intermediate/dense"))
        x = norm(x + dense(inner, f"{at}/output/dense"), f"{at}/output")
    return x


def our_state(model, ids, types):
    encoder = Encoder(model.config).eval()
    encoder.load_state_dict(
        {n.removeprefix("encoder."): t for n, t in model.state.items() if n.startswith("encoder.")}
    )
    with torch.no_grad():
        return encoder(torch.tensor(ids), Layout.of([len(ids)]), torch.tensor(types))[-1].numpy()


# --- the format


@pytest.mark.parametrize("files", [1, 3])
def test_every_variable_comes_back(tmp_path, files):
    variables = with_slots(numbers())
    variables["half"] = np.arange(5, dtype=np.float16)
    found = read_index(bundles.write(tmp_path / "model.ckpt-20", variables, files=files))
    assert list(found) == sorted(variables)
    for name, value in variables.items():
        read = found[name].read().numpy()
        assert read.dtype == value.dtype
        assert np.array_equal(read, value)


# --- the model


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
def test_the_states_are_those_of_googles_code(tmp_path, gelu):
    variables = numbers()
    model, notes = load_checkpoint(written(tmp_path, with_slots(variables)), gelu=gelu)
    ids, types = [2, 5, 7, 16, 3, 9, 9, 3], [0, 0, 0, 0, 0, 1, 1, 1]
    expected = last_state(variables, CONFIG, ids, types, gelu == "tanh")
    np.testing.assert_allclose(our_state(model, ids, types), expected, atol=1e-5)
    assert model.config.hidden_act == {"tanh": "gelu_tanh", "exact": "gelu"}[gelu]
    assert f"left out: {2 * len(variables) + 1} variables of the optimizer" in notes
    assert any("by tanh" in note for note in notes) == (gelu == "tanh")


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("pretraining", "BertForPreTraining"),
        ("classifier", "BertForSequenceClassification"),
        ("squad", "BertForQuestionAnswering"),
        ("none", "BertModel"),
    ],
)
def test_it_opens_in_transformers_with_the_same_numbers(tmp_path, head, kind):
    transformers = pytest.importorskip("transformers")
    variables = numbers(head)
    list(import_checkpoint(written(tmp_path / "google", with_slots(variables)), tmp_path / "ours"))
    theirs, report = getattr(transformers, kind).from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    # Google saves a pooler beside every head; theirs for questions has none.
    unexpected = (
        {"bert.pooler.dense.weight", "bert.pooler.dense.bias"} if head == "squad" else set()
    )
    assert {name: set(found) for name, found in report.items() if found} == (
        {"unexpected_keys": unexpected} if unexpected else {}
    )
    assert theirs.config.architectures == [kind]
    ids, types = [2, 5, 7, 16, 3, 9, 9, 3], [0, 0, 0, 0, 0, 1, 1, 1]
    x = last_state(variables, CONFIG, ids, types)
    pooled = np.tanh(
        x[0] @ variables["bert/pooler/dense/kernel"] + variables["bert/pooler/dense/bias"]
    )
    with torch.no_grad():
        found = theirs.eval()(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types]))
    if head == "none":
        np.testing.assert_allclose(found.last_hidden_state[0], x, atol=1e-5)
        np.testing.assert_allclose(found.pooler_output[0], pooled, atol=1e-5)
    elif head == "classifier":
        np.testing.assert_allclose(
            found.logits[0],
            pooled @ variables["output_weights"].T + variables["output_bias"],
            atol=1e-5,
        )
        assert theirs.config.num_labels == 3
    elif head == "squad":
        expected = x @ variables["cls/squad/output_weights"].T + variables["cls/squad/output_bias"]
        np.testing.assert_allclose(
            torch.stack([found.start_logits[0], found.end_logits[0]], -1), expected, atol=1e-5
        )
    else:
        pair = (
            pooled @ variables["cls/seq_relationship/output_weights"].T
            + variables["cls/seq_relationship/output_bias"]
        )
        np.testing.assert_allclose(found.seq_relationship_logits[0], pair, atol=1e-5)
        v, at = variables, "cls/predictions/transform"
        y = x @ v[f"{at}/dense/kernel"] + v[f"{at}/dense/bias"]
        y = 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
        y = (y - y.mean(-1, keepdims=True)) / y.std(-1, keepdims=True)
        y = y * v[f"{at}/LayerNorm/gamma"] + v[f"{at}/LayerNorm/beta"]
        words = y @ v["bert/embeddings/word_embeddings"].T + v["cls/predictions/output_bias"]
        np.testing.assert_allclose(found.prediction_logits[0], words, atol=1e-5)


def test_a_real_checkpoint_of_tensorflow(data_folder, tmp_path):
    folder = data_folder / "tf-checkpoint"
    found = read_index(folder / "bert_model.ckpt")
    assert len(found) == 139
    # each against its checksum
    variables = {name: variable.read().numpy() for name, variable in found.items()}
    assert variables["global_step"] == 20
    events = list(import_checkpoint(folder, tmp_path / "ours"))
    assert "left out: 93 variables of the optimizer" in [event.text for event in events]
    config = json.loads((folder / "bert_config.json").read_text())
    ids, types = [2, 5, 6, 7, 8, 9, 3, 14, 3], [0, 0, 0, 0, 0, 0, 0, 1, 1]
    model = load_model(tmp_path / "ours", needs={"lm_head", "next_sentence", "pooler"})
    np.testing.assert_allclose(
        our_state(model, ids, types), last_state(variables, config, ids, types), atol=1e-5
    )
    transformers = pytest.importorskip("transformers")
    theirs, report = transformers.AutoModelForPreTraining.from_pretrained(
        tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(report.values())
    assert theirs.config.hidden_act == "gelu_new"
    with torch.no_grad():
        states = theirs.eval().bert(
            input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types])
        )
    np.testing.assert_allclose(
        states.last_hidden_state[0], last_state(variables, config, ids, types), atol=1e-5
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer("All work, and no PLAY")["input_ids"] == [2, 5, 6, 1, 7, 8, 9, 3]


# --- what is found, asked for, and named


def test_a_checkpoint_is_found_by_any_of_its_names(tmp_path):
    prefix = written(tmp_path, numbers())
    for name in (
        "",
        "bert_model.ckpt",
        "bert_model.ckpt.index",
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.meta",
    ):
        assert find_checkpoint(tmp_path / name) == prefix
    assert find_checkpoint(tmp_path / "other.ckpt") is None
    bundles.write(tmp_path / "model.ckpt-7", {"a": np.zeros(1, np.float32)})
    with pytest.raises(BertworksError, match="several checkpoints"):
        find_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("folder", "option", "expected"),
    [
        ("uncased_L-2_H-8_A-2", None, True),
        ("multi_cased_L-2_H-8_A-2", None, False),
        ("wwm_uncased_L-2", False, False),
        ("cased_L-2", True, True),
        ("plain", None, True),  # no capitals in the vocabulary
        ("plain", False, False),
    ],
)
def test_cased_or_uncased(tmp_path, folder, option, expected):
    model, notes = load_checkpoint(written(tmp_path / folder, numbers()), lowercase=option)
    assert model.tokenizer.lowercase is expected
    assert any("lower-cased" in note or "cased)" in note for note in notes)
    assert model.tokenizer.model_max_length == 16


def test_config_and_vocabulary_may_be_elsewhere(tmp_path):
    prefix = written(tmp_path / "google", numbers())
    for name in ("bert_config.json", "vocab.txt"):
        shutil.move(tmp_path / "google" / name, tmp_path / f"my-{name}")
    with pytest.raises(BertworksError, match=r"no bert_config\.json"):
        load_checkpoint(prefix)
    with pytest.raises(BertworksError, match=r"no vocab\.txt"):
        load_checkpoint(prefix, config=tmp_path / "my-bert_config.json")
    load_checkpoint(
        prefix, config=tmp_path / "my-bert_config.json", vocabulary=tmp_path / "my-vocab.txt"
    )


def test_an_unknown_variable_is_named_and_can_be_left_out(tmp_path):
    strange = {
        "bert/extra/kernel": np.zeros((8, 8), np.float32),
        "crf/transitions": np.zeros((3, 3), np.float32),
    }
    prefix = written(tmp_path, numbers() | strange)
    with pytest.raises(BertworksError, match="bert/extra/kernel, crf/transitions") as raised:
        load_checkpoint(prefix)
    assert "--leave-out bert/extra/kernel" in raised.value.hint
    _, notes = load_checkpoint(prefix, leave_out=["bert/extra/*", "crf/*"])
    assert "left out, as the options say: bert/extra/kernel, crf/transitions" in notes


def test_a_missing_variable_or_a_wrong_shape_is_named(tmp_path):
    variables = numbers()
    del variables["bert/encoder/layer_1/output/dense/bias"]
    with pytest.raises(BertworksError, match=r"encoder\.layer\.1\.output\.dense\.bias missing"):
        load_checkpoint(written(tmp_path, variables))
    variables = numbers() | {
        "bert/encoder/layer_1/intermediate/dense/kernel": np.zeros((12, 8), np.float32)
    }
    with pytest.raises(
        BertworksError, match=r"layer\.1\.intermediate\.dense\.weight is .*\[8, 12\]"
    ):
        load_checkpoint(written(tmp_path, variables))
    with pytest.raises(BertworksError, match="objects"):
        load_checkpoint(
            written(tmp_path, {"model/x/.ATTRIBUTES/VARIABLE_VALUE": np.zeros(1, np.float32)})
        )


def test_numbers_that_are_none_are_refused(tmp_path):
    variables = numbers()
    variables["bert/pooler/dense/kernel"][0, 0] = np.nan
    with pytest.raises(BertworksError, match="NaN or infinite"):
        load_checkpoint(written(tmp_path, variables))


# --- damage and lies


def test_a_checkpoint_cut_anywhere_is_an_error(tmp_path):
    prefix = written(tmp_path, numbers())
    for path in (
        prefix.with_name("bert_model.ckpt.index"),
        prefix.with_name("bert_model.ckpt.data-00000-of-00001"),
    ):
        content = path.read_bytes()
        for length in range(0, len(content), len(content) // 60):
            path.write_bytes(content[:length])
            with pytest.raises(BertworksError, match=r"bert_model\.ckpt"):
                load_checkpoint(prefix)
        path.unlink()
        with pytest.raises(BertworksError, match=r"bert_model\.ckpt"):
            load_checkpoint(prefix)
        path.write_bytes(content)
    load_checkpoint(prefix)


def test_a_changed_byte_anywhere_is_seen(tmp_path):
    prefix = written(tmp_path, numbers())
    index, data = (
        prefix.with_name(f"bert_model.ckpt.{end}") for end in ("index", "data-00000-of-00001")
    )
    content = bytearray(index.read_bytes())
    for place in range(0, len(content), 41):
        damaged = content.copy()
        damaged[place] ^= 0x10
        index.write_bytes(damaged)
        try:
            found = read_index(prefix)
        except BertworksError:
            continue
        # The block of what is said about blocks, and the filling before the magic number, nobody
        # reads.
        assert place >= len(content) - 48 - 64
        assert len(found) == len(numbers())
    index.write_bytes(content)
    content = bytearray(data.read_bytes())
    for place in range(0, len(content), len(content) // 20):
        damaged = content.copy()
        damaged[place] ^= 1
        data.write_bytes(damaged)
        with pytest.raises(BertworksError, match="checksum is wrong"):
            load_checkpoint(prefix)


def huge(*sizes):
    return b"".join(bundles.message(2, bundles.number(1, size)) for size in sizes)


NAME = "bert/pooler/dense/kernel"
LIES = {
    "a shape beyond all": {"shape": huge(2**62, 2**62)},
    "a negative size": {"shape": huge(2**64 - 1, 8)},
    "a shape and size beyond the file": {"shape": huge(2**40, 8), "size": 2**45},
    "an offset beyond the file": {"offset": 2**50},
    "a size that is not that of the shape": {"size": 12},
    "many dimensions": {"shape": huge(*[1] * 60, 64)},
    "a file that is not there": {"file": 3},
    "a file beyond all": {"file": 2**40},
    "strings": {"dtype": 7},
    "an unknown kind": {"dtype": 99},
    "pieces": {"slices": 1},
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_errors_before_memory_is_spent(tmp_path, lie):
    prefix = written(tmp_path, numbers(), lies={NAME: LIES[lie]})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BertworksError):
        load_checkpoint(prefix)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def place(start, size):
    return bundles.varint(start) + bundles.varint(size)


ONE = (b"a", bundles.entry(np.zeros(1, np.float32), 0))


INDEXES = {
    "empty": b"",
    "only the magic number": (b"\0" * 40) + bundles.table([])[-8:],
    "places beyond the end": (place(2**60, 2**60) * 2).ljust(40, b"\0") + bundles.table([])[-8:],
    "places without end": b"\xff" * 40 + bundles.table([])[-8:],
    "no entries": bundles.table([]),
    "no header": bundles.table([ONE]),
    "big-endian": bundles.table([(b"", bundles.header(1, 1)), ONE]),
    "no files": bundles.table([(b"", bundles.header(0)), ONE]),
    "a billion files": bundles.table([(b"", bundles.header(10**9)), ONE]),
    "compressed": bundles.table([(b"", bundles.header()), ONE], kind=1),
    "twice": bundles.table([(b"", bundles.header()), ONE, ONE]),
    "not sorted": bundles.table([(b"", bundles.header()), (b"b", ONE[1]), ONE]),
    "a name that is no text": bundles.table([(b"", bundles.header()), (b"\xff\xfe", ONE[1])]),
    "a name without end": bundles.table([(b"", bundles.header()), (b"n" * 5000, ONE[1])]),
    "no message": bundles.table([(b"", bundles.header()), (b"a", b"\xff" * 30)]),
    "a message cut": bundles.table([(b"", bundles.header()), (b"a", ONE[1][:-2])]),
    "a group": bundles.table([(b"", bundles.header()), (b"a", b"\x0b")]),
    "a number for a message": bundles.table(
        [(b"", bundles.header()), (b"a", bundles.number(2, 5))]
    ),
    "a message for a number": bundles.table(
        [(b"", bundles.header()), (b"a", bundles.message(1, b"x"))]
    ),
    "a safetensors file": b"\x10\0\0\0\0\0\0\0{}              " + b"\0" * 64,
}


@pytest.mark.parametrize("name", INDEXES)
def test_an_index_that_is_none_is_an_error(tmp_path, name):
    prefix = written(tmp_path, {"a": np.zeros(1, np.float32)})
    prefix.with_name("bert_model.ckpt.index").write_bytes(INDEXES[name])
    with pytest.raises(BertworksError, match=r"bert_model\.ckpt\.index"):
        load_checkpoint(prefix)


def test_an_index_of_many_names_and_one_that_is_enormous(tmp_path, monkeypatch):
    prefix = written(tmp_path, {"a": np.zeros(1, np.float32)})
    monkeypatch.setattr("bertworks.checkpoints.tensorflow._MOST_VARIABLES", 100)
    rows = [(f"n{number:05d}".encode(), ONE[1]) for number in range(200)]
    prefix.with_name("bert_model.ckpt.index").write_bytes(
        bundles.table([(b"", bundles.header()), *rows])
    )
    with pytest.raises(BertworksError, match="more than 100 variables"):
        read_index(prefix)
    with prefix.with_name("bert_model.ckpt.index").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BertworksError, match="too much for this file"):
        read_index(prefix)


def test_a_block_that_is_named_many_times_is_not_read_as_often(tmp_path):
    """Else an index of 8 MB would become terabytes of rows."""
    prefix = written(tmp_path, {"a": np.zeros(1, np.float32)})
    made = bundles.block([(b"", bundles.header() + bundles.message(9, b"x" * 1000))])
    places = bundles.block([(b"%06d" % number, place(0, len(made) - 5)) for number in range(100)])
    footer = place(0, len(made) - 5) + place(len(made), len(places) - 5)
    index = made + places + footer.ljust(40, b"\0") + bundles.table([])[-8:]
    prefix.with_name("bert_model.ckpt.index").write_bytes(index)
    with pytest.raises(BertworksError, match="blocks that overlap"):
        read_index(prefix)


# --- the command


def test_the_command(tmp_path, capsys):
    prefix = written(tmp_path / "uncased_L-2", with_slots(numbers()))
    assert (
        main(["import", str(prefix), "-o", str(tmp_path / "ours"), "--cased", "--gelu", "exact"])
        == 0
    )
    said = capsys.readouterr()
    assert said.out.startswith(f"{tmp_path / 'ours'}: BertForPreTraining, ")
    assert "variables of the optimizer" in said.err
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["hidden_act"] == "gelu"
    assert not load_model(tmp_path / "ours").tokenizer.lowercase
    # there is something already
    assert main(["import", str(prefix), "-o", str(tmp_path / "ours")]) == 2
    assert main(["import", str(tmp_path / "absent.ckpt"), "-o", str(tmp_path / "other")]) == 1
    prefix.with_name("bert_model.ckpt.data-00000-of-00001").write_bytes(b"")
    assert main(["import", str(prefix), "-o", str(tmp_path / "other")]) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_convert_takes_a_checkpoint_as_well(tmp_path):
    written(tmp_path / "google", numbers())
    list(convert(tmp_path / "google", tmp_path / "ours"))
    list(import_checkpoint(tmp_path / "google", tmp_path / "mine"))
    for name in ("model.safetensors", "config.json", "tokenizer.json", "vocab.txt"):
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "mine" / name).read_bytes()

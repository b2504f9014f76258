"""Every door of Hugging Face's: folders old and new, with every head, become a clean folder with
the same numbers."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import bertworks
from bertworks.checkpoints.model_folder import ModelFolder, load_model, save_model
from bertworks.checkpoints.task_config import task_settings
from bertworks.cli.main import main
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.predictor import Predictor
from bertworks.interop.convert import convert
from bertworks.models.config import EncoderConfig
from bertworks.tasks.settings import TaskConfig
from bertworks.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

TOKENS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefghijklmnop",
    *(f"##{c}" for c in "abcdefgh"),
]
SIZES = {
    "vocab_size": len(TOKENS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
KINDS = {  # their class, and labels
    "BertModel": {},
    "BertForPreTraining": {},
    "BertForMaskedLM": {},
    "BertForNextSentencePrediction": {},
    "BertForSequenceClassification": {"id2label": {0: "bad", 1: "so-so", 2: "good"}},
    "BertForTokenClassification": {"id2label": {0: "O", 1: "B-x", 2: "I-x", 3: "B-y"}},
    "BertForQuestionAnswering": {},
    "BertForMultipleChoice": {},
}
TOKENIZER_FILES = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"


def theirs_of(kind, **settings):
    torch.manual_seed(0)
    found = getattr(transformers, kind)(transformers.BertConfig(**SIZES, **KINDS[kind], **settings))
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return found.eval()


def write_tokenizer(folder, **settings):
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in TOKENS))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True} | settings))


def tensors_changed(folder, change):
    file = folder / "model.safetensors"
    save_file(
        {name: value.clone() for name, value in change(load_file(file)).items()},
        file,
        {"format": "pt"},
    )


def settings_changed(folder, **changes):
    file = folder / "config.json"
    settings = json.loads(file.read_text()) | changes
    file.write_text(
        json.dumps({name: value for name, value in settings.items() if value is not ...})
    )


# --- old folders, each as some version or tool wrote it


def with_gamma_and_beta(folder):
    def change(state):
        names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for today, old in names.items():
            state = {name.replace(today, old): value for name, value in state.items()}
        return state

    tensors_changed(folder, change)


def without_prefix(folder):
    tensors_changed(
        folder, lambda state: {name.removeprefix("bert."): value for name, value in state.items()}
    )


def with_prefix(folder):
    heads = "cls.", "classifier.", "qa_outputs.", "bert."
    tensors_changed(
        folder,
        lambda s: {n if n.startswith(heads) else f"bert.{n}": value for n, value in s.items()},
    )


def with_copies_and_counters(folder):
    def change(state):
        body = "bert." if any(name.startswith("bert.") for name in state) else ""
        state |= {f"{body}embeddings.position_ids": torch.arange(32)[None]}
        state |= {f"{body}embeddings.token_type_ids": torch.zeros(1, 32, dtype=torch.int64)}
        if "cls.predictions.bias" in state:
            state |= {
                "cls.predictions.decoder.weight": state[f"{body}embeddings.word_embeddings.weight"]
            }
            state |= {"cls.predictions.decoder.bias": state["cls.predictions.bias"]}
        return state

    tensors_changed(folder, change)


def in_three_files(folder):
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(state)
    places = {}
    for number in range(3):
        file = f"model-{number + 1:05d}-of-00003.safetensors"
        save_file(
            {name: state[name].clone() for name in names[number::3]},
            folder / file,
            {"format": "pt"},
        )
        places |= dict.fromkeys(names[number::3], file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": places})
    )


def of_2019(folder):
    settings_changed(
        folder,
        model_type=...,
        dtype=...,
        transformers_version=...,
        output_past=True,
        pruned_heads={},
    )


def with_settings_of_old(folder):
    settings_changed(
        folder,
        position_embedding_type="absolute",
        gradient_checkpointing=False,
        _name_or_path="/home/me/x",
        finetuning_task="sst-2",
        torch_dtype="float32",
        directionality="bidi",
        auto_map={"AutoModel": "evil.Evil"},
    )


FOLDERS: dict[str, list[Callable]] = {
    "of today": [],
    "of 2019": [with_copies_and_counters, with_gamma_and_beta, of_2019],
    "without prefix, in three files": [without_prefix, in_three_files],
    "with prefix and settings of old": [
        with_prefix,
        with_settings_of_old,
        with_copies_and_counters,
    ],
}


def inputs(kind):
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(5, len(TOKENS), (4, 12), generator=g)
    mask = torch.ones(4, 12, dtype=torch.int64)
    mask[1, 7:] = 0
    found = {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": (torch.arange(12) > 5).long().expand(4, -1),
    }
    return (
        {name: value.reshape(2, 2, 12) for name, value in found.items()}
        if "Choice" in kind
        else found
    )


def numbers(model, kind):
    with torch.no_grad():
        found = model.eval()(**inputs(kind), output_hidden_states=True)
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)} | {
        f"state {number}": value for number, value in enumerate(found.hidden_states)
    }


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_theirs_comes_through_with_the_same_numbers(kind, folder, tmp_path):
    original = theirs_of(kind)
    original.save_pretrained(tmp_path / "theirs")
    write_tokenizer(tmp_path / "theirs")
    for change in FOLDERS[folder]:
        change(tmp_path / "theirs")
    list(convert(tmp_path / "theirs", tmp_path / "ours"))
    expected = numbers(original, kind)
    by_class, report = getattr(transformers, kind).from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(report.values()), report
    found = numbers(by_class, kind)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=0, msg=name)
    assert by_class.config.architectures == [kind]
    assert by_class.config.id2label == original.config.id2label
    assert by_class.config.problem_type == original.config.problem_type
    assert sorted(contents(tmp_path / "ours")) == sorted(
        ["README.md", "config.json", "model.safetensors", "weights.json", *TOKENIZER_FILES]
    )
    # And back: what they save of it is read again, and gives the same clean folder.
    by_class.save_pretrained(tmp_path / "again")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "ours").save_pretrained(
        tmp_path / "again"
    )
    list(convert(tmp_path / "again", tmp_path / "back"))
    for name in ("model.safetensors", "vocab.txt"):
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "ours" / name).read_bytes()
    assert (
        load_model(tmp_path / "back").tokenizer.sha256
        == load_model(tmp_path / "ours").tokenizer.sha256
    )


@pytest.mark.parametrize("kind", KINDS)
def test_converting_twice_changes_no_byte(kind, tmp_path):
    theirs_of(kind).save_pretrained(tmp_path / "theirs")
    write_tokenizer(tmp_path / "theirs")
    with_settings_of_old(tmp_path / "theirs")
    for source, target in (("theirs", "a"), ("theirs", "b"), ("a", "c"), ("c", "d")):
        list(convert(tmp_path / source, tmp_path / target))
    first, again = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert {name: first[name] for name in first if name != "README.md"} == {
        name: again[name] for name in again if name != "README.md"
    }
    assert contents(tmp_path / "c") == contents(tmp_path / "d") == first


@pytest.mark.parametrize(
    ("kind", "settings", "task", "labels"),
    [
        ("BertForSequenceClassification", {}, "classification", ("bad", "so-so", "good")),
        (
            "BertForSequenceClassification",
            {"problem_type": "multi_label_classification"},
            "multilabel",
            None,
        ),
        ("BertForTokenClassification", {}, "tagging", ("O", "B-x", "I-x", "B-y")),
        ("BertForQuestionAnswering", {}, "qa", ()),
        ("BertForMultipleChoice", {}, "choice", ()),
    ],
)
def test_what_was_converted_predicts(kind, settings, task, labels, tmp_path):
    theirs_of(kind, **settings).save_pretrained(tmp_path / "theirs")
    write_tokenizer(tmp_path / "theirs")
    list(convert(tmp_path / "theirs", tmp_path / "ours"))
    predictor = Predictor(tmp_path / "ours")
    assert predictor.description.task == task
    assert labels is None or predictor.description.labels == labels
    requested = {"qa": ("a b", "c d e"), "choice": ("a b", "c", "d")}.get(task, "a b c")
    assert predictor.predict([requested]) == Predictor(tmp_path / "theirs").predict([requested])


# --- what is kept, what is left out and said


def said(source, target):
    events = list(convert(source, target))
    assert events[-1].kind == "done"
    return "\n".join(event.text for event in events), events[-1].fields


def test_what_is_left_out_is_reported(tmp_path):
    folder = tmp_path / "theirs"
    theirs_of("BertForSequenceClassification").save_pretrained(folder)
    write_tokenizer(folder, model_max_length=512)
    with_settings_of_old(folder)
    with_copies_and_counters(folder)
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "modeling_evil.py"):
        (folder / name).write_bytes(b"pickle")
    (folder / "runs").mkdir()
    (folder / "README.md").write_text("# my card\n")
    (folder / "LICENSE").write_text("MIT")
    (tmp_path / "secret").write_text("secret")
    (folder / "NOTICE").symlink_to(tmp_path / "secret")
    text, fields = said(folder, tmp_path / "ours")
    left = (
        "left out of the folder: NOTICE, modeling_evil.py, optimizer.pt, pytorch_model.bin, "
        "runs/, training_args.bin"
    )
    assert left in text
    counters = "bert.embeddings.position_ids, bert.embeddings.token_type_ids"
    assert f"left out of the weights, as counters or copies: {counters}\n" in text
    assert left in fields["notes"]
    assert (
        "left out of config.json: _name_or_path, auto_map, torch_dtype, transformers_version"
        in text
    )
    assert "model_max_length is 32 now" in text
    assert (tmp_path / "ours" / "README.md").read_text() == "# my card\n"
    assert (tmp_path / "ours" / "LICENSE").read_text() == "MIT"
    assert not (tmp_path / "ours" / "NOTICE").exists()
    settings = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert settings["finetuning_task"] == "sst-2"
    assert "auto_map" not in settings


def test_a_setting_of_theirs_alone_is_kept(tmp_path):
    theirs_of("BertForSequenceClassification", classifier_dropout=0.3).save_pretrained(
        tmp_path / "theirs"
    )
    write_tokenizer(tmp_path / "theirs")
    list(convert(tmp_path / "theirs", tmp_path / "ours"))
    assert transformers.AutoConfig.from_pretrained(tmp_path / "ours").classifier_dropout == 0.3


def test_the_class_is_that_of_the_weights(tmp_path):
    """As in the most loaded model of all: called a masked LM, with the head for pairs as well."""
    theirs_of("BertForPreTraining").save_pretrained(tmp_path / "theirs")
    write_tokenizer(tmp_path / "theirs")
    settings_changed(tmp_path / "theirs", architectures=["BertForMaskedLM"])
    text, fields = said(tmp_path / "theirs", tmp_path / "ours")
    assert "architectures was ['BertForMaskedLM']; it is ['BertForPreTraining'] now" in text
    assert fields["parts"] == ["encoder", "lm_head", "next_sentence", "pooler"]


def test_half_precision_becomes_float32_and_is_reported(tmp_path):
    folder = tmp_path / "theirs"
    original = theirs_of("BertModel", id2label={0: "left", 1: "over"})
    original.half().save_pretrained(folder)
    write_tokenizer(folder, model_max_length=32)
    text, _ = said(folder, tmp_path / "ours")
    assert "the weights are float32 now; they were float16" in text
    assert "left out of config.json: id2label, label2id" in text
    found = transformers.AutoModel.from_pretrained(tmp_path / "ours")
    assert found.dtype == torch.float32
    expected = numbers(original.float(), "BertModel")
    for name, value in numbers(found, "BertModel").items():
        torch.testing.assert_close(value, expected[name], atol=1e-5, rtol=0)


def test_a_folder_of_ours_keeps_its_task(tmp_path, tokenizer):
    config = EncoderConfig(**SIZES)
    torch.manual_seed(0)
    from bertworks.tasks.heads import TaskModel
    from bertworks.tasks.outputs import MultiLabel

    task = TaskConfig(
        task="multilabel", labels=("x", "y"), max_length=20, threshold=0.25, text=("body",)
    )
    state = TaskModel(config, MultiLabel(outputs=2)).state_dict()
    save_model(
        tmp_path / "a", state, config, tokenizer, card="mine", head=task_settings(task), task=task
    )
    list(convert(tmp_path / "a", tmp_path / "b"))
    assert contents(tmp_path / "b") == contents(tmp_path / "a")
    assert ModelFolder(tmp_path / "b").task_config == task


@pytest.fixture
def tokenizer(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    write_tokenizer(tmp_path / "tokenizer", model_max_length=32)
    return Tokenizer.load(tmp_path / "tokenizer")


# --- old tokenizers


def test_tokens_added_beside_an_old_vocabulary_stay_whole(tmp_path):
    original = theirs_of("BertModel")
    original.resize_token_embeddings(len(TOKENS) + 2)
    original.save_pretrained(tmp_path / "theirs")
    write_tokenizer(tmp_path / "theirs")
    new = {"[E1]": len(TOKENS), "abcab": len(TOKENS) + 1}
    (tmp_path / "theirs" / "added_tokens.json").write_text(json.dumps(new))
    (tmp_path / "theirs" / "special_tokens_map.json").write_text(
        json.dumps({"additional_special_tokens": ["[E1]"]})
    )
    list(convert(tmp_path / "theirs", tmp_path / "ours"))
    ours = load_model(tmp_path / "ours").tokenizer
    assert ours.special_ids >= {new["[E1]"]}
    ids = ours.encode("a [E1] abcab b").ids
    assert ids == [2, 5, new["[E1]"], new["abcab"], 6, 3]
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert read("a [E1] abcab b")["input_ids"] == ids
    assert "[E1]" in read.all_special_tokens
    assert "abcab" not in read.all_special_tokens
    for wrong in ({"[E1]": 900}, {"[E1]": "x"}, {"[E1]": -1}):
        (tmp_path / "theirs" / "added_tokens.json").write_text(json.dumps(wrong))
        with pytest.raises(BertworksError, match=r"'\[E1\]' has no place"):
            Tokenizer.load(tmp_path / "theirs")


def test_added_tokens_of_a_slow_tokenizer_are_matched_as_it_does(tmp_path):
    """By the rules of transformers 4's BertTokenizer: special ones match as they are, others in
    lower case."""
    model = theirs_of("BertModel")
    model.resize_token_embeddings(len(TOKENS) + 3)
    folder = tmp_path / "theirs"
    model.save_pretrained(folder)
    write_tokenizer(folder)
    first = len(TOKENS)
    (folder / "added_tokens.json").write_text(
        json.dumps({"cab9": first + 2, "[E1]": first, "<a=語>": first + 1})
    )
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"additional_special_tokens": ["[E1]"]})
    )
    ids = {token: number for number, token in enumerate(TOKENS)}
    expected = {
        "A [E1] b": ["a", first, "b"],
        "a <a=語> b": ["a", first + 1, "b"],
        "b CAB9 cab9": ["b", first + 2, first + 2],
        "[e1]": None,
        "a,b": ["a", "[UNK]", "b"],
    }
    tokenizer = load_model(folder).tokenizer
    for text, tokens in expected.items():
        found = tokenizer.encode(text).ids[1:-1]
        if tokens is None:  # in small letters it is no added token: pieces of the vocabulary
            assert first not in found
            continue
        assert found == [ids.get(token, token) for token in tokens], text
    with torch.no_grad():
        hidden = model(input_ids=torch.tensor([tokenizer.encode("A [E1] b").ids])).last_hidden_state
    ours = bertworks.load(folder, precision="fp32").embed(["A [E1] b"])
    torch.testing.assert_close(torch.from_numpy(ours), hidden.mean(1), atol=1e-5, rtol=0)


def test_a_cased_model_with_a_vocabulary_alone_keeps_its_case(tmp_path):
    """As SciBERT's: transformers 5 lower-cases such a folder unless a setting forbids it."""
    capitals = ["A", "B", "C", "AB", "##A", "##B"]
    tokens = [*TOKENS[: -len(capitals)], *capitals]
    model = theirs_of("BertModel")
    model.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    library = transformers.BertTokenizer(
        vocab=str(tmp_path / "theirs" / "vocab.txt"), do_lower_case=False
    )
    ours = bertworks.load(tmp_path / "theirs", precision="fp32")
    texts = ["A b C", "AB ab ABA", "abc Ça"]
    for text in texts:
        assert ours.tokenizer.encode(text).ids == library(text)["input_ids"], text
        with torch.no_grad():
            hidden = model(**library(text, return_tensors="pt")).last_hidden_state
        torch.testing.assert_close(
            torch.from_numpy(ours.embed([text])), hidden.mean(1), atol=1e-5, rtol=0
        )
    assert tokens.index("AB") in ours.tokenizer.encode("AB").ids


def test_what_a_published_tokenizer_cuts_and_pads_is_not_passed_on(tmp_path):
    theirs_of("BertModel").save_pretrained(tmp_path / "theirs")
    write_tokenizer(tmp_path / "theirs", model_max_length=32)
    library = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    library.backend_tokenizer.enable_truncation(4)
    library.backend_tokenizer.enable_padding(length=16)
    library.backend_tokenizer.save(str(tmp_path / "theirs" / "tokenizer.json"))
    list(convert(tmp_path / "theirs", tmp_path / "ours"))
    content = json.loads((tmp_path / "ours" / "tokenizer.json").read_text())
    assert content["truncation"] is content["padding"] is None
    assert (
        len(
            transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")("a b c d e f")[
                "input_ids"
            ]
        )
        == 8
    )


@pytest.mark.parametrize("lowercase", [True, False])
def test_two_tokenizer_files_that_contradict_are_read_as_by_transformers(tmp_path, lowercase):
    folder = tmp_path / "theirs"
    theirs_of("BertModel").save_pretrained(folder)
    write_tokenizer(folder, model_max_length=32, do_lower_case=not lowercase)
    Tokenizer.load(folder).save(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"do_lower_case": lowercase}))
    text, _ = said(folder, tmp_path / "ours")
    assert (
        f"tokenizer_config.json has do_lower_case {str(lowercase).lower()}, unlike tokenizer.json"
        in text
    )
    for read in (folder, tmp_path / "ours"):
        ids = transformers.AutoTokenizer.from_pretrained(read)("A b Á")["input_ids"]
        assert (
            load_model(read).tokenizer.encode("A b Á").ids
            == ids
            == [2, 5 if lowercase else 1, 6, ids[3], 3]
        )
    assert ids[3] == (5 if lowercase else 1)


def test_words_that_another_program_finds_are_refused(tmp_path):
    config = {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"}
    write_tokenizer(tmp_path, **config)
    with pytest.raises(
        BertworksError, match="pre-tokenizer mecab and the model wordpiece are not supported"
    ):
        Tokenizer.load(tmp_path)
    write_tokenizer(tmp_path, **config | {"word_tokenizer_type": "basic"})
    Tokenizer.load(tmp_path)


# --- refusals


def test_an_unnamed_head_is_refused(tmp_path):
    folder = tmp_path / "theirs"
    theirs_of("BertForSequenceClassification").save_pretrained(folder)
    write_tokenizer(folder)
    settings_changed(folder, architectures=...)
    with pytest.raises(BertworksError, match="does not name its class"):
        list(convert(folder, tmp_path / "ours"))
    settings_changed(folder, architectures=["BertForQuestionAnswering"])
    with pytest.raises(BertworksError, match=r"classifier, 0 outputs\) does not fit qa with 2"):
        list(convert(folder, tmp_path / "ours"))
    settings_changed(
        folder, architectures=["BertForSequenceClassification"], id2label={"0": "a", "1": "b"}
    )
    with pytest.raises(
        BertworksError, match=r"classifier, 3 outputs\) does not fit classification with 2"
    ):
        list(convert(folder, tmp_path / "ours"))
    settings_changed(folder, id2label=..., label2id=..., num_labels=3)  # as in old files
    list(convert(folder, tmp_path / "ours"))
    assert ModelFolder(tmp_path / "ours").task_config.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    settings_changed(folder, id2label=None)
    list(convert(folder, tmp_path / "again"))
    assert ModelFolder(tmp_path / "again").task_config.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_nothing_is_written_over_or_half(tmp_path):
    folder = tmp_path / "theirs"
    theirs_of("BertModel").save_pretrained(folder)
    write_tokenizer(folder)
    with pytest.raises(UsageError, match="not empty"):
        list(convert(folder, folder))
    tensors_changed(folder, lambda state: state | {"stranger": torch.zeros(1)})
    with pytest.raises(BertworksError, match="stranger"):
        list(convert(folder, tmp_path / "ours"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theirs"]


def test_the_command(tmp_path, capsys):
    theirs_of("BertForMaskedLM").save_pretrained(tmp_path / "theirs")
    write_tokenizer(tmp_path / "theirs")
    assert main(["convert", str(tmp_path / "theirs"), "-o", str(tmp_path / "ours"), "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["kind"] == "done"
    assert last["parts"] == ["encoder", "lm_head"]
    assert main(["convert", str(tmp_path / "absent"), "-o", str(tmp_path / "x")]) == 1
    assert "no such model folder" in capsys.readouterr().err


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        BertworksError, match=r"empty: this folder holds no model: there is no config\.json"
    ):
        list(convert(tmp_path / "empty", tmp_path / "out"))

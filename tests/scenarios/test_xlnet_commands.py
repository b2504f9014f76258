"""An XLNet through the commands: every task, vectors, masks, a server, pre-training that resumes to
the bit, and what is refused."""

import json
import math
import shutil
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

import bertworks as bw
from bertworks.checkpoints.model_folder import load_model
from bertworks.errors import BertworksError
from bertworks.runs.finetune import finetune_events, make_finetune_request
from bertworks.runs.pretrain import pretrain
from bertworks.serve.endpoints import Abilities
from bertworks.text.tokenizer import Tokenizer
from tests.support.fine import write_examples
from tests.support.tiny import assert_same_run, newest, write_corpus
from tests.text.test_tokenizer_folder import LINES, make_folder

CLASSES = {
    "classification": "XLNetForSequenceClassification",
    "multilabel": "XLNetForSequenceClassification",
    "regression": "XLNetForSequenceClassification",
    "tagging": "XLNetForTokenClassification",
    "spans": "XLNetForTokenClassification",
    "qa": "XLNetForQuestionAnsweringSimple",
    "choice": "XLNetForMultipleChoice",
}
QUICK = ("classification",)  # the other heads are alike
TEXTS = ["A dog barks.", "The cat of the king sleeps", "x", "What do they say of it? Nothing new."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like the published ones: SentencePiece, and no tokenizer.json."""
    path = tmp_path_factory.mktemp("xlnet") / "xlnet"
    make_folder("xlnet", path, LINES, 300)
    (path / "tokenizer_config.json").unlink()  # the class is that of the network
    config = transformers.XLNetConfig(
        vocab_size=300, d_model=32, n_layer=2, n_head=4, d_inner=48, mem_len=None
    )
    torch.manual_seed(0)
    model = transformers.XLNetLMHeadModel(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    model.save_pretrained(path)
    return path


def states_of(folder: Path, text: str) -> torch.Tensor:
    """The last states of a text by transformers: [tokens, hidden]."""
    tokenizer = transformers.XLNetTokenizer.from_pretrained(folder)
    network = transformers.XLNetModel.from_pretrained(folder).eval()
    inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=True)
    with torch.no_grad():
        return network(**inputs).last_hidden_state[0]


def test_vectors_are_means_of_the_states_of_transformers(folder: Path):
    vectors = np.asarray(bw.embed(folder, TEXTS, device="cpu", precision="fp32"))
    for text, vector in zip(TEXTS, vectors, strict=True):
        expected = states_of(folder, text).mean(0).numpy()
        np.testing.assert_allclose(vector, expected, atol=5e-6)


@pytest.mark.parametrize(
    "task",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CLASSES],
)
def test_every_task_is_fine_tuned_and_opens_in_transformers(
    task: str, folder: Path, tmp_path: Path
):
    data, output = write_examples(tmp_path, task), tmp_path / "out"
    settings = ("epochs=1", "batch_size=16", "optimizer.learning_rate=1e-3", "max_length=64")
    request = make_finetune_request(data, model=folder, overrides=settings, method="full")
    list(finetune_events(output, request, device="cpu"))
    state, initial = load_model(output).state, load_model(folder).state
    assert torch.equal(state["encoder.query"], initial["encoder.query"])  # no task reads it
    name = "encoder.blocks.0.attention.query.weight"
    assert not torch.equal(state[name], initial[name])
    kind = CLASSES[task]
    _, info = getattr(transformers, kind).from_pretrained(output, output_loading_info=True)
    assert not any(info.values()), info
    assert json.loads((output / "config.json").read_text())["architectures"] == [kind]
    scored = tmp_path / "scored.jsonl"
    *_, reported = bw.predict_file(output, data, scored, device="cpu")
    assert reported.fields["rows"] == len(scored.read_text().splitlines()) > 0


def test_answers_are_those_of_transformers_also_of_a_padded_batch(folder: Path, tmp_path: Path):
    """The saved tokenizer pads in front: classes of transformers read the last place of a row."""
    data, output = write_examples(tmp_path, "classification"), tmp_path / "out"
    settings = ("epochs=1", "batch_size=16", "max_length=64")
    request = make_finetune_request(data, model=folder, overrides=settings, method="full")
    list(finetune_events(output, request, device="cpu"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(output)
    network = transformers.AutoModelForSequenceClassification.from_pretrained(output).eval()
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True)
    assert (inputs["token_type_ids"][:, -1] == 2).all()
    with torch.no_grad():
        expected = network(**inputs).logits.softmax(-1)
    answers = bw.load(output, device="cpu").predict(TEXTS, probabilities=True)
    names = network.config.id2label
    for answer, row in zip(answers, expected, strict=True):
        for number, probability in enumerate(row.tolist()):
            assert answer["scores"][names[number]] == pytest.approx(probability, abs=2e-5)


def test_a_saved_copy_has_equal_tensors(folder: Path, tmp_path: Path):
    list(bw.convert(folder, tmp_path / "copy"))
    old, new = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "copy"))
    assert old.keys() == new.keys()
    assert all(torch.equal(old[name], new[name]) for name in old)
    kind = transformers.XLNetLMHeadModel
    _, info = kind.from_pretrained(tmp_path / "copy", output_loading_info=True)
    assert not any(info.values()), info
    theirs = transformers.XLNetTokenizer.from_pretrained(folder)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    for first, second in pairwise(TEXTS):
        for texts in ((first,), (first, second)):
            assert dict(again(*texts)) == dict(theirs(*texts, return_token_type_ids=True))


def test_masks_are_filled_with_what_transformers_predicts(folder: Path):
    """A mask is not read: it is predicted from the other tokens, each mask on its own."""
    text = "The <mask> of the king <mask>"
    t = Tokenizer.load(folder)
    encoding = t.encode(text)
    ids = torch.tensor([encoding.ids])
    masks = (ids[0] == t.mask_id).nonzero().flatten().tolist()
    assert len(masks) == 2
    network = transformers.XLNetLMHeadModel.from_pretrained(folder).eval()
    hidden = torch.zeros(1, ids.shape[1], ids.shape[1])
    hidden[:, :, masks] = 1
    asked = torch.zeros(1, 2, ids.shape[1])
    asked[0, [0, 1], masks] = 1
    with torch.no_grad():
        logits = network(
            ids,
            perm_mask=hidden,
            target_mapping=asked,
            token_type_ids=torch.tensor([encoding.type_ids]),
        ).logits[0]
    best = logits.softmax(-1).topk(3)
    (fillings,) = bw.load(folder, device="cpu").fill([text], k=3)
    for number, answer in enumerate(fillings):
        assert [filling["token"] for filling in answer] == best.indices[number].tolist()
        scores = [filling["score"] for filling in answer]
        assert scores == pytest.approx(best.values[number].tolist(), abs=1e-6)


def test_a_sentence_is_scored_without_what_is_hidden(folder: Path):
    """The rest of a word, which --within-word hides, is not read either."""
    model = bw.load(folder, device="cpu")
    (plain,) = model.score(["unbelievable kingdoms"])
    (hidden,) = model.score(["unbelievable kingdoms"], within_word=True)
    assert plain["tokens"] == hidden["tokens"]
    assert len(plain["tokens"]) > 3
    assert plain["score"] != hidden["score"]
    assert math.isfinite(hidden["score"])


def test_a_server_and_an_explanation_have_its_abilities(folder: Path):
    abilities = Abilities(folder, device="cpu", precision="fp32")
    assert {"embed", "fill"} <= set(abilities.endpoints)
    explanation = bw.load(folder, device="cpu").explain("The <mask> sleeps")
    for layer in explanation.attention:
        np.testing.assert_allclose(layer.sum(-1), 1, atol=1e-3)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_vectors_in_other_precisions(precision: Any, folder: Path):
    exact = np.asarray(bw.embed(folder, TEXTS, device="cpu", precision="fp32"))
    try:
        found = np.asarray(bw.embed(folder, TEXTS, device="cpu", precision=precision))
    except BertworksError as error:
        pytest.skip(str(error))
    assert np.linalg.norm(found - exact) < 0.1 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    "task",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("classification", "choice")),
        "tagging",
        "vectors",
    ],
)
def test_an_exported_file_computes_the_same(task: str, folder: Path, tmp_path: Path):
    """Also with padding in front, where the classes of transformers want it."""
    runtime = pytest.importorskip("onnxruntime")
    model = folder
    if task != "vectors":
        data, model = write_examples(tmp_path, task), tmp_path / "out"
        settings = ("epochs=1", "batch_size=16", "max_length=64")
        request = make_finetune_request(data, model=folder, overrides=settings, method="full")
        list(finetune_events(model, request, device="cpu"))
    exported = tmp_path / "onnx"
    *_, done = bw.export(model, exported, encoder=task == "vectors")
    assert done.fields["largest_difference"] < 1e-4
    session = runtime.InferenceSession(str(exported / "model.onnx"))
    names = [node.name for node in session.get_inputs()]
    assert names == ["input_ids", "attention_mask", "token_type_ids"]
    if task == "choice":
        return
    encodings = [Tokenizer.load(model).encode(text) for text in TEXTS]
    longest = max(len(encoding.ids) for encoding in encodings)
    rows = {name: np.zeros((2, len(TEXTS), longest), np.int64) for name in names}
    for number, encoding in enumerate(encodings):
        count = len(encoding.ids)
        for side, places in enumerate((slice(count), slice(longest - count, None))):
            values = encoding.ids, 1, encoding.type_ids
            for name, value in zip(names, values, strict=True):
                rows[name][side, number, places] = value
    behind, front = (
        session.run(None, {name: array[side] for name, array in rows.items()})[0]
        for side in range(2)
    )
    if task != "classification":
        behind, front = (
            array[rows["attention_mask"][side] == 1] for side, array in enumerate((behind, front))
        )
    np.testing.assert_allclose(front, behind, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bi_data": True}, "bi_data is True: only False is supported for xlnet"),
        ({"architectures": ["XLNetForQuestionAnswering"]}, "XLNetForQuestionAnswering looks for"),
        ({"n_layer": 3}, r"incomplete: .*layer\.2"),
        ({"n_head": 2, "d_head": 16}, r"rel_attn\.\w+ is .*, but the configuration expects"),
        ({"vocab_size": 200}, r"word_embedding\.weight is .*, but the configuration expects"),
    ],
)
def test_folders_without_support_are_refused(
    changes: dict[str, Any], message: str, folder: Path, tmp_path: Path
):
    path = tmp_path / "copy"
    shutil.copytree(folder, path)
    settings = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(BertworksError, match=message):
        load_model(path)


# --- pre-training

SMALL = [
    "encoder.hidden_size=32",
    "encoder.num_hidden_layers=2",
    "encoder.num_attention_heads=2",
    "vocabulary.size=400",
    "train.phases.0.num_steps=8",
    "train.phases.0.batch_size=8",
    "train.phases.0.sequence_length=32",
    "train.evaluate_every=4",
    "train.save_every=4",
]
OPTIONS: dict[str, Any] = {"recipe": "xlnet-small", "workers": 1, "device": "cpu"}


def test_one_from_text_resumes_to_the_bit_and_opens_in_transformers(tmp_path: Path):
    text = write_corpus(tmp_path / "text.jsonl")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    list(pretrain(text, whole, overrides=SMALL, **OPTIONS))
    events = pretrain(text, parts, overrides=SMALL, **OPTIONS)
    for event in events:
        if event.kind == "saved" and event.fields["step"] == 4:
            break
    events.close()  # type: ignore[attr-defined]
    *_, done = pretrain(text, parts, overrides=SMALL, **OPTIONS)
    assert done.kind == "done"
    assert_same_run(whole, parts)
    kind = transformers.XLNetLMHeadModel
    _, info = kind.from_pretrained(whole, output_loading_info=True)
    assert not any(info.values()), info
    t = transformers.AutoTokenizer.from_pretrained(whole)
    inputs = t("a b", "c")
    assert inputs["token_type_ids"][-1] == 2
    assert t.convert_ids_to_tokens(inputs["input_ids"])[-2:] == ["<sep>", "<cls>"]
    assert t.pad_token_id == 5
    figures = bw.evaluate_mlm(whole, [text], device="cpu")
    assert figures is not None
    assert figures["masked_tokens"] > 100
    assert 3 < figures["permutation_lm_loss"] < 8
    assert figures["bits_per_character"] > 0


WITH_MEMORY = ["sampling.format=stream", "sampling.lanes=true", "encoder.memory_length=24"]


def test_one_with_a_memory_resumes_to_the_bit(tmp_path: Path):
    """Then it is trained further without a memory, or with another one: no weight depends on it."""
    text = write_corpus(tmp_path / "text.jsonl")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = OPTIONS | {"overrides": [*SMALL, *WITH_MEMORY]}
    list(pretrain(text, whole, **options))
    states = load_file(newest(whole) / "state.safetensors")["memory/states"]
    assert states.shape[2] == 24
    assert states.any(-1).all()
    with closing(pretrain(text, parts, **options)) as events:
        next(event for event in events if event.kind == "saved" and event.fields["step"] == 4)
    list(pretrain(text, parts, **options))
    assert_same_run(whole, parts)
    again = ["train.phases=[{num_steps=1, batch_size=8, sequence_length=32}]"]
    for length, settings in ((0, []), (8, [*WITH_MEMORY[:2], "encoder.memory_length=8"])):
        output = tmp_path / f"memory-{length}"
        init = {"init": str(whole), "device": "cpu", "overrides": [*again, *settings]}
        *_, done = pretrain(whole / "shards", output, **init)
        assert done.kind == "done"
        assert load_model(output)[0].memory_length == length


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["sampling.format=full_sentences"], "'full_sentences' with .*expected .*'one_segment'"),
        (["encoder.memory_length=8"], "encoder.memory_length is 8 without sampling.lanes"),
        (["encoder.attention_dropout=0.0"], "attention_dropout is 0.0: in xlnet it is hidden_drop"),
        (["vocabulary.algorithm=wordpiece"], "special tokens 'xlnet' are for byte-level BPE"),
        (["train.phases.0.sequence_length=5000"], "encoder.max_position_embeddings is 4096"),
        (["encoder.type_vocab_size=2"], "'relative' with type_vocab_size 2"),
    ],
)
def test_settings_without_meaning_are_refused(settings: list[str], message: str, tmp_path: Path):
    text = write_corpus(tmp_path / "text.jsonl")
    with pytest.raises(BertworksError, match=message):
        list(pretrain(text, tmp_path / "out", overrides=[*SMALL, *settings], **OPTIONS))
    assert not (tmp_path / "out").exists()


def test_masked_tokens_are_not_its_objective(tmp_path: Path):
    recipe = tmp_path / "recipe.toml"
    source = Path(bw.__file__).parent / "recipes" / "xlnet-small.toml"
    recipe.write_text(source.read_text() + '\n[[objectives]]\nkind = "masked_lm"\n')
    text = write_corpus(tmp_path / "text.jsonl")
    options = OPTIONS | {"recipe": str(recipe)}
    with pytest.raises(BertworksError, match="has one objective, permutation_lm"):
        list(pretrain(text, tmp_path / "out", overrides=SMALL, **options))

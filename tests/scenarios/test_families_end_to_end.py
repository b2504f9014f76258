"""Folders of transformers of several families through the commands: fill, embed, finetune,
predict, explain, export; GPT-2's body."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from bertworks import (
    embed,
    evaluate_mlm,
    evaluate_probe,
    evaluate_task,
    explain,
    export,
    finetune,
    load,
)
from bertworks.checkpoints.model_folder import load_model
from bertworks.errors import BertworksError
from bertworks.evaluation.probe import read_words, states_file, write_word_states
from bertworks.inference.engine import open_model
from bertworks.models.transformer import Encoder
from bertworks.serve.endpoints import Abilities
from bertworks.text.tokenizer import Template, Tokenizer
from tests.scenarios.test_families import NAMES
from tests.support.treebanks import write_treebank
from tests.text.test_tokenizer_folder import LINES, make_folder

TEXTS = [
    f"a {good} film with {who}"
    for good in ("good", "fine", "sad", "bad")
    for who in ("Anna", "the dogs", "me")
]
SIZE = {"vocab_size": 300, "max_position_embeddings": 66}


def byte_level(special: list[str]) -> tokenizers.Tokenizer:
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    t.train_from_iterator(TEXTS * 20, trainer)
    return t


def write_roberta(folder: Path) -> None:
    t = byte_level(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=t,
        bos_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        cls_token="<s>",
        unk_token="<unk>",
        pad_token="<pad>",
        mask_token="<mask>",
        model_max_length=64,
    ).save_pretrained(folder)
    config = transformers.RobertaConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        type_vocab_size=1,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        **SIZE,
    )
    torch.manual_seed(0)
    transformers.RobertaForMaskedLM(config).save_pretrained(folder)


def write_distilbert(folder: Path) -> None:
    words = sorted({word for text in TEXTS for word in text.lower().split()})
    tokens = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *words,
        *(f"[unused{n}]" for n in range(300 - 5 - len(words))),
    ]
    t = tokenizers.Tokenizer(
        models.WordPiece({token: n for n, token in enumerate(tokens)}, unk_token="[UNK]")
    )
    t.normalizer, t.pre_tokenizer = (
        normalizers.BertNormalizer(lowercase=True),
        pre_tokenizers.BertPreTokenizer(),
    )
    t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=t,
        sep_token="[SEP]",
        cls_token="[CLS]",
        unk_token="[UNK]",
        pad_token="[PAD]",
        mask_token="[MASK]",
        model_max_length=64,
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(dim=24, n_layers=2, n_heads=4, hidden_dim=40, **SIZE)
    transformers.DistilBertForMaskedLM(config).save_pretrained(folder)


def write_albert(folder: Path) -> None:
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    words = sorted({f"▁{word}" for text in TEXTS for word in text.lower().split()})
    letters = [*map(chr, range(97, 123)), "▁", ".", ","]
    scores = (
        [(token, 0.0) for token in special]
        + [(word, -3.0) for word in words]
        + [(c, -9.0) for c in letters]
    )
    t = tokenizers.Tokenizer(
        models.Unigram(scores + [(f"x{n}", -20.0) for n in range(300 - len(scores))], 1)
    )
    t.normalizer, t.pre_tokenizer, t.decoder = (
        normalizers.Lowercase(),
        pre_tokenizers.Metaspace(),
        decoders.Metaspace(),
    )
    t.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=t,
        sep_token="[SEP]",
        cls_token="[CLS]",
        unk_token="<unk>",
        pad_token="<pad>",
        mask_token="[MASK]",
        model_max_length=64,
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.AlbertConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        embedding_size=12,
        **SIZE,
    )
    transformers.AlbertForPreTraining(config).save_pretrained(folder)


def modernbert_tokenizer(texts: list[str], size: int = 300) -> tokenizers.Tokenizer:
    """A tokenizer of the make of ModernBERT's, trained on these texts.

    Runs of spaces are tokens, which are not special; the mask takes the space before it.
    """
    t = tokenizers.Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    t.train_from_iterator(texts, trainer)
    plain = ["|||IP_ADDRESS|||", *(" " * n for n in range(24, 1, -1))]
    t.add_tokens([tokenizers.AddedToken(token, normalized=True) for token in plain])
    special = [tokenizers.AddedToken(f"[{name}]", special=True) for name in MODERNBERT_NAMES]
    t.add_special_tokens(special)
    t.add_special_tokens([tokenizers.AddedToken("[MASK]", special=True, lstrip=True)])
    ids = {token: t.token_to_id(token) for token in ("[CLS]", "[SEP]")}
    t.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:0 [SEP]:0",
        special_tokens=[*ids.items()],
    )
    return t


MODERNBERT_NAMES = ("UNK", "CLS", "SEP", "PAD")


def write_modernbert(folder: Path, **settings: Any) -> None:
    """With rows of the vocabulary that no token has."""
    t = modernbert_tokenizer(TEXTS * 20)
    names = {f"{name.lower()}_token": f"[{name}]" for name in (*MODERNBERT_NAMES, "MASK")}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=t,
        model_max_length=64,
        model_input_names=["input_ids", "attention_mask"],
        **names,
    ).save_pretrained(folder)
    ids = {f"{name.lower()}_token_id": t.token_to_id(f"[{name}]") for name in ("PAD", "CLS", "SEP")}
    config = transformers.ModernBertConfig(
        vocab_size=t.get_vocab_size() + 11,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=64,
        local_attention=4,
        classifier_pooling="mean",
        bos_token_id=ids["cls_token_id"],
        eos_token_id=ids["sep_token_id"],
        **ids | settings,
    )
    torch.manual_seed(0)
    transformers.ModernBertForMaskedLM(config).save_pretrained(folder)


def write_like_roberta(folder: Path) -> None:
    """A model with the positions and the special tokens of RoBERTa, and another tokenizer, which
    is trained on more texts."""
    name = NAMES[folder.name]
    make_folder(folder.name, folder, LINES + TEXTS)
    t = getattr(transformers, f"{name}Tokenizer").from_pretrained(folder, model_max_length=64)
    t.save_pretrained(folder)
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(t),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=66,
        bos_token_id=t.bos_token_id,
        eos_token_id=t.eos_token_id,
        **({} if name == "MPNet" else {"type_vocab_size": 1}),
    )
    torch.manual_seed(0)
    getattr(transformers, f"{name}ForMaskedLM")(config).save_pretrained(folder)


LIKE_ROBERTA = ["xlm-roberta", "camembert", "mpnet"]
FAMILIES = ["roberta", "distilbert", "albert", "modernbert"]
FAMILIES += [pytest.param(name, marks=pytest.mark.slow) for name in LIKE_ROBERTA]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param) / request.param
    writers = {
        "roberta": write_roberta,
        "distilbert": write_distilbert,
        "albert": write_albert,
        "modernbert": write_modernbert,
    }
    writers.get(request.param, write_like_roberta)(path)
    return path


def test_the_template_is_the_tokenizers_own(folder: Path):
    t, theirs = Tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert len(theirs) == t.vocab_size > 280
    expected = Template((2,), (3,), (3,))
    if folder.name == "modernbert":
        start, end = theirs.cls_token_id, theirs.sep_token_id
        expected = Template((start,), (end,), (end,))
    if folder.name in ("roberta", *LIKE_ROBERTA):
        start, end = (5, 6) if folder.name == "camembert" else (0, 2)
        expected = Template((start,), (end, end), (end,))
    assert t.template == expected
    assert t.template.num_special() == 2
    assert t.template.num_special(2) == theirs.num_special_tokens_to_add(pair=True)
    for pair in [("a good film",), ("a good film", "with the dogs")]:
        assert t.encode(*pair).ids == theirs(*pair)["input_ids"]


def test_probes_read_the_states_of_words(folder: Path, tmp_path: Path):
    source, theirs = (
        open_model(folder, "cpu"),
        transformers.AutoModel.from_pretrained(folder).eval(),
    )
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    sentences = [(text.split(), "") for text in TEXTS]
    sequences = list(read_words(sentences, source.tokenizer, 64))
    encoder = source.network(Encoder, "encoder.")
    list(write_word_states(encoder, sequences, range(3), tmp_path))
    expected: list[list[np.ndarray]] = [[] for _ in range(3)]
    for text in TEXTS:
        encoded = tokens(text, return_tensors="pt", return_offsets_mapping=True)
        offsets = encoded.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            states = theirs(**encoded, output_hidden_states=True).hidden_states
        for word in re.finditer(r"\S+", text):
            own = [
                n
                for n, (a, b) in enumerate(offsets)
                if a < b and a < word.end() and b > word.start()
            ]
            for layer, x in enumerate(states):
                expected[layer].append(x[0, own].mean(0).numpy())
    for layer in range(3):
        ours, oracle = (
            np.load(states_file(tmp_path, layer)).astype(np.float32),
            np.stack(expected[layer]),
        )
        # float16 has 11 digits
        assert np.all(np.abs(ours - oracle) <= 2e-5 + 2**-11 * np.abs(oracle))
    *_, last = evaluate_probe(folder, write_treebank(tmp_path / "ud"), epochs=1, device="cpu")
    assert [row["layer"] for row in last.fields["layers"]] == [0, 1, 2]


def test_masks_are_filled_as_by_transformers(folder: Path):
    model = load(folder, device="cpu")
    assert model.can == ("embed", "explain", "fill", "score")
    mask = model.tokenizer.special_tokens["mask_token"]
    text = f"a good{mask} with Anna" if folder.name == "roberta" else f"a good {mask} with Anna"
    theirs, t = (
        transformers.AutoModelForMaskedLM.from_pretrained(folder).eval(),
        transformers.AutoTokenizer.from_pretrained(folder),
    )
    with torch.no_grad():
        inputs = t(text, return_tensors="pt")
        logits = theirs(**inputs).logits[0][inputs["input_ids"][0] == t.mask_token_id]
    best = logits.softmax(-1)[0].topk(5)
    ((fillings,),) = model.fill([text])
    assert [filling["token"] for filling in fillings] == best.indices.tolist()
    assert [filling["score"] for filling in fillings] == pytest.approx(
        best.values.tolist(), abs=1e-5
    )


def test_vectors_are_means_of_the_states_of_transformers(folder: Path):
    theirs, t = (
        transformers.AutoModel.from_pretrained(folder).eval(),
        transformers.AutoTokenizer.from_pretrained(folder),
    )
    with torch.no_grad():
        expected = [
            theirs(**t(text, return_tensors="pt")).last_hidden_state[0].mean(0).numpy()
            for text in TEXTS
        ]
    vectors = np.asarray(embed(folder, TEXTS, device="cpu", precision="fp32", normalize=False))
    # short texts: weights in half precision
    np.testing.assert_allclose(vectors, np.stack(expected), atol=1e-3)


@pytest.mark.parametrize("pairs", [False, True])
def test_a_fine_tuned_model_is_that_of_transformers(folder: Path, pairs: bool, tmp_path: Path):
    rows = [
        f"{text},{'with dogs,' if pairs else ''}{'pos' if n % 2 else 'neg'}"
        for n, text in enumerate(TEXTS * 3)
    ]
    data = tmp_path / "data.csv"
    data.write_text(
        "\n".join(["sentence1,sentence2,label" if pairs else "text,label", *rows]) + "\n"
    )
    output = tmp_path / "out"
    settings = {"overrides": ["epochs=1", "batch_size=8"], "method": "full"}
    model = finetune(data, model=folder, output=output, device="cpu", **settings)
    text = (TEXTS[0], "with dogs") if pairs else TEXTS[0]
    (answer,) = model.predict([text], probabilities=True)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(output).eval()
    t = transformers.AutoTokenizer.from_pretrained(output)
    with torch.no_grad():
        logits = theirs(**t(*(text if pairs else (text,)), return_tensors="pt")).logits[0]
    expected = dict(zip(theirs.config.id2label.values(), logits.softmax(-1).tolist(), strict=True))
    assert answer["score"] == pytest.approx(expected[answer["label"]], abs=1e-3)
    assert type(theirs).__name__ == f"{NAMES[folder.name]}ForSequenceClassification"
    theirs.set_attn_implementation("eager")
    with torch.no_grad():
        inputs = t(*(text if pairs else (text,)), return_tensors="pt")
        attentions = theirs(**inputs, output_attentions=True).attentions
    explanation = explain(output, *(text if pairs else (text,)), device="cpu")
    assert len(explanation.attention) == len(attentions) == 2
    for layer, other in zip(explanation.attention, attentions, strict=True):
        np.testing.assert_allclose(layer, other[0], atol=1e-4)
    assert np.abs(explanation.occlusion).max() > 0
    figures = evaluate_task(output, data, device="cpu", precision="fp32")["figures"]
    predicted = model.predict(
        [tuple(row.split(",")[:2]) if pairs else row.split(",")[0] for row in rows]
    )
    right = [
        one["label"] == row.rsplit(",", 1)[1] for one, row in zip(predicted, rows, strict=True)
    ]
    assert figures["accuracy"] == pytest.approx(sum(right) / len(right))
    *_, done = export(output, tmp_path / "onnx")
    assert done.fields["largest_difference"] < 1e-4


def test_masked_lm_is_evaluated_and_served(folder: Path, tmp_path: Path):
    held_out = tmp_path / "held-out.txt"
    held_out.write_text("\n\n".join(f"{a}. {b}." for a in TEXTS for b in TEXTS))
    figures = evaluate_mlm(folder, [held_out], device="cpu")
    # a network that has learned nothing: log 300 is 5.7
    assert 4 < figures["masked_lm_loss"] < 8, figures
    assert ("sentence_order_accuracy" in figures) == (folder.name == "albert")
    assert "next_sentence_accuracy" not in figures
    abilities = Abilities(folder, device="cpu", precision="fp32")
    mask = load(folder, device="cpu").tokenizer.special_tokens["mask_token"]
    assert abilities.info["mask_token"] == mask
    assert {"embed", "fill"} <= set(abilities.endpoints)


def test_gpt2_is_a_body_and_refuses_masks(tmp_path: Path):
    t = byte_level(["<|endoftext|>"])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=t,
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        unk_token="<|endoftext|>",
    ).save_pretrained(tmp_path)
    config = transformers.GPT2Config(vocab_size=300, n_embd=24, n_layer=2, n_head=4, n_positions=64)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(tmp_path)
    assert load_model(tmp_path).config.direction == "left_to_right"
    assert Tokenizer.load(tmp_path).template == Template((), (), ())
    ids = t.encode(TEXTS[0]).ids
    with torch.no_grad():
        expected = theirs.transformer(torch.tensor([ids])).last_hidden_state[0].mean(0).numpy()
    (vector,) = embed(tmp_path, [TEXTS[0]], device="cpu", precision="fp32", normalize=False)
    np.testing.assert_allclose(vector, expected, atol=1e-3)
    with pytest.raises(BertworksError, match="fill"):
        load(tmp_path, device="cpu").fill(["a good film"])

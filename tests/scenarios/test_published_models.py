"""Published models for vectors, with their settings and random weights of small networks: they
open, and their vectors are those of sentence-transformers.

The settings are those of the files on the hub, but for the sizes of the network and the vocabulary.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from bertworks.checkpoints.model_folder import load_model
from bertworks.inference.embedder import Embedder
from bertworks.interop.convert import convert
from bertworks.text.tokenizer import Tokenizer
from tests.checkpoints.test_sentence_transformers import TEXTS, vectors
from tests.text.test_tokenizer_folder import LINES, assert_same, make_folder

pytestmark = pytest.mark.slow
SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}
MASK = {
    "content": "<mask>",
    "lstrip": True,
    "normalized": True,
    "rstrip": False,
    "single_word": False,
    "__type": "AddedToken",
}
NAMES = {
    "bos_token": "<s>",
    "cls_token": "<s>",
    "eos_token": "</s>",
    "mask_token": MASK,
    "pad_token": "<pad>",
    "sep_token": "</s>",
    "unk_token": "<unk>",
}
NETWORK = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "initializer_range": 0.02,
    **SIZES,
}
XLM_ROBERTA = {
    "_name_or_path": "xlm-roberta-base",
    "architectures": ["XLMRobertaModel"],
    "bos_token_id": 0,
    "classifier_dropout": None,
    "eos_token_id": 2,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514,
    "model_type": "xlm-roberta",
    "output_past": True,
    "pad_token_id": 1,
    "position_embedding_type": "absolute",
    "torch_dtype": "float32",
    "transformers_version": "4.16.2",
    "type_vocab_size": 1,
    "use_cache": True,
    **NETWORK,
}
# BERT's network with the vocabulary of XLM-RoBERTa, and spare rows behind it
MULTILINGUAL_MINILM = {
    "_name_or_path": "microsoft/Multilingual-MiniLM-L12-H384",
    "architectures": ["BertModel"],
    "classifier_dropout": None,
    "gradient_checkpointing": False,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "tokenizer_class": "XLMRobertaTokenizer",
    "torch_dtype": "float32",
    "transformers_version": "4.17.0.dev0",
    "type_vocab_size": 2,
    "use_cache": True,
    **NETWORK,
}
MPNET = {
    "_name_or_path": "microsoft/mpnet-base",
    "architectures": ["MPNetForMaskedLM"],
    "bos_token_id": 0,
    "eos_token_id": 2,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514,
    "model_type": "mpnet",
    "pad_token_id": 1,
    "relative_attention_num_buckets": 32,
    "transformers_version": "4.8.2",
    **NETWORK,
}
XLM_TOKENIZER = {"model_max_length": 512, "tokenizer_class": "XLMRobertaTokenizer", **NAMES}
# name: tokenizer of `make_folder`, config.json, tokenizer_config.json, longest text, pooling, norm
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any], int, str, bool]] = {
    "intfloat/multilingual-e5-small": (
        "xlm-roberta",
        MULTILINGUAL_MINILM,
        XLM_TOKENIZER | {"special_tokens_map_file": None},
        512,
        "mean",
        True,
    ),
    "intfloat/multilingual-e5-base": ("xlm-roberta", XLM_ROBERTA, XLM_TOKENIZER, 512, "mean", True),
    "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2": (
        "xlm-roberta",
        MULTILINGUAL_MINILM | {"transformers_version": "4.7.0"},
        {
            "do_lower_case": True,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
            "model_max_length": 128,
            "tokenizer_class": "PreTrainedTokenizerFast",
            **NAMES,
        },
        128,
        "mean",
        False,
    ),
    "sentence-transformers/paraphrase-multilingual-mpnet-base-v2": (
        "xlm-roberta",
        XLM_ROBERTA | {"gradient_checkpointing": False},
        XLM_TOKENIZER,
        128,
        "mean",
        False,
    ),
    "sentence-transformers/all-mpnet-base-v2": (
        "mpnet",
        MPNET,
        {
            "do_lower_case": True,
            "model_max_length": 512,
            "special_tokens_map_file": None,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
            "tokenizer_class": "MPNetTokenizer",
            **NAMES,
            "unk_token": "[UNK]",
        },
        384,
        "mean",
        True,
    ),
    "BAAI/bge-m3": (
        "xlm-roberta",
        XLM_ROBERTA | {"_name_or_path": "", "max_position_embeddings": 8194},
        XLM_TOKENIZER | {"model_max_length": 8192},
        8192,
        "cls",
        True,
    ),
}


def write_published(name: str, folder: Path) -> Path:
    """Write a folder with the settings of a published model."""
    kind, settings, tokenizer_settings, longest, pooling, normalizes = MODELS[name]
    class_name = {"mpnet": "MPNetTokenizer", "xlm-roberta": "XLMRobertaTokenizer"}[kind]
    make_folder(kind, folder, LINES)
    tokenizer = getattr(transformers, class_name).from_pretrained(folder)
    tokenizer.save_pretrained(folder)
    description = json.loads((folder / "tokenizer.json").read_text())
    description["truncation"] = {
        "direction": "Right",
        "max_length": 128,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (folder / "tokenizer.json").write_text(json.dumps(description))
    settings = settings | {"vocab_size": len(tokenizer)}
    if settings["model_type"] == "bert":
        settings["vocab_size"] += 35
    torch.manual_seed(0)
    network = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**settings))
    for parameter in network.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    network.save_pretrained(folder)
    kinds = ["Transformer", "Pooling", *["Normalize"] * normalizes]
    paths = ["", "1_Pooling", "2_Normalize"]
    files: dict[str, Any] = {
        "config.json": settings,
        "tokenizer_config.json": tokenizer_settings,
        "special_tokens_map.json": {
            token: tokenizer_settings[token] for token in NAMES if token != "mask_token"
        },
        "sentence_bert_config.json": {"max_seq_length": longest, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": 24,
            "pooling_mode_cls_token": pooling == "cls",
            "pooling_mode_mean_tokens": pooling == "mean",
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
        "config_sentence_transformers.json": {
            "__version__": {
                "sentence_transformers": "2.0.0",
                "transformers": "4.7.0",
                "pytorch": "1.9.0+cu102",
            }
        },
        "modules.json": [
            {
                "idx": number,
                "name": str(number),
                "path": paths[number],
                "type": f"sentence_transformers.models.{kind}",
            }
            for number, kind in enumerate(kinds)
        ],
    }
    for file, content in files.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(json.dumps(content))
    return folder


def embedded(folder: Path) -> np.ndarray:
    return Embedder(folder, device="cpu", precision="fp32").embed(TEXTS)


@pytest.mark.filterwarnings("ignore:Token indices sequence length")
@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_opens(name: str, tmp_path: Path):
    folder = write_published(name, tmp_path / "theirs")
    expected = vectors(folder)
    assert Embedder(folder, device="cpu").settings.max_length == MODELS[name][3]
    np.testing.assert_allclose(embedded(folder), expected, atol=1e-5)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer.load(folder)
    for line in LINES[:300]:
        assert ours.encode(line).ids == theirs(line, truncation=False)["input_ids"]
    # Of all files of the folder, converted: the same vectors here and there.
    list(convert(folder, tmp_path / "ours"))
    for again in (embedded(tmp_path / "ours"), vectors(tmp_path / "ours")):
        np.testing.assert_allclose(again, expected, atol=1e-5)
    assert load_model(tmp_path / "ours").config == load_model(folder).config


def test_bge_m3_as_it_is_published(tmp_path: Path):
    """Its weights are a pickle; two further heads, which sentence-transformers does not read
    either, are left out by name."""
    folder = write_published("BAAI/bge-m3", tmp_path / "theirs")
    expected = vectors(folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    for name in ("colbert_linear.pt", "sparse_linear.pt"):
        torch.save({"weight": torch.ones(1, 24)}, folder / name)
    *_, done = convert(folder, tmp_path / "ours", trust_pickle=True)
    (note,) = (note for note in done.fields["notes"] if note.startswith("left out of the folder"))
    assert all(name in note for name in ("colbert_linear.pt", "sparse_linear.pt"))
    np.testing.assert_allclose(embedded(tmp_path / "ours"), expected, atol=1e-5)
    assert load_model(tmp_path / "ours").config.max_position_embeddings == 8192
    long_text = "the men heard some music " * 400
    (vector,) = Embedder(tmp_path / "ours", device="cpu", precision="fp32").embed([long_text])
    assert np.isfinite(vector).all()


@pytest.mark.filterwarnings("ignore:Token indices sequence length")
def test_a_vocabulary_of_mpnet_alone(tmp_path: Path):
    """microsoft/mpnet-base names no special tokens: the family has them."""
    folder = make_folder("mpnet", tmp_path / "mpnet", LINES)
    (folder / "tokenizer_config.json").write_text(
        '{"do_lower_case": true, "model_max_length": 512}'
    )
    (folder / "config.json").write_text('{"model_type": "mpnet"}')
    theirs = transformers.MPNetTokenizer.from_pretrained(folder)
    assert_same(Tokenizer.load(folder), theirs, [*LINES[:300], "a <mask> b [CLS] </s> <unk>"])

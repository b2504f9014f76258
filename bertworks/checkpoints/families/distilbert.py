"""DistilBERT (Sanh et al. 2019): half of BERT's layers, no token types, another head for sequences."""

from dataclasses import replace

from bertworks.checkpoints.families.bert import SHARED
from bertworks.checkpoints.families.family import Family, task_classes
from bertworks.models.config import PRESETS

_LAYER = "transformer.layer.#"
FAMILY = Family(
    prefix="distilbert.",
    body=("embeddings.", "transformer."),
    table=[
        *SHARED,
        ("encoder.blocks.#.attention.qkv.*", [f"{_LAYER}.attention.{part}_lin.*" for part in "qkv"], "H H"),
        ("encoder.blocks.#.attention.output.*", [f"{_LAYER}.attention.out_lin.*"], "H H"),
        ("encoder.blocks.#.attention_norm.*", [f"{_LAYER}.sa_layer_norm.*"], "H"),
        ("encoder.blocks.#.feed_forward.up.*", [f"{_LAYER}.ffn.lin1.*"], "I H"),
        ("encoder.blocks.#.feed_forward.down.*", [f"{_LAYER}.ffn.lin2.*"], "H I"),
        ("encoder.blocks.#.feed_forward_norm.*", [f"{_LAYER}.output_layer_norm.*"], "H"),
        ("pooler.dense.*", ["pre_classifier.*"], "H H"),
        ("lm_head.dense.*", ["vocab_transform.*"], "E H"),
        ("lm_head.norm.*", ["vocab_layer_norm.*"], "E"),
        ("lm_head.bias", ["vocab_projector.bias"], "V"),
    ],
    tied={"vocab_projector.weight": "embeddings.word_embeddings.weight"},
    buffers=frozenset({"embeddings.position_ids"}),
    settings={
        "vocab_size": "vocab_size", "dim": "hidden_size", "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads", "hidden_dim": "intermediate_size",
        "max_position_embeddings": "max_position_embeddings", "dropout": "hidden_dropout",
        "attention_dropout": "attention_dropout", "seq_classif_dropout": "sequence_dropout",
        "qa_dropout": "span_dropout", "initializer_range": "initializer_range", "activation": "hidden_act",
    },
    default=replace(PRESETS["distilbert-base"], intermediate_size=3072),
    written={"sinusoidal_pos_embds": False, "tie_weights_": True, "tie_word_embeddings": True, "dtype": "float32"},
    pretraining={frozenset({"lm_head"}): "DistilBertForMaskedLM", frozenset(): "DistilBertModel"},
    tasks=task_classes("DistilBert"),
)  # fmt: skip

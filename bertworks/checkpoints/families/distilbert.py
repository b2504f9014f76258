"""DistilBERT (Sanh et al. 2019): half of BERT's layers, no token types, another head for sequences."""

from bertworks.checkpoints.families.bert import SHARED, task_classes
from bertworks.checkpoints.families.family import Family

_LAYER = "transformer.layer.#"
FAMILY = Family(
    model_type="distilbert",
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
        "vocab_size": ("vocab_size", 30522),
        "dim": ("hidden_size", 768),
        "n_layers": ("num_hidden_layers", 6),
        "n_heads": ("num_attention_heads", 12),
        "hidden_dim": ("intermediate_size", 3072),
        "max_position_embeddings": ("max_position_embeddings", 512),
        "dropout": ("hidden_dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.1),
        "seq_classif_dropout": ("sequence_dropout", 0.2),
        "qa_dropout": ("span_dropout", 0.1),
        "initializer_range": ("initializer_range", 0.02),
        "activation": ("hidden_act", "gelu"),
    },
    fixed={"type_vocab_size": 0, "pooler": "first_relu"},
    written={"sinusoidal_pos_embds": False, "tie_weights_": True, "tie_word_embeddings": True, "dtype": "float32"},
    pretraining={frozenset({"lm_head"}): "DistilBertForMaskedLM", frozenset(): "DistilBertModel"},
    tasks=task_classes("DistilBert"),
)  # fmt: skip

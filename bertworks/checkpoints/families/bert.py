"""BERT (Devlin et al. 2019): names and settings, and the rows that its relatives share."""

from bertworks.checkpoints.families.family import Family, Row, task_classes
from bertworks.models.config import EncoderConfig

SHARED: list[Row] = [  # with DistilBERT
    ("encoder.embeddings.token.weight", ["embeddings.word_embeddings.weight"], "V E"),
    ("encoder.embeddings.position.weight", ["embeddings.position_embeddings.weight"], "P E"),
    ("encoder.embeddings.norm.*", ["embeddings.LayerNorm.*"], "E"),
    ("classifier.*", ["classifier.*"], "L C"),
    ("span.*", ["qa_outputs.*"], "2 H"),
]
_SELF = "encoder.layer.#.attention.self"
ENCODER: list[Row] = [
    *SHARED,
    ("encoder.embeddings.token_type.weight", ["embeddings.token_type_embeddings.weight"], "T E"),
    ("encoder.blocks.#.attention.qkv.*", [f"{_SELF}.{part}.*" for part in ("query", "key", "value")], "H H"),
    ("encoder.blocks.#.attention.output.*", ["encoder.layer.#.attention.output.dense.*"], "H H"),
    ("encoder.blocks.#.attention_norm.*", ["encoder.layer.#.attention.output.LayerNorm.*"], "H"),
    ("encoder.blocks.#.feed_forward.up.*", ["encoder.layer.#.intermediate.dense.*"], "I H"),
    ("encoder.blocks.#.feed_forward.down.*", ["encoder.layer.#.output.dense.*"], "H I"),
    ("encoder.blocks.#.feed_forward_norm.*", ["encoder.layer.#.output.LayerNorm.*"], "H"),
    ("pooler.dense.*", ["pooler.dense.*"], "H H"),
]
_SAME = (  # keys of BERT's config.json that are names of fields
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "type_vocab_size", "layer_norm_eps", "initializer_range", "hidden_act",
)  # fmt: skip


FAMILY = Family(
    prefix="bert.",
    body=("embeddings.", "encoder.", "pooler."),
    table=[
        *ENCODER,
        ("lm_head.dense.*", ["cls.predictions.transform.dense.*"], "E H"),
        ("lm_head.norm.*", ["cls.predictions.transform.LayerNorm.*"], "E"),
        ("lm_head.bias", ["cls.predictions.bias"], "V"),
        ("next_sentence.*", ["cls.seq_relationship.*"], "2 H"),
    ],
    tied={
        "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    buffers=frozenset({"embeddings.position_ids", "embeddings.token_type_ids"}),
    settings={name: name for name in _SAME}
    | {"hidden_dropout_prob": "hidden_dropout", "attention_probs_dropout_prob": "attention_dropout"},
    default=EncoderConfig(vocab_size=30522, intermediate_size=3072),
    required={"position_embedding_type": "absolute", "is_decoder": False},
    written={
        "classifier_dropout": None, "use_cache": True, "is_decoder": False, "add_cross_attention": False,
        "tie_word_embeddings": True, "dtype": "float32", "bos_token_id": None, "eos_token_id": None,
    },
    pretraining={
        frozenset({"lm_head", "next_sentence"}): "BertForPreTraining",
        frozenset({"lm_head"}): "BertForMaskedLM",
        frozenset({"next_sentence"}): "BertForNextSentencePrediction",
        frozenset(): "BertModel",
    },
    tasks=task_classes("Bert"),
)  # fmt: skip

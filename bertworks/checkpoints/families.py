"""Name tables of the families: names of parameters, settings of config.json, classes, oddities.

Tables have one row for each parameter of ours: its name; theirs, joined in order along the first axis; the shape of
each of theirs. "#" is the number of a layer. "*" is weight, or bias, which has only the first axis. Sizes: V
vocabulary, P positions, T token types, E embedding, H hidden, I feed-forward, Q 3 * H, L labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bertworks.models.config import PRESETS, EncoderConfig

Row = tuple[str, list[str], str]

# Theirs: ours. Google's code computes the tanh approximation under the name "gelu"; in these files it is exact.
GELUS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu",
    "gelu_python": "gelu", "gelu_fast": "gelu_tanh",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Family:
    """The files of a family in transformers.

    prefix: before the names of the body, in files that hold a head as well.
    body: how names of the body begin, without the prefix.
    table: rows, see above.
    by_class: rows that replace those of the table in files of a class.
    tied: copies of tied parameters that some versions write, and what each must be equal to.
    buffers: names, with "#", of tensors that are no parameters.
    transposed: endings of our names whose matrices are stored [inputs, outputs].
    unused_positions: rows of the position table before the first position.
    settings: key of config.json: field of EncoderConfig. Of several keys for a field the last one counts.
    default: what a config.json without these keys says; its position table has all rows. Fields that no key describes
        are the same for the whole family, whose name, their model_type, is one of them.
    required: settings that change what is computed, and the only value that is supported.
    written: further settings that are written.
    pretraining: heads that a state holds: the class that saves exactly these.
    tasks: our task: the class.
    """

    prefix: str
    body: tuple[str, ...]
    table: list[Row]
    by_class: Mapping[str, list[Row]] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)
    buffers: frozenset[str] = frozenset()
    transposed: tuple[str, ...] = ()
    unused_positions: int = 0
    settings: Mapping[str, str]
    default: EncoderConfig
    required: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)
    pretraining: Mapping[frozenset[str], str] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)


# --- BERT (Devlin et al. 2019): names and settings, and the rows that its relatives share.

_SHARED: list[Row] = [  # with DistilBERT
    ("encoder.embeddings.token.weight", ["embeddings.word_embeddings.weight"], "V E"),
    ("encoder.embeddings.position.weight", ["embeddings.position_embeddings.weight"], "P E"),
    ("encoder.embeddings.norm.*", ["embeddings.LayerNorm.*"], "E"),
    ("classifier.*", ["classifier.*"], "L C"),
    ("span.*", ["qa_outputs.*"], "2 H"),
]
_SELF = "encoder.layer.#.attention.self"
_ENCODER: list[Row] = [
    *_SHARED,
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


def _task_classes(name: str) -> dict[str, str]:
    """Classes of the heads, as transformers calls them: `Bert` -> BertForSequenceClassification, ..."""
    sequence, tokens = f"{name}ForSequenceClassification", f"{name}ForTokenClassification"
    return {
        "classification": sequence, "multilabel": sequence, "regression": sequence, "tagging": tokens, "spans": tokens,
        "qa": f"{name}ForQuestionAnswering", "choice": f"{name}ForMultipleChoice",
    }  # fmt: skip


_BERT = Family(
    prefix="bert.",
    body=("embeddings.", "encoder.", "pooler."),
    table=[
        *_ENCODER,
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
    tasks=_task_classes("Bert"),
)  # fmt: skip

# --- RoBERTa (Liu et al. 2019): BERT's body with other heads. Its position table has two unused rows in front.

_SEQUENCE: list[Row] = [  # the head of a sequence has the dense layer that is the pooler's elsewhere
    ("pooler.dense.*", ["classifier.dense.*"], "H H"),
    ("classifier.*", ["classifier.out_proj.*"], "L C"),
]
_ROBERTA = replace(
    _BERT,
    prefix="roberta.",
    table=[
        *_ENCODER,
        ("lm_head.dense.*", ["lm_head.dense.*"], "E H"),
        ("lm_head.norm.*", ["lm_head.layer_norm.*"], "E"),
        ("lm_head.bias", ["lm_head.bias"], "V"),
    ],
    by_class={"RobertaForSequenceClassification": _SEQUENCE},
    tied={"lm_head.decoder.weight": "embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias"},
    unused_positions=2,
    default=EncoderConfig(vocab_size=50265, intermediate_size=3072, pooler_dropout=True, family="roberta"),
    required={**_BERT.required, "pad_token_id": 1},
    pretraining={frozenset({"lm_head"}): "RobertaForMaskedLM", frozenset(): "RobertaModel"},
    tasks=_task_classes("Roberta"),
)

# --- DistilBERT (Sanh et al. 2019): half of BERT's layers, no token types, another head for sequences.

_LAYER = "transformer.layer.#"
_DISTILBERT = Family(
    prefix="distilbert.",
    body=("embeddings.", "transformer."),
    table=[
        *_SHARED,
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
    tasks=_task_classes("DistilBert"),
)  # fmt: skip

# --- GPT-2 (Radford et al. 2019): reads from left to right, norm first; its matrices are stored transposed.

_GPT2_REQUIRED = {
    "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}  # fmt: skip
_GPT2 = Family(
    prefix="transformer.",
    body=("wte.", "wpe.", "h.", "ln_f."),
    table=[
        ("encoder.embeddings.token.weight", ["wte.weight"], "V E"),
        ("encoder.embeddings.position.weight", ["wpe.weight"], "P E"),
        ("encoder.blocks.#.attention.qkv.*", ["h.#.attn.c_attn.*"], "Q H"),
        ("encoder.blocks.#.attention.output.*", ["h.#.attn.c_proj.*"], "H H"),
        ("encoder.blocks.#.attention_norm.*", ["h.#.ln_1.*"], "H"),
        ("encoder.blocks.#.feed_forward.up.*", ["h.#.mlp.c_fc.*"], "I H"),
        ("encoder.blocks.#.feed_forward.down.*", ["h.#.mlp.c_proj.*"], "H I"),
        ("encoder.blocks.#.feed_forward_norm.*", ["h.#.ln_2.*"], "H"),
        ("encoder.norm.*", ["ln_f.*"], "H"),
    ],
    tied={"lm_head.weight": "wte.weight"},
    buffers=frozenset({"h.#.attn.bias", "h.#.attn.masked_bias"}),
    transposed=("qkv.weight", "output.weight", "up.weight", "down.weight"),
    settings={
        "vocab_size": "vocab_size", "n_embd": "hidden_size", "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads", "n_inner": "intermediate_size", "n_positions": "max_position_embeddings",
        "embd_pdrop": "hidden_dropout", "resid_pdrop": "hidden_dropout", "attn_pdrop": "attention_dropout",
        "layer_norm_epsilon": "layer_norm_eps", "initializer_range": "initializer_range",
        "activation_function": "hidden_act",
    },
    default=PRESETS["gpt2"],
    required=_GPT2_REQUIRED,
    written=_GPT2_REQUIRED | {"tie_word_embeddings": True, "dtype": "float32", "use_cache": True},
    # Its head has no parameters of its own: every state has it.
    pretraining={frozenset(): "GPT2LMHeadModel", frozenset({"lm_head"}): "GPT2LMHeadModel"},
)  # fmt: skip

FAMILIES = {family.default.family: family for family in (_BERT, _ROBERTA, _DISTILBERT, _GPT2)}

"""RoBERTa (Liu et al. 2019): BERT's body with other heads. Its position table has two unused rows in front."""

from dataclasses import replace

from bertworks.checkpoints.families import bert
from bertworks.checkpoints.families.family import Row, task_classes
from bertworks.models.config import EncoderConfig

_SEQUENCE: list[Row] = [  # the head of a sequence has the dense layer that is the pooler's elsewhere
    ("pooler.dense.*", ["classifier.dense.*"], "H H"),
    ("classifier.*", ["classifier.out_proj.*"], "L C"),
]
FAMILY = replace(
    bert.FAMILY,
    prefix="roberta.",
    table=[
        *bert.ENCODER,
        ("lm_head.dense.*", ["lm_head.dense.*"], "E H"),
        ("lm_head.norm.*", ["lm_head.layer_norm.*"], "E"),
        ("lm_head.bias", ["lm_head.bias"], "V"),
    ],
    by_class={"RobertaForSequenceClassification": _SEQUENCE},
    tied={"lm_head.decoder.weight": "embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias"},
    unused_positions=2,
    default=EncoderConfig(vocab_size=50265, intermediate_size=3072, pooler_dropout=True, family="roberta"),
    required={**bert.FAMILY.required, "pad_token_id": 1},
    pretraining={frozenset({"lm_head"}): "RobertaForMaskedLM", frozenset(): "RobertaModel"},
    tasks=task_classes("Roberta"),
)

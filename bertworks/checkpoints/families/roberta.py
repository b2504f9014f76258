"""RoBERTa (Liu et al. 2019): BERT's body with other heads. Its position table has two unused rows in front."""

from bertworks.checkpoints.families.bert import ENCODER, SETTINGS, WRITTEN, task_classes
from bertworks.checkpoints.families.family import Family, Row
from bertworks.models.config import EncoderConfig

_SEQUENCE: list[Row] = [  # the head of a sequence has the dense layer that is the pooler's elsewhere
    ("pooler.dense.*", ["classifier.dense.*"], "H H"),
    ("classifier.*", ["classifier.out_proj.*"], "L C"),
]
FAMILY = Family(
    prefix="roberta.",
    body=("embeddings.", "encoder.", "pooler."),
    table=[
        *ENCODER,
        ("lm_head.dense.*", ["lm_head.dense.*"], "E H"),
        ("lm_head.norm.*", ["lm_head.layer_norm.*"], "E"),
        ("lm_head.bias", ["lm_head.bias"], "V"),
    ],
    by_class={"RobertaForSequenceClassification": _SEQUENCE},
    tied={"lm_head.decoder.weight": "embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias"},
    buffers=frozenset({"embeddings.position_ids", "embeddings.token_type_ids"}),
    unused_positions=2,
    settings=SETTINGS,
    default=EncoderConfig(vocab_size=50265, intermediate_size=3072, pooler_dropout=True, family="roberta"),
    required={"position_embedding_type": "absolute", "is_decoder": False, "pad_token_id": 1},
    written=WRITTEN,
    pretraining={frozenset({"lm_head"}): "RobertaForMaskedLM", frozenset(): "RobertaModel"},
    tasks=task_classes("Roberta"),
)

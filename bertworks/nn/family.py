"""The published sizes as points on the axes of `EncoderConfig` (Devlin et al. 2019; Turc et al. 2019, table 1)."""

from dataclasses import replace

from bertworks.nn.config import EncoderConfig

BERT_BASE = EncoderConfig(vocab_size=30522)
BERT_LARGE = replace(BERT_BASE, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16)
BERT_MEDIUM = replace(BERT_BASE, hidden_size=512, num_hidden_layers=8, num_attention_heads=8)
BERT_SMALL = replace(BERT_MEDIUM, num_hidden_layers=4)
BERT_MINI = replace(BERT_BASE, hidden_size=256, num_hidden_layers=4, num_attention_heads=4)
BERT_TINY = replace(BERT_BASE, hidden_size=128, num_hidden_layers=2, num_attention_heads=2)

SIZES: dict[str, EncoderConfig] = {
    "tiny": BERT_TINY,
    "mini": BERT_MINI,
    "small": BERT_SMALL,
    "medium": BERT_MEDIUM,
    "base": BERT_BASE,
    "large": BERT_LARGE,
}

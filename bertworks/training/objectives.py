"""Objectives: networks that turn a batch into named sums of losses.

counts(batch)   what each loss is summed over, known before the forward pass: the denominator of a whole step is
known
                before its first gradient
forward(batch)  the sums, by the same names
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from bertworks.batching.batch import Batch
from bertworks.models.config import EncoderConfig
from bertworks.models.encoder import Encoder, initialize
from bertworks.models.heads import LMHead, Pooler
from bertworks.training.losses import LossSum, cross_entropy, vocabulary_cross_entropy


class Objective(Protocol):
    """What the trainer knows of learning."""

    def counts(self, batch: Batch) -> dict[str, int]: ...
    def __call__(self, batch: Batch) -> dict[str, LossSum]: ...


class PretrainingModel(nn.Module):
    """BERT as it is pre-trained: masked LM over the asked tokens, and next sentence prediction over [CLS], whose losses
    are added (Devlin et al. 2019, section 3.1; appendix A.2). Without `next_sentence` there is no pooler either."""

    def __init__(self, c: EncoderConfig, *, next_sentence: bool = True, gradient_checkpointing: bool = False):
        super().__init__()
        self.encoder = Encoder(c, gradient_checkpointing)
        self.pooler = Pooler(c) if next_sentence else None
        self.lm_head = LMHead(c)
        self.next_sentence = nn.Linear(c.hidden_size, 2) if next_sentence else None
        if self.next_sentence is not None:
            initialize(self.next_sentence, c)

    def counts(self, batch: Batch) -> dict[str, int]:
        asked = {"masked_lm": len(batch.labels)}
        if self.next_sentence is not None and batch.pair_labels is not None:
            asked["next_sentence"] = len(batch.pair_labels)
        return asked

    def forward(self, batch: Batch) -> dict[str, LossSum]:
        first_tokens = batch.layout.first if self.pooler is None else self.pooler.tokens(batch.layout)
        rows = torch.cat([batch.masked_positions, first_tokens.long()])  # the others are not needed
        states = self.encoder(batch.input_ids, batch.layout, batch.token_type_ids, rows)[-1]
        states, first = states.split([len(batch.masked_positions), batch.layout.num_sequences])
        asked = self.lm_head.transform(states)
        words = self.encoder.embeddings.token.weight.to(asked.dtype)
        tallies = {"masked_lm": vocabulary_cross_entropy(asked, words, self.lm_head.bias, batch.labels)}
        if self.pooler is not None and self.next_sentence is not None and batch.pair_labels is not None:
            pooled = self.pooler(first)
            tallies["next_sentence"] = cross_entropy(self.next_sentence(pooled), batch.pair_labels)
        return tallies

    def scores(self, batch: Batch) -> Tensor:
        """[M, V]: the scores of every word at the asked places."""
        states = self.encoder(batch.input_ids, batch.layout, batch.token_type_ids, batch.masked_positions)[-1]
        return self.lm_head(states, self.encoder.embeddings.token.weight)  # type: ignore[no-any-return]

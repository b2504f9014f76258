"""BLEU of the translations that a network makes while it is trained.

- `HeldOutPairs`: held-out pairs of texts, the same at every evaluation
"""

from collections.abc import Sequence
from itertools import pairwise

from bertworks.batching.batch import Batch
from bertworks.inference.translation import (
    MORE_TOKENS,
    DecodingRules,
    TranslationNetwork,
    beam_search,
)
from bertworks.metrics.squad import f1_unit_of
from bertworks.metrics.translation import Tokenization, bleu
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.device import Precision
from bertworks.training.objectives import PretrainingModel

MOST_PAIRS = 200
AT_ONCE = 32  # pairs that are translated together


class HeldOutPairs:
    """At most MOST_PAIRS pairs of held-out batches, evenly spread over them.

    Args:
        batches: of pairs, by length; the tokens of type 0 are the source, those of type 1 the
            translation.

    Attributes:
        sources: the tokens of each, with special tokens.
        references: the translation of each, as the vocabulary writes it.
    """

    def __init__(self, batches: Sequence[Batch], tokenizer: Tokenizer):
        pairs = []
        for batch in batches:
            assert batch.token_type_ids is not None
            ids = batch.input_ids.tolist()
            types = batch.token_type_ids.tolist()
            for begin, end in pairwise(batch.layout.cu_seqlens.tolist()):
                middle = types.index(1, begin)
                pairs.append((ids[begin:middle], ids[middle:end]))
        count = min(MOST_PAIRS, len(pairs))
        pairs = [pairs[number * len(pairs) // count] for number in range(count)]
        self._tokenizer = tokenizer.target
        self.sources: list[list[int]] = [source for source, _ in pairs]
        self.references = [self._text(target) for _, target in pairs]
        self._start: int = pairs[0][1][0]
        self._end: int = pairs[0][1][-1]

    def bleu(self, network: PretrainingModel, precision: Precision) -> float:
        """Return the BLEU of greedy translations by a network with a decoder.

        Texts of Japanese or Chinese are compared by characters, others by words (13a).
        """
        longest = network.encoder.config.max_position_embeddings
        is_training = network.training
        network.eval()
        translator = TranslationNetwork(network, precision=precision)
        # The start token may be padding, as in Marian, which no translation has.
        rules = DecodingRules(beam=1, forbidden=(self._start,))
        translations = []
        for begin in range(0, len(self.sources), AT_ONCE):
            sources = self.sources[begin : begin + AT_ONCE]
            limits = [min(longest, len(source) + MORE_TOKENS) for source in sources]
            hypotheses = beam_search(translator, sources, self._start, [self._end], limits, rules)
            translations += [self._text(hypothesis.ids) for hypothesis in hypotheses]
        network.train(is_training)
        is_in_characters = f1_unit_of(self.references) == "character"
        tokenize: Tokenization = "char" if is_in_characters else "13a"
        return bleu(translations, self.references, tokenize=tokenize).value

    def _text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True).strip()

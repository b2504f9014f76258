"""How good a model is on text that it has not seen."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertworks.data.sampling import Store
from bertworks.errors import UsageError
from bertworks.files.model import load_model
from bertworks.files.names import locate
from bertworks.learn.machine import Precision, choose_device
from bertworks.learn.objectives import PretrainingModel
from bertworks.learn.train import evaluate
from bertworks.text.corpus import CorpusReader
from bertworks.text.shards import write_shards
from bertworks.use.examples import held_out_batches, in_sections
from bertworks.use.metrics import evaluation_figures
from bertworks.use.prepare import Documents


def evaluate_mlm(
    model: str | Path,
    inputs: Sequence[str | Path],
    *,
    sequence_length: int | None = None,
    sequences: int = 0,
    device: str = "auto",
    precision: Precision = "fp32",
    text_column: str | None = None,
    documents: Documents = "auto",
) -> dict[str, float]:
    """Loss, accuracy and perplexity on masked words of raw text, and accuracy of next sentence prediction if the model
    has that head and the text two documents. 15 % of the tokens are masked, 80/10/10, always the same ones.

    Args:
        model: a folder, or the name of a model on the Hugging Face hub.
        sequence_length: of the examples, in tokens; None: 128, or as many as the model reads if that is less.
        sequences: at most so many; 0: all that the text gives.

    Raises:
        UsageError: sequences longer than the model can read.
        BertworksError: no such model, no text.
    """
    config, state, tokenizer = load_model(locate(model), needs={"encoder", "masked_lm"})
    longest = config.max_position_embeddings
    length = min(128, longest) if sequence_length is None else sequence_length
    if not 5 <= length <= longest:
        raise UsageError(f"a sequence length of {length}: the model reads from 5 to {longest} tokens")
    parts = {name.split(".")[0] for name in state}
    reader = CorpusReader(inputs, text_column=text_column, documents=documents)
    with tempfile.TemporaryDirectory() as folder:
        store: Store = in_sections(write_shards(reader, tokenizer, Path(folder) / "shards"))
        every = np.arange(len(store.documents) - 1)
        pairs = {"pooler", "next_sentence"} <= parts and len(every) >= 2
        network = PretrainingModel(config, next_sentence=pairs)
        network.load_state_dict({name: state[name] for name, _ in network.named_parameters()})
        batches = held_out_batches(
            store, every, tokenizer, pairs=pairs, sequence_length=length, sequences=sequences or 1 << 40
        )
        means = evaluate(network.to(choose_device(device)), batches, precision)
    counts = {
        "sequences": float(sum(b.layout.num_sequences for b in batches)),
        "masked_tokens": float(means["masked_lm"].count),
    }
    return evaluation_figures(means) | counts

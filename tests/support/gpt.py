"""Small random GPT and GPT-2 folders with a byte-level tokenizer, by transformers. Every parameter
is perturbed."""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from bertworks.batching.batch import Batch
from bertworks.runs.pretrain_job import PretrainJob, held_out_batches

END = "<|endoftext|>"
END_ID = 256
POSITIONS = 100


def write_tokenizer(folder: Path) -> None:
    """A token for every byte, and an end token."""
    letters = [*sorted(ByteLevel.alphabet()), END]
    t = tokenizers.Tokenizer(
        models.BPE({letter: number for number, letter in enumerate(letters)}, [])
    )
    t.pre_tokenizer, t.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=t, bos_token=END, eos_token=END, unk_token=END, model_max_length=POSITIONS
    ).save_pretrained(folder)


def write_gpt(folder: Path) -> transformers.OpenAIGPTLMHeadModel:
    """The network, in evaluation mode, and its folder."""
    write_tokenizer(folder)
    sizes = {"vocab_size": 257, "n_positions": POSITIONS, "n_embd": 24, "n_layer": 3, "n_head": 4}
    config = transformers.OpenAIGPTConfig(**sizes, eos_token_id=END_ID, pad_token_id=END_ID)
    return _saved(transformers.OpenAIGPTLMHeadModel, config, folder, 0)


def write_gpt2(folder: Path, seed: int = 0, **sizes: int) -> transformers.GPT2LMHeadModel:
    """The network, in evaluation mode, and its folder."""
    write_tokenizer(folder)
    config = transformers.GPT2Config(
        vocab_size=257,
        n_positions=POSITIONS,
        bos_token_id=END_ID,
        eos_token_id=END_ID,
        pad_token_id=END_ID,
        **({"n_embd": 24, "n_layer": 3, "n_head": 4} | sizes),
    )
    return _saved(transformers.GPT2LMHeadModel, config, folder, seed)


def _saved(kind: Any, config: Any, folder: Path, seed: int) -> Any:
    torch.manual_seed(seed)
    network = kind(config).eval()
    for parameter in network.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.15)
    network.save_pretrained(folder)
    return network


def held_out_of(job: PretrainJob) -> list[Batch]:
    """Return the held-out batches of a pre-training on one text."""
    ((store, _, documents),) = job.parts
    train = job.recipe.train
    return held_out_batches(
        store,
        documents,
        job.tokenizer,
        format=job.recipe.sampling.format,
        sequence_length=train.held_out_length,
        sequences=train.held_out_sequences,
        kind=job.recipe.token_objective,
    )


def causal_loss(network: Any, batches: Iterable[Batch]) -> float:
    """Return the mean loss of all next tokens of some batches, as transformers computes it for each
    sequence alone."""
    total = count = 0.0
    with torch.no_grad():
        for batch in batches:
            for start, end in pairwise(batch.layout.cu_seqlens.tolist()):
                row = batch.input_ids[None, start:end]
                total += float(network(row, labels=row).loss) * (end - start - 1)
                count += end - start - 1
    return total / count

"""Text, shards and a tokenizer for the parts that need them, made in seconds from random words,
without a network."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bertworks.runs.prepare import make_shards, make_vocabulary, read_text
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import VocabularyConfig

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def words(count: int = 20000, seed: int = 0) -> list[str]:
    draw = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlu"))
    return list(
        dict.fromkeys("".join(draw.choice(letters, draw.integers(2, 9))) for _ in range(count))
    )


def sentences(count: int, shortest: int = 5, longest: int = 25, seed: int = 1) -> Iterator[str]:
    """Of words with frequencies that fall as in text."""
    draw, known = np.random.default_rng(seed), words()
    for n in draw.integers(shortest, longest + 1, count):
        numbers = (len(known) * draw.random(n) ** 3).astype(int)
        yield " ".join(known[i] for i in numbers) + "."


def write_corpus(path: Path, documents: int, seed: int = 1) -> Path:
    """Documents of 20 sentences, with blank lines between them."""
    lines = list(sentences(20 * documents, seed=seed))
    path.write_text(
        "\n\n".join("\n".join(lines[i : i + 20]) for i in range(0, len(lines), 20)) + "\n"
    )
    return path


def write_shards(folder: Path, documents: int, vocabulary: int = 4000) -> Path:
    """A shards folder with its own vocabulary."""
    reader = read_text([write_corpus(folder / "text.txt", documents)], documents="blank_line")
    for _ in make_vocabulary(
        reader, folder / "tokenizer", VocabularyConfig(size=vocabulary), workers=1
    ):
        pass
    for _ in make_shards(
        reader, folder / "shards", Tokenizer.load(folder / "tokenizer"), workers=1
    ):
        pass
    return folder / "shards"


def write_minilm(folder: Path) -> Path:
    """Random weights in the shape of all-MiniLM-L6-v2, with a word for each token, as transformers
    saves them."""
    import tokenizers
    import transformers
    from tokenizers import models, normalizers, pre_tokenizers, processors

    known = words(40000)[: 30522 - len(SPECIAL)]
    vocabulary = {
        word: number
        for number, word in enumerate([*SPECIAL, *known, *(f"##{i}" for i in range(30522))])
    }
    vocabulary = {word: number for word, number in vocabulary.items() if number < 30522}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    config = transformers.BertConfig(
        vocab_size=30522,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
    )
    transformers.BertModel(config).save_pretrained(folder)
    names = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    (folder / "vocab.txt").write_text(
        "\n".join(sorted(vocabulary, key=lambda word: vocabulary[word])) + "\n"
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=512, **names
    )
    fast.save_pretrained(folder)
    return folder

"""Tokenizer folders in the form in which translators of Marian are published."""

import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece


def train_sentencepiece(lines: Iterable[str], num_pieces: int, **settings: Any) -> bytes:
    """A SentencePiece file. settings: of the trainer."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        **{
            "vocab_size": num_pieces,
            "hard_vocab_limit": False,
            "character_coverage": 0.999,
            "num_threads": 1,
            "minloglevel": 2,
        }
        | settings,
    )
    return model.getvalue()


def write_marian(
    folder: Path,
    source: Sequence[str],
    target: Sequence[str],
    *,
    num_pieces: int = 900,
    languages: Iterable[str] = (),
    config: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """The tokenizer of a translator: source.spm, target.spm, vocab.json, tokenizer_config.json.

    The vocabulary is made as marian-vocab does: the pieces of a corpus, the most frequent ones
    first. The corpus is each second line, so the vocabulary lacks some pieces of each file.

    Args:
        languages: target languages, of which the tokens stand behind the pieces.
        config: tokenizer_config.json; None: two languages, as most folders have it.
        settings: of the trainer of SentencePiece.
    """
    folder.mkdir(parents=True, exist_ok=True)
    counts = Counter[str]()
    for name, lines in (("source", source), ("target", target)):
        content = train_sentencepiece(lines, num_pieces, **settings)
        (folder / f"{name}.spm").write_bytes(content)
        processor = sentencepiece.SentencePieceProcessor(model_proto=content)
        known = {processor.id_to_piece(number) for number in range(len(processor))}
        for pieces in processor.encode(list(lines[::2]), out_type=str):
            counts.update(piece for piece in pieces if piece in known)
    tokens = ["</s>", "<unk>", *(piece for piece, _ in counts.most_common())]
    tokens += [f">>{language}<<" for language in languages]
    vocabulary = {token: number for number, token in enumerate([*tokens, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    if config is None:
        config = {"source_lang": "en", "target_lang": "de"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder

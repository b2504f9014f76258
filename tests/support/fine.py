"""A tiny BERT with a vocabulary of its own, and labelled data that it can learn in a second."""

import csv
import gc
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bertworks.checkpoints.model_folder import save_model
from bertworks.io.tables import Data
from bertworks.models.config import EncoderConfig
from bertworks.models.settings import DecoderConfig
from bertworks.runs import data_splits
from bertworks.runs.data_splits import DataRequest, LabelledData
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import VocabularyConfig, train_vocabulary
from bertworks.training.objectives import PretrainingModel
from bertworks.training.recipe import load_recipe

GOOD = ["good", "great", "fine", "lovely", "happy"]
BAD = ["bad", "awful", "poor", "nasty", "sad"]
FILLER = (
    "the film was a story of men and dogs in this town with some music that they heard last night"
).split()
PEOPLE = ["Anna", "Boris", "Clara", "Dmitri"]
PLACES = ["Paris", "Kyoto", "Oslo", "Lima"]


def tokenizer(length: int = 64) -> Tokenizer:
    words = " ".join([*GOOD, *BAD, *FILLER, *PEOPLE, *PLACES, "who where lives in ? . ,"])
    result, _ = train_vocabulary([words] * 5, VocabularyConfig(size=200))
    result.model_max_length = length
    return result


def write_model(folder: Path, *, length: int = 64, noise: float = 0.0, **settings: Any) -> Path:
    """A model folder with random weights.

    noise: of every parameter, so that no bias is 0 and no norm is 1. settings: of the encoder.
    """
    t = tokenizer(length)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    dropout = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    config = EncoderConfig(
        vocab_size=t.vocab_size,
        max_position_embeddings=length,
        initializer_range=0.1,
        **(sizes | dropout | settings),
    )
    torch.manual_seed(0)
    state = PretrainingModel(config).state_dict()
    if noise:
        state = {name: value + noise * torch.randn_like(value) for name, value in state.items()}
    save_model(folder, state, config, t, card="tiny")
    return folder


def write_translator(
    folder: Path,
    *,
    length: int = 24,
    t: Tokenizer | None = None,
    recipe: str = "transformer-tiny",
    **fields: Any,
) -> Path:
    """The folder of a tiny translator, whose parameters are all random.

    Args:
        length: the largest number of tokens of a text.
        t: its tokenizer; None: byte-level BPE, as `pretrain --parallel` trains it.
        recipe: of the network, some of whose sizes are smaller.
        fields: of the encoder, in place of those of the recipe.
    """
    settings = load_recipe(recipe)
    if t is None:
        words = " ".join([*FILLER, *PEOPLE, *PLACES])
        t, _ = train_vocabulary([words] * 5, replace(settings.vocabulary, size=300))
    t.model_max_length = length
    sizes: dict[str, Any] = {"hidden_size": 24, "max_position_embeddings": length}
    if settings.encoder.kind == "transformer":
        sizes |= {"num_hidden_layers": 2, "intermediate_size": 40}
        sizes["decoder"] = DecoderConfig(num_hidden_layers=3)
    config = replace(settings.encoder, vocab_size=t.vocab_size, **(sizes | fields))
    torch.manual_seed(0)
    state = PretrainingModel(config, {"translation": 1.0}).state_dict()
    state = {name: value + 0.3 * torch.randn_like(value) for name, value in state.items()}
    save_model(folder, state, config, t, card="tiny")
    return folder


def storages() -> dict[int, int]:
    """The memory of all tensors that are alive: where it begins, and its bytes. Not of those that
    oneDNN packed."""
    gc.collect()
    alive = [
        tensor
        for tensor in gc.get_objects()
        if issubclass(type(tensor), torch.Tensor) and tensor.device.type == "cpu"
    ]
    alive = [tensor for tensor in alive if not tensor.is_mkldnn]
    return {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in alive
    }


def sentence(draw: random.Random, *words: str, length: int = 8) -> str:
    chosen = draw.choices(FILLER, k=draw.randint(3, length)) + list(words)
    draw.shuffle(chosen)
    return " ".join(chosen)


def write_reviews(path: Path, count: int = 200, seed: int = 0) -> Path:
    """text,stars,label: pos and neg by one word."""
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label", "reviewer"])
        for number in range(count):
            positive = draw.random() < 0.5
            rows.writerow(
                [
                    sentence(draw, draw.choice(GOOD if positive else BAD)),
                    "pos" if positive else "neg",
                    number % 7,
                ]
            )
    return path


def write_multilabel(path: Path, count: int = 200) -> Path:
    draw = random.Random(1)
    with path.open("w") as file:
        for _ in range(count):
            labels = [name for name in ("person", "place") if draw.random() < 0.5]
            words = [draw.choice({"person": PEOPLE, "place": PLACES}[name]) for name in labels]
            file.write(json.dumps({"text": sentence(draw, *words), "labels": labels}) + "\n")
    return path


def write_pairs(path: Path, count: int = 200) -> Path:
    """sentence1, sentence2, score: how many of three words agree in mood."""
    draw = random.Random(2)
    with path.open("w", newline="") as file:
        rows = csv.writer(file, delimiter="\t")
        rows.writerow(["sentence1", "sentence2", "score"])
        for _ in range(count):
            good = draw.random()
            words = [draw.choice(GOOD if draw.random() < good else BAD) for _ in range(3)]
            score = sum(word in GOOD for word in words) / 3 * 5
            rows.writerow([sentence(draw), sentence(draw, *words), f"{score:.2f}"])
    return path


def write_conll(path: Path, count: int = 120) -> Path:
    draw = random.Random(3)
    lines = []
    for _ in range(count):
        for word in sentence(
            draw, draw.choice(PEOPLE), draw.choice(PLACES), draw.choice(PLACES)
        ).split():
            tag = "B-person" if word in PEOPLE else "B-place" if word in PLACES else "O"
            lines.append(f"{word}\t{tag}")
        lines.append("")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_spans(path: Path, count: int = 120) -> Path:
    draw = random.Random(4)
    rows = []
    for _ in range(count):
        name = draw.choice(PEOPLE)
        text = sentence(draw, name)
        start = text.index(name)
        rows.append(
            {
                "text": text,
                "entities": [{"start": start, "end": start + len(name), "type": "person"}],
            }
        )
    path.write_text(json.dumps(rows))
    return path


def write_squad(path: Path, count: int = 120, *, impossible: bool = True) -> Path:
    draw = random.Random(5)
    paragraphs = []
    for number in range(count):
        place, person = draw.choice(PLACES), draw.choice(PEOPLE)
        context = f"{sentence(draw)} {person} lives in {place} . {sentence(draw)}"
        requested = {
            "id": f"q{number}",
            "question": f"where lives {person} ?",
            "is_impossible": False,
        }
        requested["answers"] = [{"text": place, "answer_start": context.index(f"in {place} .") + 3}]
        if impossible and number % 4 == 0:
            context = context.replace(f"lives in {place}", "was in this town")
            requested |= {"answers": [], "is_impossible": True}
        paragraphs.append({"context": context, "qas": [requested]})
    path.write_text(
        json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]})
    )
    return path


def write_choices(path: Path, count: int = 160) -> Path:
    draw = random.Random(6)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["startphrase", "ending0", "ending1", "ending2", "label"])
        for _ in range(count):
            right = draw.randrange(3)
            endings = [sentence(draw, draw.choice(GOOD if n == right else BAD)) for n in range(3)]
            rows.writerow([sentence(draw), *endings, right])
    return path


def read_data(data: Data, **options: Any) -> LabelledData:
    """Read labelled data.

    options: the other fields of `DataRequest`, with `fold` as (number, count), and
    `whole_documents`.
    """
    whole_documents = options.pop("whole_documents", False)
    if fold := options.pop("fold", None):
        options |= {"fold": fold[0], "folds": fold[1]}
    return data_splits.read_data(DataRequest(data, **options), whole_documents=whole_documents)


# The file of examples of each task: its name, and the function that writes it.
FILES_OF_TASKS: dict[str, tuple[str, Callable[..., Path]]] = {
    "classification": ("reviews.csv", write_reviews),
    "multilabel": ("topics.jsonl", write_multilabel),
    "regression": ("pairs.tsv", write_pairs),
    "tagging": ("names.conll", write_conll),
    "spans": ("spans.json", write_spans),
    "qa": ("squad.json", write_squad),
    "choice": ("choices.csv", write_choices),
}


def write_examples(folder: Path, task: str, *count: int) -> Path:
    """Write the file of examples of a task in a folder, and return its path."""
    name, write = FILES_OF_TASKS[task]
    return write(folder / name, *count)

"""What inference.py gives to all: real texts of mixed lengths, and model folders. Not here: who
reads them."""

import json
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

DATA = Path(os.environ["BERTWORKS_DATA"]) if os.environ.get("BERTWORKS_DATA") else None
LONGEST = 256  # tokens of a text, [CLS] and [SEP] counted
QUERY = 12  # tokens of a query
_AT_ONCE = 1000


class Lengths:
    """Texts -> how many tokens each is, as minilm's tokenizer cuts them; all models here have
    it."""

    def __init__(self) -> None:
        from bertworks.checkpoints.resolve import resolve_model
        from bertworks.text.tokenizer import Tokenizer

        self.folder = resolve_model("minilm")
        self.tokenizer = Tokenizer.load(self.folder)

    def __call__(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) + 2 for ids in self.tokenizer.ids(list(texts))]


def real_texts(count: int, lengths_of: Lengths) -> list[str]:
    """Runs of whole sentences, of English Wikipedia or else of what comes with Python; about 61
    tokens on average, none longer than LONGEST. The same ones every time; beyond them they are
    repeated."""
    runs = _runs(documents())
    found: list[str] = []
    while len(found) < count and (part := list(islice(runs, _AT_ONCE))):
        found += [
            text for text, length in zip(part, lengths_of(part), strict=True) if length <= LONGEST
        ]
    return [found[n % len(found)] for n in range(count)]


def queries(count: int, lengths_of: Lengths) -> list[str]:
    """Sentences of QUERY tokens."""
    from bertworks.text.segmentation import split_sentences

    sentences = (sentence for document in documents() for sentence in split_sentences(document))
    found: list[str] = []
    while len(found) < count and (part := list(islice(sentences, _AT_ONCE))):
        found += [
            text for text, length in zip(part, lengths_of(part), strict=True) if length == QUERY
        ]
    return found[:count]


def labelled_texts(count: int, lengths_of: Lengths) -> list[str]:
    """The dev set of SST-2; as many real texts where it is not at hand."""
    if DATA is None:
        return real_texts(min(count, 872), lengths_of)
    from bertworks.datasets.reader import RowReader

    return [
        str(row.values["sentence"])
        for row in islice(RowReader(DATA / "glue" / "SST-2" / "dev.tsv"), count)
    ]


def documents() -> Iterator[str]:
    from bertworks.text.corpus import CorpusReader

    if DATA is None:
        yield from _prose()
    else:
        yield from (
            document.text for document in CorpusReader([DATA / "text" / "en-wikipedia-8m.jsonl.gz"])
        )


@cache
def _prose() -> list[str]:
    """The English that comes with Python and its packages."""
    from bertworks.demo.corpus import write_demo_corpus

    with tempfile.TemporaryDirectory() as folder:
        write_demo_corpus(Path(folder))
        lines = (Path(folder) / "training.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


def _runs(documents: Iterator[str]) -> Iterator[str]:
    """Sentences that follow each other, until they have as many words as were drawn: mostly few,
    sometimes many."""
    from bertworks.text.segmentation import split_sentences

    draw = random.Random(0)
    for document in documents:
        run: list[str] = []
        wanted = draw.lognormvariate(3.0, 1.0)
        for sentence in split_sentences(document):
            run.append(sentence)
            if sum(len(one.split()) for one in run) >= wanted:
                yield " ".join(run)
                run, wanted = [], draw.lognormvariate(3.0, 1.0)


def random_models(size: str, folder: Path) -> dict[str, Path]:
    """A pre-trained model of this shape and a classifier, with weights drawn from a seed; made
    once."""
    import torch

    from bertworks.checkpoints.model_folder import save_model
    from bertworks.checkpoints.task_config import save_task, task_settings
    from bertworks.models.config import BERT_SIZES
    from bertworks.tasks.heads import TaskModel
    from bertworks.tasks.outputs import Classification
    from bertworks.tasks.settings import TaskConfig
    from bertworks.training.objectives import PretrainingModel

    found = {name: folder / f"{size}-{name}" for name in ("pretrained", "classifier")}
    description = TaskConfig(
        task="classification", labels=("0", "1"), text=("sentence",), label=("label",)
    )
    for name, path in found.items():
        if (path / "README.md").exists():  # what is written last
            continue
        torch.manual_seed(0)
        network = (
            PretrainingModel(BERT_SIZES[size])
            if name == "pretrained"
            else TaskModel(BERT_SIZES[size], Classification(outputs=2))
        )
        head = None if name == "pretrained" else task_settings(description)
        save_model(
            path,
            network.state_dict(),
            BERT_SIZES[size],
            Lengths().tokenizer,
            card="Random weights.\n",
            head=head,
        )
        if head:
            save_task(description, path)
    return found

"""A model that makes vectors of texts, loaded; and what the text of a row is. Not here: whole files (`embed`), what is
near what (`index`)."""

import itertools
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from bertworks.data.labelled import Unit
from bertworks.data.masking import Example
from bertworks.errors import BertworksError, UsageError, listed
from bertworks.files.model import weights_sha256
from bertworks.files.opened import Opened, opened
from bertworks.files.sentence import read_sentence, write_sentence
from bertworks.learn.exported import Exported
from bertworks.learn.inference import prepared, vectors_of
from bertworks.learn.machine import Choice, InferencePrecision, keep_memory
from bertworks.learn.whitening import normalized
from bertworks.nn.encoder import Encoder
from bertworks.nn.frozen import Frozen, halved
from bertworks.nn.pooling import Pooling
from bertworks.rows.reader import Row, RowReader
from bertworks.text.streams import Tally
from bertworks.text.tables import as_text, choose_column, find_column

Vectors = NDArray[np.float32]
AT_ONCE = 2048  # texts that are read, sorted by length and embedded together
_JUDGED_ROWS = 100  # by which the column of the text is told


class Embedder:
    """A loaded model that makes vectors.

    Args:
        model: a folder of ours, of transformers or of sentence-transformers, an exported encoder, `minilm`, or a hub
            id; or one that is open, which stays where it is.
        pooling, normalize, max_length: None: as the model's own files say; else the mean, not normalised, and as many
            tokens as the model reads.
        precision: "auto": bf16 where this hardware gains by it; elsewhere fp32, but a short text alone is read with
            weights in half precision, which makes a difference in the fourth digit. "fp32": no such difference.
            "int8": see `nn.frozen.in_int8`; the cosine of MiniLM's vectors with exact ones is above .99; a short text
            alone is read with weights in half precision here too.

    Attributes:
        dimension: of its vectors.
        precision: what "auto" has become.

    Raises:
        BertworksError: no such model, or one whose vectors are made in another way.
        UsageError: no such pooling; `max_length` is more than the model reads.
    """

    def __init__(
        self,
        model: str | Path | Opened,
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        device: str = "auto",
        precision: Choice = "auto",
    ):
        if pooling is not None and pooling not in get_args(Pooling):
            raise UsageError(f"there is no pooling {pooling!r}", fix=f"take one of {', '.join(get_args(Pooling))}")
        source = opened(model, device)
        self.folder, found = read_sentence(source.folder)
        self.tokenizer, longest = source.tokenizer, source.config.max_position_embeddings
        self._network, self.precision = _network(source, precision)
        if max_length is not None and not 3 <= max_length <= longest:
            raise UsageError(f"max_length is {max_length}: the model reads from 3 to {longest} tokens")
        self.settings = replace(
            found,
            pooling=pooling or found.pooling,
            normalize=found.normalize if normalize is None else normalize,
            max_length=max_length or min(found.max_length or longest, self.tokenizer.model_max_length, longest),
        )
        self.dimension = source.config.hidden_size
        if self.settings.pooling == "last-four" and isinstance(self._network, Exported):
            fix = "take another pooling, or the model that was exported"
            raise UsageError("an exported model gives its last layer alone", where=str(self.folder), fix=fix)
        keep_memory()

    def embed(self, texts: Iterable[str], *, prompt: str | None = None) -> Vectors:
        """float32 [texts, dimension]. A text's vector does not depend on its neighbours (in int8 hardly).

        prompt: what is put before each; None: the model's default.

        Raises:
            UsageError: one text and no list, or something is no text."""
        texts = listed(texts, "embed([text])[0]")
        return np.concatenate([
            np.zeros((0, self.dimension), np.float32),
            *(self.portion(texts[start : start + AT_ONCE], prompt)[0] for start in range(0, len(texts), AT_ONCE)),
        ])  # fmt: skip

    def portion(self, texts: Sequence[str], prompt: str | None = None) -> tuple[Vectors, list[int]]:
        """The same for so many as fit in memory; and how many tokens of each were not read."""
        units, cut = self.units(texts, prompt)
        return self.finish(self.raw(units)), cut

    def units(self, texts: Sequence[str], prompt: str | None = None) -> tuple[list[Unit], list[int]]:
        """What the network reads of each text; and how many of its tokens are not read.

        Raises:
            UsageError: something is no text."""
        if wrong := [n for n, text in enumerate(texts, 1) if not isinstance(text, str)]:
            raise UsageError(f"text {wrong[0]} is {texts[wrong[0] - 1]!r:.60}: expected a string")
        before = self.settings.prompt() if prompt is None else prompt
        read = [before + text for text in texts]
        if self.settings.lowercase:
            read = [text.lower() for text in read]
        encodings = self.tokenizer.encode_batch(read, max_length=self.settings.max_length)
        asked = np.zeros(1, np.int64)
        units: list[Unit] = [[Example(np.array(e.ids), np.array(e.type_ids), asked, asked, -1)] for e in encodings]
        return units, [encoding.num_truncated for encoding in encodings]

    def raw(self, units: Sequence[Unit]) -> Vectors:
        """float32 [units, dimension], not yet normalised."""
        return vectors_of(self._network, units, self.settings.pooling, self.dimension, self.precision)

    def finish(self, vectors: Vectors) -> Vectors:
        """Of length 1, if that is what the model gives."""
        return normalized(vectors) if self.settings.normalize else vectors

    def save(self, folder: str | Path) -> None:
        """Writes the model as a folder that sentence-transformers opens, and reads as it is read here.

        Raises:
            UsageError: there is something in the way.
            BertworksError: the pooling is none of sentence-transformers.
        """
        target = Path(folder)
        if target.exists() and any(target.iterdir()):
            raise UsageError("the folder is not empty", where=str(target), fix="name another one")
        write_sentence(target, self.settings, self.dimension)
        for path in sorted(self.folder.iterdir()):
            if path.is_file() and not path.name.startswith(".") and not (target / path.name).exists():
                shutil.copyfile(path, target / path.name)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """All that its vectors depend on, save for the text."""
        return {
            "weights_sha256": weights_sha256(self.folder),
            "tokenizer_sha256": self.tokenizer.sha256,
            **asdict(self.settings),
        }


def _network(source: Opened, wanted: Choice) -> tuple[Encoder | Frozen | Exported, InferencePrecision]:
    """What makes the vectors, and what "auto" has become."""
    if source.exported:
        gives = "last_hidden_state", source.config.hidden_size
        return source.session("fp32" if wanted == "auto" else wanted, gives=gives), "fp32"
    encoder = source.network(Encoder, "encoder", prefix="encoder.")
    ready, precision = prepared(encoder, wanted)
    return halved(encoder, ready) if (wanted, precision) == ("auto", "fp32") else ready, precision


def embed(
    model: str | Path,
    texts: Iterable[str],
    *,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    device: str = "auto",
    precision: Choice = "auto",
) -> Vectors:
    """The vectors of texts, float32 [texts, dimension]. For more than one call, `Embedder` loads the model only once.

    Args:
        model, pooling, normalize, precision: see `Embedder`.

    Raises:
        UsageError: one text and no list.
        BertworksError: no such model.
    """
    texts = listed(texts, "embed(model, [text])[0]")  # before the model is loaded
    return Embedder(model, pooling=pooling, normalize=normalize, device=device, precision=precision).embed(texts)


def text_columns(reader: RowReader, wanted: Sequence[str]) -> tuple[str, ...]:
    """The columns that hold the text: those asked for, or a guess.

    Raises:
        UsageError, BertworksError: no such column, or none that looks like text.
    """
    if wanted:
        return tuple(find_column(reader.columns, reader.name, name, "--text") for name in wanted)
    if len(reader.columns) == 1:
        return tuple(reader.columns)
    judged = [row.values for row in itertools.islice(reader, _JUDGED_ROWS)]
    columns = {name: [values.get(name) for values in judged] for name in reader.columns}
    return (choose_column(columns, reader.name, None, "--text"),)


def row_text(row: Row, columns: Sequence[str], empty: Tally) -> str:
    """The text of a row, its columns joined by a space; one without text is counted, and "".

    Raises:
        BertworksError: something else than text stands there.
    """
    parts = [as_text(row.values.get(column)) for column in columns]
    for column, part in zip(columns, parts, strict=True):
        if part is None:
            shown = f"{row.values[column]!r:.60}"
            raise BertworksError(f"{column!r} holds {shown}, which is no text", where=row.where, fix="name another one")
    text = " ".join(part.strip() for part in parts if part and part.strip())
    if not text:
        empty.add(row.where)
    return text


def portions(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """AT_ONCE rows each."""
    source = iter(rows)
    while portion := list(itertools.islice(source, AT_ONCE)):
        yield portion


def vectors_of_file(embedder: Embedder, path: str | Path) -> Iterator[Vectors]:
    """The vectors of a file's texts, in portions; rows without text have none."""
    reader = RowReader(path)
    columns = text_columns(reader, ())
    for rows in portions(reader):
        texts = [row_text(row, columns, Tally()) for row in rows]
        yield embedder.portion([text for text in texts if text])[0]

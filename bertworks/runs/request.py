"""The arguments of a pre-training, as a value: `Request`.

`make_request` checks them, `with_languages` the recipe with them.
"""

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bertworks.checkpoints.hf_mapping import FAMILIES
from bertworks.checkpoints.model_folder import named_weights_sha256
from bertworks.checkpoints.resolve import is_model_name
from bertworks.errors import UsageError, expect, names_of
from bertworks.io.atomic_write import sha256
from bertworks.io.inputs import as_path
from bertworks.io.tables import Data, StoredRows, sources_of
from bertworks.runs.options import PretrainOptions
from bertworks.runs.prepare import read_text
from bertworks.runs.pretrain_job import PretrainJob, Text
from bertworks.runs.run_folder import absolute
from bertworks.text.corpus import CorpusReader, Documents
from bertworks.text.shards import Manifest, Shards, holds_shards
from bertworks.text.translations import Translations, read_translations
from bertworks.training.recipe import Recipe, family_recipe, packaged_recipes

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_WITH_TOKENIZER = "tokenizer", "init", "teacher"  # fields of a request


@dataclass(frozen=True)
class Request(PretrainOptions):
    """The arguments of `pretrain`.

    The same request in the same folder resumes a run, another one is refused.
    """

    inputs: tuple[str | StoredRows, ...]
    _: KW_ONLY
    text_column: str | None = None
    documents: Documents = "auto"
    encoding: str | None = None

    @property
    def is_shards(self) -> bool:
        """Whether the input is a folder of shards, complete or not."""
        return len(self.inputs) == 1 and holds_shards(self.inputs[0])

    def shards_folder(self, output: Path, languages: Sequence[str] = ()) -> Path:
        """The folder of the token ids, existing or not; with languages, of a part of the text."""
        return (
            as_path(self.inputs[0]) if self.is_shards else output / "shards" / "-".join(languages)
        )

    def job(self, recipe: Recipe, shards: Shards, output: Path) -> PretrainJob:
        """What trains the recipe on the shards, which are in the output folder or are the input."""
        names = dict.fromkeys(self.languages) if recipe.encoder.languages else ()
        parts = [(name,) for name in names] + ([self.sides] if self.parallel else [])
        texts = [Text(part, Shards.open(self.shards_folder(output, part))) for part in parts]
        words = self.extend_vocabulary or 0
        return PretrainJob(
            recipe, shards, self.init, new_words=words, texts=texts, teacher=self.teacher
        )

    def content(self) -> dict[str, Any]:
        """Return the request as JSON, with the hashes of its files."""
        content = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value or name not in ("languages", "parallel")
        }
        content["inputs"] = [
            f"rows {sha256(Path(x))}" if isinstance(x, StoredRows) else x for x in self.inputs
        ]
        if (
            self.recipe
            and self.recipe.endswith(".toml")
            and (path := as_path(self.recipe)).is_file()
        ):
            content["recipe_sha256"] = sha256(path)
        if self.teacher:
            content["teacher_sha256"] = named_weights_sha256(str(as_path(self.teacher)))
        if self.is_shards and (manifest := as_path(self.inputs[0]) / "manifest.json").is_file():
            content["shards_sha256"] = Manifest.load(manifest).identity
        return content

    def reader(self) -> CorpusReader:
        """Return the reader of the raw text.

        Standard input is copied to a temporary file, once.

        Raises:
            BertworksError: an input cannot be read.
        """
        return self._read([*self.inputs, *([self._pairs] if self.parallel else [])])

    def parts(self) -> dict[tuple[str, ...], CorpusReader]:
        """Return the readers of the text of each language and of the translations."""
        of_language: dict[tuple[str, ...], list[str | StoredRows]] = {}
        for name, source in zip(self.languages, self.inputs):
            of_language.setdefault((name,), []).append(source)
        if self.parallel:
            of_language[self.sides] = [self._pairs]
        return {names: self._read(inputs) for names, inputs in of_language.items()}

    @property
    def sides(self) -> tuple[str, ...]:
        """Return the languages of the translations.

        They are those in the names of two files, else the only two, in their order.

        Raises:
            UsageError: they are not known.
        """
        names = list(dict.fromkeys(self.languages))
        ends = [
            next((end for end in Path(p).name.split(".")[:0:-1] if end in names), "")
            for p in self.parallel
        ]
        if len({*filter(None, ends)}) == 2:
            return tuple(ends)
        what = f"which of the languages {', '.join(names)} are the two sides of the translations?"
        hint = "name the files after them: pairs.en and pairs.de"
        expect(len(names) == 2 and not any(ends), what, where=self.parallel[0], hint=hint)
        return tuple(names)

    @cached_property
    def translations(self) -> Translations:
        """The pairs of `parallel`."""
        return read_translations(self.parallel)

    @cached_property
    def _pairs(self) -> StoredRows:
        column = self.text_column or "text"
        return StoredRows(
            [{column: side} for pair in self.translations.pairs for side in pair], "translations"
        )

    def _read(self, inputs: Sequence[str | StoredRows]) -> CorpusReader:
        return read_text(inputs, self.text_column, self.documents, self.encoding)


def make_request(inputs: Sequence[str | Path] | Data, **options: Any) -> Request:
    """Return the request with absolute paths.

    Args:
        options: the other fields of `Request`.

    Raises:
        UsageError: contradictory options, or an invalid budget.
    """
    if not (sources := sources_of(inputs)):
        raise UsageError(
            "no input was given",
            hint="name files, folders, a glob in quotes, or - for standard input",
        )
    recipe, budget, *models = (options.get(name) for name in ("recipe", "budget", *_WITH_TOKENIZER))
    both = [name for name, value in zip(_WITH_TOKENIZER, models, strict=True) if value]
    if len(both) > 1:
        what = f"--{both[-1]} takes the tokenizer of the model"
        raise UsageError(what, hint=f"give --{both[0]} or --{both[1]}, not both")
    number = options.get("extend_vocabulary")
    what = f"--extend-vocabulary {number} adds words to the vocabulary of a model: one word or more"
    hint = "give a model and a number: --init MODEL --extend-vocabulary 1000"
    expect(number is None or (number > 0 and options.get("init")), what, hint=hint)
    if budget:
        seconds_of(budget)
    names = names_of(options.get("languages"))
    files = names_of(options.get("parallel"))
    options |= {"languages": names, "parallel": tuple(map(absolute, files))}
    if names or files:
        what = (
            f"{len(sources)} inputs and the languages {', '.join(names) or 'none'}: expected a "
            "name for each input"
        )
        is_good = len(names) == len(sources) and all(
            re.fullmatch(r"\w[\w-]*", name) for name in names
        )
        expect(is_good, what, hint="give --language once per input, such as en, in their order")
        is_text = not any(
            isinstance(source, StoredRows) or str(source) == "-" or holds_shards(source)
            for source in sources
        )
        expect(
            is_text,
            "languages are for files and folders of text",
            hint="write the text into a file",
        )
    for name, value in zip(_WITH_TOKENIZER, models, strict=True):
        if value and (name == "tokenizer" or not is_model_name(value)):
            options[name] = absolute(value)
    if recipe and recipe.endswith(".toml"):
        options["recipe"] = absolute(recipe)
    options["overrides"] = names_of(options.get("overrides"))
    has_size = recipe and (recipe in packaged_recipes() or family_recipe(recipe) is None)
    options["budget"] = budget or (None if has_size else "1h")
    request = Request(
        tuple(source if isinstance(source, StoredRows) else absolute(source) for source in sources),
        **options,
    )
    _ = files and request.sides  # refuses languages that are not known
    return request


def seconds_of(budget: str) -> float:
    """90s, 30m, 2h, 1d, 1h30m -> seconds."""
    words = re.fullmatch(r"(\d+(\.\d+)?[smhd])+", budget.strip().lower(), re.ASCII)
    parts = re.findall(r"([\d.]+)([smhd])", words[0]) if words else []
    total = sum(float(number) * UNITS[unit] for number, unit in parts)
    hint = f"give a time of {SHORTEST} s or more, such as 30m, 2h or 1h30m"
    expect(SHORTEST <= total < 1e9, f"{budget!r} is not a budget", hint=hint)
    return total


SHORTEST = 20  # seconds of a budget: to measure the speed, and to train


def with_languages(recipe: Recipe, request: Request) -> Recipe:
    """Return the recipe with the table of languages of the request.

    Raises:
        UsageError: the family has no such table, the model to continue from lacks a language, or
            the format is of another kind of text.
    """
    c = recipe.encoder
    names = tuple(dict.fromkeys(request.languages))
    sampling = recipe.sampling
    rules = [
        (
            bool(sampling.parallel_rate) == bool(request.parallel),
            f"sampling.parallel_rate is {sampling.parallel_rate}, and there are "
            f"{len(request.parallel)} files of "
            "translations",
            "--recipe xlm-tlm and --parallel belong together, and xlm-mlm without",
        ),
        (
            not names or FAMILIES[c.family].has_languages,
            f"models of the family {c.family} have no table of languages",
            "--recipe xlm-mlm",
        ),
        (
            not c.languages or (names and {*names} <= {*c.languages}),
            f"the model has the languages {', '.join(c.languages)}, the text has "
            f"{', '.join(names) or 'no names of any'}",
            "give --language for each input, one that the model has",
        ),
        (
            sampling.format in ("stream", "full_sentences")
            or not (names or sampling.format == "parallel"),
            f"sampling.format is {sampling.format!r}: it is not for text of several languages",
            "--set sampling.format=stream",
        ),
    ]
    for holds, what, hint in rules:
        expect(holds, what, hint=hint)
    if not c.languages and len(names) > 1:
        c = replace(c, languages=names, type_vocab_size=len(names))
    return replace(recipe, encoder=replace(c, language=""))

"""Raw text or shards -> a pre-trained model, in one call that resumes when it is repeated.

- `Request`: the arguments as a value; another request in the same folder is refused.
  `make_request` checks them, `with_languages` the recipe with them
- `pretrain`: the run, as events; `estimate`: its cost
"""

import json
import math
import re
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from bertworks.batching.batch import StepBatches
from bertworks.batching.sampling import FORMATS
from bertworks.checkpoints.hf_config import (
    FAMILIES,
    can_hold,
    check_lm_head_act,
    check_representable,
    component_names,
    num_parameters,
)
from bertworks.checkpoints.model_card import shape_of
from bertworks.checkpoints.model_files import named_weights_sha256
from bertworks.checkpoints.model_folder import Model, ModelFolder, load_model
from bertworks.checkpoints.resolve import is_model_name, resolve_model
from bertworks.config import add_overrides, dump_recipe, override, parse_overrides
from bertworks.errors import BertworksError, UsageError, expect, names_of, quoted, require
from bertworks.events import Event, JsonObject, duration, forward_events, no_notes
from bertworks.io.atomic_write import local_path, refuse_nested, sha256, write_text
from bertworks.io.inputs import as_path
from bertworks.io.options import Documents, RawText
from bertworks.io.processes import allowed_cpus
from bertworks.io.tables import Data, StoredRows, sources_of
from bertworks.metrics.translation import EXTRA, has_sacrebleu
from bertworks.models.config import EncoderConfig
from bertworks.models.memory import refuse_too_long
from bertworks.runs.loggers import logged, require_loggers
from bertworks.runs.options import PretrainOptions
from bertworks.runs.prepare import extend_tokenizer, make_shards, make_vocabulary, read_text
from bertworks.runs.pretrain_job import PretrainJob, Text, half_of, with_teacher
from bertworks.runs.run_folder import (
    absolute,
    check_same_request,
    compare_bits,
    open_run,
    read_plans,
    training_processes,
    write_plans,
)
from bertworks.runs.training_run import TrainingRun
from bertworks.text.corpus import CorpusReader
from bertworks.text.shards import TARGET_MARK, Manifest, Shards, holds_shards
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.translations import Translations, read_translations
from bertworks.training.budget import (
    GPU_FRACTION,
    Plan,
    Schedule,
    choose_recipe,
    fit_steps,
    measure_steps,
    seconds_of,
)
from bertworks.training.device import (
    DTYPES,
    best_precision,
    choose_device,
    measure_matmul,
    micro_tokens,
    require_memory,
    total_memory,
)
from bertworks.training.objectives import heads_of, num_trained
from bertworks.training.recipe import Recipe, family_recipe, load_recipe, packaged_recipes

CHARACTERS_PER_TOKEN = 4.2  # for estimates before there is a vocabulary
# characters per byte, about
COMPRESSION = {".gz": 2.8, ".zst": 3.0, ".xz": 3.6, ".bz2": 3.6, ".parquet": 2.0}


def estimate_tokens(reader: CorpusReader) -> int:
    """Return the tokens of raw text, estimated from the sizes of its files."""
    size = sum(path.stat().st_size * COMPRESSION.get(path.suffix, 1.0) for path in reader.files)
    return int(size / CHARACTERS_PER_TOKEN)


# Models on the hub with an output layer for masked tokens: English and many languages.
_WITH_HEAD = ("bert-base-uncased", "bert-base-multilingual-cased", "FacebookAI/xlm-roberta-base")
SHORT_BUDGET = 300.0  # seconds; a shorter budget is of the training alone
LEAST_STEPS = 10  # of a training with a budget, however short it is
# Of text, in a second of one process, for the line that says how long the whole takes: shards are
# made at 4.3 MB/s (docs/concepts/performance.md), and a vocabulary takes about as long.
SHARDS_SPEED = 4.3e6
STARTING = 3.0  # seconds in which worker processes start
RESERVE = 0.06  # of a budget, for evaluations, checkpoints and the report
# With fewer steps a new model learns little but how frequent words are, by its initialization
# (docs/experiments, 2026-11-21: initial attention to neighbouring tokens).
USEFUL_STEPS = {"neighbours": 350, "published": 1400, "scaled_residual": 1400, "xavier": 1400}
CHECKPOINTS = 3  # the last two and the best; each has the parameters and two moments


# The recipes by which networks are trained further of which a budget does not choose the rest, by
# their kind; a Transformer is here a translator.
_BY_KIND = {"transformer": "transformer-base", "lstm": "seq2seq", "elmo": "elmo-small"}
_WITH_MEMORY = "transformer-xl-small"  # the same of networks from left to right with a memory
# what is trained besides the model, by its kind
_TRAINED_WITH: dict[str, Literal["second table", "output layer"]] = {
    "static": "second table",
    "elmo": "output layer",
}
_WITH_TOKENIZER = "tokenizer", "init", "teacher"  # fields of a request


@dataclass(frozen=True)
class Request(PretrainOptions, RawText):
    """The arguments of `pretrain`.

    The same request in the same folder resumes a run, another one is refused.
    """

    inputs: tuple[str | StoredRows, ...]

    @property
    def is_translator(self) -> bool:
        """Whether there are pairs of texts alone, from which a translator learns."""
        return bool(self.parallel) and not self.inputs

    @property
    def is_shards(self) -> bool:
        """Whether the input is a folder of shards, complete or not."""
        return len(self.inputs) == 1 and holds_shards(self.inputs[0])

    @property
    def has_short_budget(self) -> bool:
        """Whether the budget is of the training alone, without the vocabulary and the shards."""
        return self.budget is not None and seconds_of(self.budget) < SHORT_BUDGET

    @property
    def has_new_vocabulary(self) -> bool:
        """Whether a vocabulary is trained, and another one could be."""
        return not (self.is_shards or self.tokenizer or self.init or self.teacher)

    def shards_folder(self, output: Path, languages: Sequence[str] = ()) -> Path:
        """The folder of the token ids, existing or not; with languages, of a part of the text."""
        return (
            as_path(self.inputs[0]) if self.is_shards else output / "shards" / "-".join(languages)
        )

    def job(self, recipe: Recipe, shards: Shards, output: Path) -> PretrainJob:
        """What trains the recipe on the shards, which are in the output folder or are the input."""
        names = dict.fromkeys(self.languages) if recipe.encoder.languages else ()
        if self.is_translator:
            texts = [Text((), shards, is_parallel=True)]
        else:
            parts = [(name,) for name in names] + ([self.sides] if self.parallel else [])
            texts = [
                Text(part, Shards.open(self.shards_folder(output, part)), len(part) > 1)
                for part in parts
            ]
        words = self.extend_vocabulary or 0
        return PretrainJob(
            recipe, shards, self.init, new_words=words, texts=texts, teacher=self.teacher
        )

    def content(self) -> JsonObject:
        """Return the request as JSON, with the hashes of its files."""
        text = json.dumps(asdict(self), default=lambda rows: f"rows {sha256(Path(rows))}")
        content: JsonObject = json.loads(text)
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
        expect(
            len(names) == 2 and not any(ends),
            f"which of the languages {', '.join(names)} are the two sides of the translations?",
            where=self.parallel[0],
            hint="name the files after them: pairs.en and pairs.de",
        )
        return tuple(names)

    @cached_property
    def translations(self) -> Translations:
        """The pairs of `parallel`."""
        return read_translations(self.parallel)

    @cached_property
    def _pairs(self) -> StoredRows:
        column = self.text_column or "text"
        mark = ""
        if self.init and self.is_translator:
            tokenizer = Tokenizer.load(ModelFolder(resolve_model(self.init)).within)
            mark = "" if tokenizer.target is tokenizer else TARGET_MARK
        rows = [
            {column: text}
            for source, target in self.translations.pairs
            for text in (source, f"{mark}{target}")
        ]
        return StoredRows(rows, "translations")

    def _read(self, inputs: Sequence[str | StoredRows]) -> CorpusReader:
        return read_text(inputs, self.text_column, self.documents, self.encoding)


def make_request(inputs: Sequence[str | Path] | Data, **options: Any) -> Request:
    """Return the request with absolute paths.

    Args:
        options: the other fields of `Request`.

    Raises:
        UsageError: contradictory options, or an invalid budget.
    """
    for name in ("overrides", "languages", "parallel"):
        options[name] = names_of(options.get(name))
    sources = sources_of(inputs)
    if not sources and not options["parallel"]:
        raise UsageError(
            "no input was given",
            hint="name files, folders, a glob in quotes, or - for standard input; a translator "
            "has --parallel alone",
        )
    request = Request(tuple(sources), **options)
    models = {name: getattr(request, name) for name in _WITH_TOKENIZER if getattr(request, name)}
    if len(models) > 1:
        first, second, *_ = models
        raise UsageError(
            f"--{[*models][-1]} takes the tokenizer of the model",
            hint=f"give --{first} or --{second}, not both",
        )
    number = request.extend_vocabulary
    expect(
        number is None or (number > 0 and request.init),
        f"--extend-vocabulary {number} adds words to the vocabulary of a model: one word or more",
        hint="give a model and a number: --init MODEL --extend-vocabulary 1000",
    )
    if request.budget:
        seconds_of(request.budget)
    names = request.languages
    if names or (request.parallel and sources):
        is_good = len(names) == len(sources) and all(
            re.fullmatch(r"\w[\w-]*", name) for name in names
        )
        expect(
            is_good,
            f"{len(sources)} inputs and the languages {', '.join(names) or 'none'}: expected a "
            "name for each input",
            hint="give --language once per input, such as en, in their order",
        )
        is_text = not any(
            isinstance(source, StoredRows) or str(source) == "-" or holds_shards(source)
            for source in sources
        )
        expect(
            is_text,
            "languages are for files and folders of text",
            hint="write the text into a file",
        )
    paths: dict[str, Any] = {
        name: absolute(value)
        for name, value in models.items()
        if name == "tokenizer" or not is_model_name(value)
    }
    recipe = request.recipe
    if recipe and recipe.endswith(".toml"):
        paths["recipe"] = absolute(recipe)
    has_size = recipe and (recipe in packaged_recipes() or family_recipe(recipe) is None)
    request = replace(
        request,
        inputs=tuple(x if isinstance(x, StoredRows) else absolute(x) for x in sources),
        parallel=tuple(map(absolute, request.parallel)),
        budget=request.budget or (None if has_size else "1h"),
        **paths,
    )
    # refuses languages that are not known
    _ = request.parallel and not request.is_translator and request.sides
    return request


def with_languages(recipe: Recipe, request: Request) -> Recipe:
    """Return the recipe with the table of languages of the request.

    Raises:
        UsageError: the family has no such table, the model to continue from lacks a language, or
            the format is of another kind of text.
    """
    c = recipe.encoder
    names = tuple(dict.fromkeys(request.languages))
    sampling = recipe.sampling
    learns_to_translate = recipe.encoder.decoder is not None
    rules = [
        (
            learns_to_translate or not request.is_translator,
            f"{recipe.title} learns from text, and there are only translations",
            "--recipe transformer-tiny; or name the text, too",
        ),
        (
            not learns_to_translate or request.is_translator,
            f"{recipe.title} is a translator, which learns from pairs of texts alone",
            "leave the inputs out: bertworks pretrain --parallel SOURCE TARGET -o MODEL --recipe "
            "transformer-tiny",
        ),
        (
            learns_to_translate or bool(sampling.parallel_rate) == bool(request.parallel),
            f"sampling.parallel_rate is {sampling.parallel_rate}, and there are "
            f"{len(request.parallel)} files of translations",
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
            learns_to_translate
            or sampling.format in ("stream", "full_sentences")
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


@dataclass(frozen=True)
class Estimate:
    """The cost of a run.

    What only a measurement tells is None without one.
    """

    title: str
    parameters: int  # of the model
    trained: int  # parameters, with those of a generator or of a second table
    memory: int | None  # bytes of the training process
    steps: int | None  # None: as many as fit into a budget
    tokens: int | None
    seconds: float | None
    disk: int  # bytes of the run folder
    tokens_per_second: float | None
    advice: str | None = None  # where the time is too short to learn anything
    # what is trained besides the model
    trained_with: Literal["generator", "second table", "output layer"] = "generator"

    def as_dict(self) -> JsonObject:
        """Return the estimate as values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        trained_only = self.trained - self.parameters
        lines = [f"recipe       {self.title}", f"parameters   {self.parameters:,}"]
        if trained_only:
            lines[-1] += f", and {trained_only:,} of the {self.trained_with}"
        if self.memory is None:
            # parameters, gradients and two moments of Adam in float32
            state = 16 * self.trained / 1e9
            lines.append(
                f"memory       {state:.2f} GB for parameters, gradients and optimizer, and that "
                "of a batch"
            )
        else:
            lines.append(f"memory       {self.memory / 1e9:.1f} GB")
        if self.steps is None:
            lines.append("steps        as many as the budget allows")
        else:
            lines.append(f"steps        {self.steps:,}")
            speed = self.tokens_per_second
            rate = "" if speed is None else f"  ({speed:,.0f} per second on this machine)"
            lines.append(f"tokens       {self.tokens:,}{rate}")
        if self.seconds is None:
            lines.append(
                "time         not measured: --estimate speed computes a few steps on this machine"
            )
        else:
            lines.append(f"time         {duration(self.seconds)} of training")
        lines.append(f"disk         {self.disk / 1e9:.2f} GB in the run folder")
        if self.advice:
            lines.append(self.advice)
        return "\n".join(lines)


def pretrain(
    inputs: Sequence[str | Path] | Data,
    output: str | Path,
    *,
    recipe: str | None = None,
    overrides: str | Iterable[str] = (),
    budget: str | None = None,
    tokenizer: str | None = None,
    init: str | None = None,
    extend_vocabulary: int | None = None,
    teacher: str | None = None,
    precision: str | None = None,
    seed: int | None = None,
    text_column: str | None = None,
    documents: Documents = "auto",
    encoding: str | None = None,
    languages: str | Iterable[str] = (),
    parallel: str | Iterable[str] = (),
    device: str = "auto",
    overwrite: bool = False,
    workers: int | None = None,
    verify: bool = False,
    log_to: str | Iterable[str] = (),
) -> Iterator[Event]:
    """Pre-train a network and yield the events of the run; `output` becomes a model folder.

    The same arguments in the same folder resume a run.

    Args:
        inputs: raw text (files, folders, globs), or one shards folder; or rows in memory, with a
            column of texts: a DataFrame, a dict of columns, a list like [{"text": "..."}].
        recipe: a name or a TOML file; or a family, such as "roberta". overrides:
            `table.field=value` words for it.
        budget: a time such as "30m" or "2h". Without a recipe, or with a family, it decides the
            size and everything that depends on it; with a recipe, only the number of steps. Without
            a size and a budget: one hour.
        tokenizer: a tokenizer folder; None: a vocabulary is trained on the text.
        init: a model to continue from, with its configuration and tokenizer: a folder, or a name on
            the hub. With a recipe that has a decoder an encoder gets a new one of its width (Rothe
            et al. 2020).
        extend_vocabulary: words of the text that are added to that vocabulary
            (`text.vocabulary.extend_vocabulary`).
        teacher: a model with a masked LM head, from which a recipe such as "distilbert" learns: a
            folder, or a name on the hub. The student has its tokenizer, its width and some of its
            layers.
        precision, seed: None: those of the recipe.
        text_column, documents, encoding: of raw text, see `CorpusReader`.
        languages: of the inputs, one for each: the token types of XLM are languages.
        parallel: translations, for a recipe with `sampling.parallel_rate`: a table of two columns,
            or two files of as many lines. Their languages are in the names of the files, or are the
            only two.
        verify: compare the sha256 of every file of the shards first. Without it, a block is checked
            when it is read.
        log_to: libraries that log the figures as well: "tensorboard", "wandb", "mlflow" or
            "trackio". A run may be resumed with others.

    Raises:
        UsageError: the folder belongs to a run with other settings, or the request is
            contradictory.
        BertworksError: a library is not installed, the text cannot be used, the disk is full, or
            the training diverged.
    """
    request = make_request(
        inputs,
        recipe=recipe,
        overrides=overrides,
        budget=budget,
        tokenizer=tokenizer,
        init=init,
        extend_vocabulary=extend_vocabulary,
        teacher=teacher,
        precision=precision,
        seed=seed,
        text_column=text_column,
        documents=documents,
        encoding=encoding,
        languages=languages,
        parallel=parallel,
    )
    loggers = require_loggers(names_of(log_to))
    begin = time.perf_counter()
    output = local_path(output, "output folder")
    where = choose_device(device)
    content = request.content()
    with training_processes(where) as processes, ExitStack() as stack:
        paths = [path for path in request.inputs if isinstance(path, str)]
        refuse_nested(
            output, filter(None, (*paths, request.tokenizer, request.init, request.teacher)), paths
        )
        if processes.first:
            resumes = check_same_request(output, content, overwrite)
            draft = (
                None if resumes and (output / "recipe.toml").exists() else _draft(request, where)
            )
            stack.enter_context(open_run(output, content, overwrite))
            if draft and request.has_short_budget and draft.reader:
                yield _total(request, draft, workers)
            yield from (Event("note", line) for line in (draft.notes if draft else ()))
            shards = yield from _prepare_text(output, request, draft, workers, verify)
            if request.has_short_budget:
                begin = time.perf_counter()
            if draft:
                resolved = _with_vocabulary(
                    draft.recipe, shards.manifest.vocab_size
                ).with_objectives()
                if request.budget:
                    resolved = yield from _fill_budget(
                        resolved, request, shards, output, where, begin, processes.count
                    )
                write_text(output / "recipe.toml", dump_recipe(resolved))
                yield _plan_event(resolved)
        processes.meet(output)
        resolved = load_recipe(str(output / "recipe.toml"))
        processes.refuse_to_share(min(phase.batch_size for phase in resolved.train.phases))
        shards = (
            shards
            if processes.first
            else Shards.open(request.shards_folder(output, request.languages[:1]))
        )
        job = request.job(resolved, shards, output)
        if processes.first and resolved.encoder.decoder is not None and not has_sacrebleu():
            yield Event(
                "note",
                f"evaluations are without BLEU, which needs sacrebleu: pip install {EXTRA}",
            )
        # a schedule knows the time of evaluations, which is a part of the reserve
        if request.budget:
            plans = read_plans(output)
            seconds = seconds_of(request.budget)
            fixed = parse_overrides(request.overrides)
            if _has_room(seconds, plans[0]):  # else the fewest steps stay
                seconds *= 1 - RESERVE / 2
                job.schedule = Schedule(seconds, begin, plans, fixed, job.follow)
        run = TrainingRun(output, job, where, processes)
        done = yield from forward_events(
            logged(run.events(), loggers, output, asdict(resolved), processes.first)
        )
        yield _ending(done, job, output)


def _ending(done: Event, job: PretrainJob, output: Path) -> Event:
    """Return the last event, with the comparison to the initial model and the next command."""
    compared, words = compare_bits(output)
    if job.recipe.encoder.decoder is not None:
        tries = f'translate {quoted(output)} "A text"'
    elif job.recipe.encoder.kind == "static":
        tries = f"evaluate similarity {quoted(output)} PAIRS.txt"
    elif job.recipe.encoder.kind == "elmo":
        tries = f"evaluate probe {quoted(output)} TREEBANK"
    elif job.recipe.token_objective == "causal_lm":
        tries = f'generate {quoted(output)} "This is the"'
    elif "replaced_token" in job.recipe.weights:
        tries = f'explain {quoted(output)} "The chef ate the idea."'
    elif names := job.recipe.encoder.languages:
        folder = quoted(f"{output}-{names[0]}")
        tries = f"convert {quoted(output)} -o {folder} --language {names[0]}"
    else:
        tries = f'fill {quoted(output)} "This is the {job.tokenizer.special_tokens["mask_token"]}."'
    ending = f"see {output / 'report.html'}\nnext: bertworks {tries}"
    text = "\n".join(filter(None, (done.text, words, ending)))
    return replace(done, text=text, fields={**done.fields, "bits_per_character": compared or None})


def estimate(
    inputs: Sequence[str | Path] | Data, *, device: str = "auto", speed: bool = True, **options: Any
) -> Estimate:
    """Return the cost of `pretrain` with the same arguments.

    Args:
        speed: whether memory and time are measured, with a few training steps on random tokens,
            which may take minutes. Without, they are None; with a budget the number of steps is,
            too.
    """
    request = make_request(inputs, **options)
    where = choose_device(device)
    draft = _draft(request, where, starts=False)
    recipe = _with_vocabulary(draft.recipe, draft.vocab_size)
    plan: Plan | None = None
    memory = None
    if speed:
        step_seconds, memory = measure_steps(recipe, where)
        recipe, plan = _plan(recipe, request, step_seconds, 0.0, _least_seconds(step_seconds))
    parameters = num_parameters(recipe.encoder, heads_of(recipe.weights))
    generator = num_trained(recipe) - recipe.encoder.num_parameters(*heads_of(recipe.weights))
    trained = parameters + generator
    ids = 0 if request.is_shards else draft.tokens
    disk = 4 * trained * (3 * CHECKPOINTS + 1) + ids * (
        2 if recipe.encoder.vocab_size <= 1 << 16 else 4
    )
    has_steps = plan is not None or not request.budget
    tokens = recipe.train.num_tokens
    return Estimate(
        recipe.title,
        parameters,
        trained,
        memory,
        recipe.train.num_steps if has_steps else None,
        tokens if has_steps else None,
        plan and plan.seconds,
        disk,
        plan and tokens / plan.seconds,
        ("\n".join(_budget_notes(recipe, request, plan)) if plan else "") or None,
        _TRAINED_WITH.get(recipe.encoder.kind, "generator"),
    )


class _Draft(NamedTuple):
    """The plan before the vocabulary and the shards exist.

    It is the recipe without the size of its vocabulary and, with a budget, without its steps.
    """

    recipe: Recipe
    reader: CorpusReader | None  # None: there are shards
    tokens: int  # of the text, or an estimate
    tokenizer: Tokenizer | None  # None: to be trained
    vocab_size: int  # or its maximum
    shards: Shards | None
    # in words: how plain text is divided into documents, and what the initial model lacks
    notes: Sequence[str]


def _draft(request: Request, device: torch.device, starts: bool = True) -> _Draft:
    """Checks the whole request before any folder is changed. starts: whether a training follows."""
    begin = resolve_model(name) if (name := request.init or request.teacher) else None
    extra = request.extend_vocabulary
    model = load_model(begin, needs={"lm_head"} if request.teacher else ()) if begin else None
    require(
        model is None or model.config.kind != "static",
        "static vectors are not trained further: their folder lacks the second table of the "
        "training, and nothing learns from them",
        begin,
        "train new ones: bertworks pretrain TEXT -o VECTORS --recipe skip-gram",
    )
    reads_spellings = model is not None and model.config.kind == "elmo"
    expect(
        not (reads_spellings and extra),
        "an ELMo reads any word by its spelling, so that its vocabulary cannot be extended",
        hint="leave --extend-vocabulary out",
    )
    extra = extra or 0
    tokenizer = (
        None  # of the words that it predicts: a new one
        if reads_spellings
        else model.tokenizer
        if model
        else Tokenizer.load(request.tokenizer)
        if request.tokenizer
        else None
    )
    if tokenizer is not None and request.tokenizer:
        tokenizer.require_vocabulary()
    reader = None if request.is_shards else request.reader()
    shards = None
    notes: list[str] = []
    if reader:
        tokens = estimate_tokens(reader)
        # lines of translations are no documents
        notes = [] if request.parallel else reader.separations()
    elif extra:
        raise UsageError(
            "--extend-vocabulary chooses words of raw text, and these are shards",
            where=request.inputs[0],
            hint="name the text, or leave --extend-vocabulary out",
        )
    else:
        shards = Shards.open(request.inputs[0])
        tokens = shards.manifest.tokens
        tokenizer_of_shards = shards.tokenizer()
        if tokenizer and tokenizer.sha256 != tokenizer_of_shards.sha256:
            raise BertworksError(
                "these shards were made with another tokenizer",
                where=shards.folder,
                hint="make new ones: bertworks prepare TEXT --tokenizer "
                f"{quoted(request.tokenizer or begin)} -o OTHER",
            )
        tokenizer = tokenizer_of_shards
    vocab_size = tokenizer.vocab_size + extra if tokenizer else 0
    config = model and replace(model.config, vocab_size=max(model.config.vocab_size, vocab_size))
    recipe = with_languages(_recipe(request, device, tokens, config), request)
    if recipe.distils and not request.teacher and starts:
        raise UsageError(
            f"the recipe {request.recipe} learns from a teacher", hint="name it: --teacher MODEL"
        )
    is_elmo = recipe.encoder.kind == "elmo"
    first_input = next(iter([*request.inputs, *request.parallel]), "")
    if is_elmo:
        problem = (
            "learns from words as ELMo reads them, and the tokens of this tokenizer are others"
        )
        options = " --algorithm spelled_words --cased"
    else:
        problem = "does not read spellings, and the tokens of this tokenizer are for ELMo"
        options = ""
    require(
        tokenizer is None or tokenizer.has_spelled_words == is_elmo,
        f"{recipe.title} {problem}",
        request.tokenizer or first_input,
        f"make another one: bertworks vocab TEXT -o TOKENIZER{options}",
    )
    # A copied recipe may have the size that the vocabulary had in the end, below the maximum.
    vocab_size = vocab_size or min(recipe.vocabulary.size, recipe.encoder.vocab_size or 2**40)
    check_representable(recipe.encoder, tokenizer.pad_id if tokenizer else recipe.vocabulary.pad_id)
    if not request.init:  # an existing network keeps its function
        check_lm_head_act(recipe.encoder)
    _check_heads(recipe)
    if recipe.encoder.memory_length:
        lanes = recipe.train.phases[0].batch_size
        length = recipe.encoder.memory_length
        refuse_too_long(recipe.encoder, lanes, length, "--set encoder.memory_length=")
    parameters = num_trained(_with_vocabulary(recipe, vocab_size))
    # parameters, gradients, moments of Adam, all float32
    needed = 16 * parameters
    memory = total_memory(device)
    expect(
        needed <= memory,
        f"a model of {parameters:,} parameters needs more than {needed / 1e9:,.1f} GB of memory "
        f"to train, and this machine has {memory / 1e9:,.1f} GB",
        hint="choose a smaller encoder: fewer layers, or a smaller hidden size",
    )
    length = max(phase.sequence_length for phase in recipe.train.phases)
    checkpointing = recipe.train.gradient_checkpointing
    shorter = "--set train.phases.0.sequence_length=N reads shorter sequences"
    require_memory(
        length,
        length,
        _with_vocabulary(recipe, vocab_size).encoder,
        recipe.train.precision,
        device,
        checkpointing=checkpointing,
        hint=shorter
        if checkpointing
        else f"--set train.gradient_checkpointing=true keeps less; {shorter}",
    )
    # a discriminator has its generator in another folder
    is_masked = recipe.token_objective == "masked_lm" and "replaced_token" not in recipe.weights
    if request.init and model and is_masked:
        notes += _without_head(request.init, model)
    return _Draft(recipe, reader, tokens, tokenizer, vocab_size, shards, notes)


def _without_head(name: str, model: Model) -> list[str]:
    """Return a note if the model from which a pre-training starts predicts no masked tokens.

    Models for vectors and fine-tuned models are like that. name: of the model, as it was typed.
    """
    if "lm_head" in component_names(model.state):
        return []
    return [
        f"warning: {name} has no output layer for masked tokens: the training begins with a random "
        "one, and its first steps change what the encoder has learned. Models that have one: "
        f"{', '.join(_WITH_HEAD)}"
    ]


def _check_heads(recipe: Recipe) -> None:
    """Raises UsageError for objectives with heads that cannot be saved."""
    c = recipe.encoder
    kinds = recipe.weights
    if not can_hold(c, heads_of(kinds)):
        fits = [
            name for name, s in FORMATS.items() if can_hold(c, heads_of(["masked_lm", *s.targets]))
        ]
        raise UsageError(
            f"objectives {', '.join(kinds)}: files of {c.family} have no place for these heads "
            "together",
            hint=f"--set sampling.format={fits[0]}, and no [[objectives]] in the recipe",
        )


def _recipe(
    request: Request, device: torch.device, tokens: int, encoder: EncoderConfig | None
) -> Recipe:
    """Return the recipe of the request, or one for its budget.

    It has a precision and the micro-batches of the device, but not the size of its vocabulary.
    """
    overrides = add_overrides(
        request.overrides, {"train.precision": request.precision, "seed": request.seed}
    )
    encoder, teacher = (None, encoder) if request.teacher else (encoder, None)
    longest = math.inf
    if encoder is not None and encoder.has_query:
        # No weight depends on the memory of an XLNet: the recipe and `overrides` choose it.
        encoder = replace(encoder, memory_length=0)
    is_own_kind = encoder is not None and bool(
        encoder.decoder is not None or encoder.kind == "elmo" or encoder.memory_length
    )
    if encoder is not None and is_own_kind and not request.recipe:
        own_recipe = _WITH_MEMORY if encoder.memory_length else _BY_KIND[encoder.kind]
        request = replace(request, recipe=own_recipe)  # the network stays
        longest = encoder.max_position_embeddings
    try:
        name = request.recipe or (encoder.family if encoder else None)
        family = family_recipe(name) if request.budget else None
        if family and family.distils and not request.recipe:
            family = None  # a student of another training continues without its teacher
        if request.recipe and family is None:
            recipe = load_recipe(str(as_path(request.recipe)), overrides)
            if encoder and recipe.encoder.decoder:
                encoder = _with_decoder(encoder, recipe.encoder)
            elif encoder and encoder.kind == "elmo":  # its folder has no output layer
                encoder = replace(encoder, vocab_size=recipe.encoder.vocab_size)
            elif encoder and encoder.has_query:
                encoder = replace(encoder, memory_length=recipe.encoder.memory_length)
            phases = tuple(
                replace(phase, sequence_length=int(min(phase.sequence_length, longest)))
                for phase in recipe.train.phases
            )
            train = replace(recipe.train, phases=phases)
            recipe = replace(recipe, encoder=encoder or recipe.encoder, train=train)
        else:
            name = parse_overrides(overrides).get("train.precision")
            # The best of the device for "auto", and for what the recipe will refuse.
            matmul = measure_matmul(
                DTYPES[name if name in DTYPES else best_precision(device)], device
            )
            matmul *= GPU_FRACTION if device.type == "cuda" else 1
            begin = half_of(family, teacher) if family and teacher else encoder
            chosen = choose_recipe(seconds_of(str(request.budget)), matmul, tokens, begin, family)
            recipe = override(chosen, overrides)
        if teacher:
            recipe = with_teacher(recipe, teacher, parse_overrides(overrides))
    except ValueError as error:
        raise UsageError(str(error), where=request.init or request.teacher) from error
    train = recipe.train
    precision = train.precision
    if precision == "auto":
        is_transformer = recipe.encoder.kind == "transformer"
        precision = best_precision(device) if is_transformer else "fp32"
    tokens = micro_tokens(train.micro_batch_tokens, recipe.encoder, precision, device)
    return replace(recipe, train=replace(train, precision=precision, micro_batch_tokens=tokens))


def _with_decoder(encoder: EncoderConfig, of_recipe: EncoderConfig) -> EncoderConfig:
    """Return the network of a model to continue from, with the decoder of a recipe if it has none.

    Its family is then one for files with any encoder.
    """
    if encoder.decoder is not None:
        return encoder
    return replace(encoder, decoder=of_recipe.decoder, family="native")


def _prepare_text(
    output: Path, request: Request, draft: _Draft | None, workers: int | None, verify: bool
) -> Generator[Event, None, Shards]:
    """Makes the folders `tokenizer` and `shards` of raw text.

    Returns the shards. draft: None: they were begun.
    """
    # standard input cannot be read twice
    if not (request.is_shards or (draft is None and "-" in request.inputs)):
        reader = (draft and draft.reader) or request.reader()
        folder = output / "tokenizer"
        if draft and request.parallel:
            yield from (Event("note", text) for text in request.translations.notes())
        if draft and draft.tokenizer and request.extend_vocabulary:
            yield Event("stage", "choosing new words", {"stage": "vocabulary"})
            yield from extend_tokenizer(
                reader, folder, draft.tokenizer, request.extend_vocabulary, workers
            )
        elif draft and draft.tokenizer:
            draft.tokenizer.save(folder)
        elif draft and not (folder / "tokenizer.json").exists():
            yield Event("stage", "training the vocabulary", {"stage": "vocabulary"})
            yield from _notes(
                make_vocabulary(
                    reader, folder, draft.recipe.vocabulary, is_part=True, workers=workers
                )
            )
        if draft:
            yield Event("stage", "writing shards", {"stage": "shards"})
        parts = request.parts() if request.languages else {(): reader}
        for names, part in parts.items():
            part_folder = request.shards_folder(output, names)
            shards_events = make_shards(
                part,
                part_folder,
                Tokenizer.load(folder),
                workers=workers,
                is_parallel=request.is_translator or len(names) > 1,
                has_new_vocabulary=request.has_new_vocabulary,
            )
            yield from _notes(shards_events)
            pairs = Manifest.load(part_folder / "manifest.json").documents
            require(
                (len(names) < 2 and not request.is_translator)
                or pairs == 2 * len(request.translations.pairs),
                f"{part_folder}: {pairs:,} sides of translations have tokens: expected two for "
                "each",
                hint="leave out such pairs",
            )
    usual = request.shards_folder(output, request.languages[:1])
    shards = (not verify and draft and draft.shards) or Shards.open(usual, verify=verify)
    return shards


def _plan(
    recipe: Recipe,
    request: Request,
    step_seconds: Sequence[float],
    spent: float,
    least: float = 0.0,
) -> tuple[Recipe, Plan]:
    """Return the recipe with the steps that fit into its budget, if there is one, and their plan.

    Args:
        step_seconds: the time of one step of each phase.
        spent: seconds of the budget.
        least: seconds of training, however little is left of the budget.
    """
    if request.budget:
        left = max(least, seconds_of(request.budget) * (1 - RESERVE) - spent)
        recipe = fit_steps(recipe, left, step_seconds, parse_overrides(request.overrides))
    return recipe, Plan(0, [phase.num_steps for phase in recipe.train.phases], step_seconds, spent)


def _least_seconds(step_seconds: Sequence[float]) -> float:
    """Return the time in which there are LEAST_STEPS, and one of each phase.

    step_seconds: the time of one step of each phase.
    """
    return max(LEAST_STEPS, 2 * len(step_seconds)) * max(step_seconds)


def _has_room(budget: float, plan: Plan) -> bool:
    """Return whether a budget has room for the fewest steps. plan: the first one."""
    return budget * (1 - RESERVE) - plan.spent >= _least_seconds(plan.step_seconds)


def _total(request: Request, draft: _Draft, workers: int | None) -> Event:
    """Return a note on the time of the whole command, of which a short budget is a part."""
    makes_vocabulary = draft.tokenizer is None or bool(request.extend_vocabulary)
    size = draft.tokens * CHARACTERS_PER_TOKEN
    passes = 2 if makes_vocabulary else 1
    seconds = passes * (STARTING + size / SHARDS_SPEED / (workers or len(allowed_cpus())))
    budget = seconds_of(str(request.budget))
    before = "the vocabulary and the shards" if makes_vocabulary else "the shards"
    text = (
        f"about {duration(budget + seconds)} in all: {duration(seconds)} for {before}, then "
        f"{request.budget} of training"
    )
    return Event("note", text, {"estimated_seconds": budget + seconds})


def _fill_budget(
    recipe: Recipe,
    request: Request,
    shards: Shards,
    output: Path,
    device: torch.device,
    begin: float,
    processes: int,
) -> Generator[Event, None, Recipe]:
    """Return the recipe with the steps that fit into the rest of the budget.

    The budget began at `begin`. The plan is recorded in the folder.
    """
    budget = seconds_of(str(request.budget))
    # Measure longer for longer plans: a shared machine is fast and slow in turns.
    seconds = min(30.0, max(3.0, budget / 60))

    def make_batches(timed: Recipe) -> StepBatches:
        return request.job(timed, shards, output).batches(output / "plans", 0, 1, no_notes)

    measured = measure_steps(recipe, device, seconds, make_batches).step_seconds
    now = time.perf_counter()
    spent = now - begin
    step_seconds = [seconds / processes for seconds in measured]
    recipe, plan = _plan(recipe, request, step_seconds, spent, _least_seconds(step_seconds))
    for note in _budget_notes(recipe, request, plan):
        yield Event("note", note)
    write_plans(output, [plan])
    return recipe


def _budget_notes(recipe: Recipe, request: Request, plan: Plan) -> list[str]:
    """Return the notes on a budget that is short for its plan."""
    if not request.budget:
        return []
    notes = []
    left = seconds_of(request.budget) * (1 - RESERVE) - plan.spent
    if plan.seconds > left + max(plan.step_seconds):
        notes.append(
            f"the budget of {request.budget} is short: the {recipe.train.num_steps:,} steps, which "
            f"are the fewest, take about {duration(plan.seconds)}"
        )
    if advice := _advice(recipe, request, plan):
        notes.append(advice)
    return notes


def _advice(recipe: Recipe, request: Request, plan: Plan) -> str | None:
    """Return what to do where the budget is too short for a new model, or None.

    Such a model could not learn anything.
    """
    # Shared layers and discriminators gain less from their initialization.
    is_late = (
        recipe.encoder.num_groups < recipe.encoder.num_hidden_layers
        or "replaced_token" in recipe.weights
    )
    steps = recipe.train.num_steps
    needed = USEFUL_STEPS["published" if is_late else recipe.initialization]
    if request.init or not request.budget or steps >= needed:
        return None
    family = recipe.encoder.family
    smaller = ""
    if request.recipe and request.recipe != family and family_recipe(family) is not None:
        smaller = f"; or --recipe {family}: a smaller model is then chosen for the time"
    elif request.recipe != f"{family}-small" and f"{family}-small" in packaged_recipes():
        smaller = f"; or --recipe {family}-small: a smaller model"
    what = f"this budget allows only {steps:,} steps; expect little beyond word frequencies"
    minutes = math.ceil(plan.seconds * needed / steps / 50)
    return f"{what}. Suggested: --budget {minutes}m ({needed:,} steps){smaller}"


def _with_vocabulary(recipe: Recipe, size: int) -> Recipe:
    """Return the recipe with the vocabulary size of the tokenizer.

    Its own size stays if it is larger (a multiple of 64 is faster); of an ELMo if it is smaller, as
    the other words are then the unknown one.
    """
    vocab_size = recipe.encoder.vocab_size
    if recipe.encoder.kind == "elmo":
        vocab_size = min(vocab_size or size, size)
        size = vocab_size
    expect(
        not vocab_size or vocab_size >= size,
        f"encoder.vocab_size is {vocab_size:,}, but the vocabulary has {size:,} tokens",
        hint="leave it out, and set vocabulary.size",
    )
    return replace(recipe, encoder=replace(recipe.encoder, vocab_size=vocab_size or size))


def _notes(events: Iterator[Event]) -> Iterator[Event]:
    """The events of a stage; its end is a note, because the run continues."""
    for event in events:
        yield replace(event, kind="note") if event.kind == "done" else event


def _plan_event(recipe: Recipe) -> Event:
    c = recipe.encoder
    weights = recipe.weights
    parameters = num_parameters(c, heads_of(weights))
    phases = [
        f"{p.num_steps:,} steps of {p.batch_size} x {p.sequence_length} tokens"
        for p in recipe.train.phases
    ]
    objectives = [kind if weight == 1 else f"{weight:g} {kind}" for kind, weight in weights.items()]
    shape = f"{c.num_hidden_layers} layers, hidden size {c.hidden_size}"
    if c.kind in ("static", "elmo"):
        shape = shape_of(c)
    text = (
        f"{recipe.title}: {shape}, vocabulary {c.vocab_size:,}, {parameters / 1e6:.1f} M "
        f"parameters, {recipe.train.precision}; "
        f"{' + '.join(objectives)}; {', then '.join(phases)}"
    )
    return Event("plan", text, {"recipe": asdict(recipe)})

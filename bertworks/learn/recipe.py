"""A recipe is a TOML file; a recipe in memory is a frozen dataclass. Unknown names, wrong types and missing values are
errors that say where and suggest a name; nothing is guessed. Not here: what the values do."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from functools import partial
from importlib import resources
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from bertworks.data.masking import MaskingConfig
from bertworks.data.sampling import SamplingConfig
from bertworks.errors import UsageError
from bertworks.learn.optimization import OptimizerConfig
from bertworks.nn.config import EncoderConfig
from bertworks.text.vocabulary import VocabularyConfig

T = TypeVar("T")

HELD_OUT_LENGTH = 128


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of a run: so many steps of `batch_size` sequences of at most `sequence_length` tokens. The original
    trains 9 of 10 steps at length 128 and the rest at 512 (Devlin et al. 2019, appendix A.2)."""

    num_steps: int
    batch_size: int
    sequence_length: int = 128

    def __post_init__(self) -> None:
        if min(self.num_steps, self.batch_size) < 1:
            raise ValueError("num_steps and batch_size: expected 1 or more")
        if self.sequence_length < 5:
            raise ValueError(f"sequence_length is {self.sequence_length}: [CLS] A [SEP] B [SEP] needs at least 5")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """phases: one after the other, under one learning-rate schedule.
    micro_batch_tokens: at most so many tokens are computed at once; a larger batch is accumulated. The numbers are the
    same.
    held_out_sequences: of 128 tokens, and about as many tokens in sequences of the greatest length.
    evaluate_every, save_every: in steps; 0: some twenty times in a run, and every few minutes.
    """

    phases: tuple[Phase, ...]
    micro_batch_tokens: int = 8192
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    gradient_checkpointing: bool = False
    held_out_sequences: int = 256
    evaluate_every: int = 0
    save_every: int = 0

    def __post_init__(self) -> None:
        if min(self.micro_batch_tokens, self.held_out_sequences) < 1:
            raise ValueError("micro_batch_tokens and held_out_sequences: expected 1 or more")
        if min(self.evaluate_every, self.save_every) < 0:
            raise ValueError("evaluate_every and save_every: expected a number of steps, or 0")

    @property
    def num_steps(self) -> int:
        return sum(phase.num_steps for phase in self.phases)

    @property
    def sequence_length(self) -> int:
        """The longest of all phases."""
        return max(phase.sequence_length for phase in self.phases)

    @property
    def held_out_length(self) -> int:
        """Of most held-out sequences: the same for runs of all plans, so that their figures compare."""
        return min(HELD_OUT_LENGTH, self.sequence_length)

    @property
    def num_tokens(self) -> int:
        """At most: short sequences have fewer."""
        return sum(p.num_steps * p.batch_size * p.sequence_length for p in self.phases)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole pre-training: everything that decides the numbers, except the text.

    initialization: "published": everything at random; "neighbours": the first layer begins by looking at the words
    around (`nn.initialization`), which small budgets could not learn in their time, and the table of positions is not
    trained.
    """

    title: str
    train: TrainConfig
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    initialization: Literal["published", "neighbours"] = "published"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.train.phases:
            raise ValueError("train.phases is empty: expected at least one phase")
        if self.train.sequence_length > self.encoder.max_position_embeddings:
            raise ValueError(
                f"train.phases ask for {self.train.sequence_length} tokens, but encoder.max_position_embeddings is "
                f"{self.encoder.max_position_embeddings}"
            )
        if self.sampling.pairs == "next_sentence" and self.encoder.type_vocab_size < 2:
            raise ValueError(
                f"encoder.type_vocab_size is {self.encoder.type_vocab_size}, and a pair needs two: expected "
                "sampling.pairs=full_sentences beside it"
            )
        if not self.encoder.initializer_range > 0:
            raise ValueError(f"encoder.initializer_range is {self.encoder.initializer_range}: expected more than 0")
        if not self.optimizer.learning_rate:
            raise ValueError("optimizer.learning_rate is 0: expected the rate, which a pre-training does not choose")
        if not 0 <= self.seed < 1 << 32:
            raise ValueError(f"seed is {self.seed}: expected a whole number from 0 to {(1 << 32) - 1:,}")


def names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(p.name.removesuffix(".toml") for p in _folder().iterdir() if p.name.endswith(".toml"))


def load(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a TOML file, or of a name, with the `table.field=value` words of the command line put in.

    Raises:
        UsageError: no such recipe; unknown field, wrong type, missing or refused value: with its path.
    """
    text = text_of(name, "recipe", names(), lambda: (_folder() / f"{name}.toml").read_text(encoding="utf-8"))
    return parse(text, name, overrides)


def text_of(name: str, what: str, known: Sequence[str], of_known: Callable[[], str]) -> str:
    """The TOML text of a file, or of a name that is known. what: it is called in messages.

    Raises:
        UsageError: no such file or name; a file that is no text.
    """
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise UsageError(f"there is no recipe file {name}", fix=f"name one of {', '.join(known)}, or a file")
        try:
            return Path(name).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UsageError("this is not a text in UTF-8", where=name, fix="save it as UTF-8") from error
    if name not in known:
        near = get_close_matches(name, known, 1)
        fix = f"did you mean {near[0]}?" if near else f"name one of {', '.join(known)}, or a .toml file"
        raise UsageError(f"there is no {what} called {name!r}", fix=fix)
    return of_known()


def parse(text: str, where: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe that a TOML text describes. `where` is its name in errors."""
    return parse_as(Recipe, text, where, overrides)


def parse_as(kind: type[T], text: str, where: str, overrides: Sequence[str] = ()) -> T:
    """The same for recipes of any kind, which are dataclasses of values and of other dataclasses."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"this is not TOML: {error}", where=where) from error
    for word in overrides:
        _put(table, word)
    return build(kind, table, partial(_place, text, where))


def replaced(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """The recipe with the `table.field=value` words put in."""
    return parse(dump(recipe), recipe.title, overrides) if overrides else recipe


def dump(recipe: Any) -> str:
    """A recipe as TOML; reading it gives the same recipe."""
    lines: list[str] = []
    tables: list[tuple[str, Mapping[str, Any]]] = []
    for name, value in asdict(recipe).items():
        if isinstance(value, dict):
            tables.append((name, value))
        else:
            lines.append(f"{name} = {_toml(value)}")
    for name, table in tables:
        lines += ["", f"[{name}]"]
        phases = table.get("phases", ())
        lines += [f"{k} = {_toml(v)}" for k, v in table.items() if k != "phases" and v is not None]
        for phase in phases:
            lines += ["", f"[[{name}.phases]]", *(f"{k} = {_toml(v)}" for k, v in phase.items())]
    return "\n".join(lines) + "\n"


def _folder() -> Any:
    return resources.files("bertworks") / "recipes"


def _put(table: dict[str, Any], word: str) -> None:
    name, equals, text = word.partition("=")
    if not equals or not name:
        raise UsageError(
            f"{word!r} sets nothing", fix="write it as table.field=value, as in optimizer.learning_rate=1e-3"
        )
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    *path, last = name.split(".")
    place: Any = table
    for key in path:
        place = _inside(place, key, name)
    if isinstance(place, list) and last.isdigit() and int(last) < len(place):
        place[int(last)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise UsageError(f"{name}: {last!r} is not inside a table")


def _inside(place: Any, key: str, name: str) -> Any:
    """What stands at `key` of a table or a list; a table that is not there yet is made."""
    if isinstance(place, list) and key.isdigit() and int(key) < len(place):
        return place[int(key)]
    if isinstance(place, dict):
        return place.setdefault(key, {})
    raise UsageError(f"{name}: there is no {key!r}")


def _place(text: str, name: str, at: str) -> str:
    """`name:line` of the field `at` (as in train.phases[1].num_steps), or `name` alone if it is not in the text."""
    table, counts = "", Counter[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*(\[\[?)\s*([\w.]+)", line):
            table = header[2]
            if header[1] == "[[":
                table += f"[{counts[header[2]]}]"
                counts[header[2]] += 1
            if at == table:
                return f"{name}:{number}"
        elif (field_name := re.match(r"\s*([\w.]+)\s*=", line)) and at in (
            f"{table}.{field_name[1]}".lstrip("."),
            f"{table}.{field_name[1]}[0]".lstrip("."),
        ):
            return f"{name}:{number}"
    return name


def build(kind: type[T], value: Any, where: Callable[[str], str], at: str = "") -> T:
    """`value` as a `kind`, or a UsageError that names its path `at`; `where` tells the file and line of a path."""
    origin, choices = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return cast(T, _build_dataclass(kind, value, where, at))
    if origin is Literal:
        if value not in choices:
            raise UsageError(f"{at}: {value!r} is none of {', '.join(map(repr, choices))}", where=where(at))
        return cast(T, value)
    if origin in (Union, UnionType):  # `X | None`; TOML has no null, so a value is an X
        return build(next(c for c in choices if c is not NoneType), value, where, at)  # type: ignore[no-any-return]
    if origin is tuple and isinstance(value, list):
        return cast(T, tuple(build(choices[0], v, where, f"{at}[{i}]") for i, v in enumerate(value)))
    if kind is float and type(value) is int:
        return cast(T, float(value))
    if origin is tuple or type(value) is not kind:
        name = "a list" if origin is tuple else getattr(kind, "__name__", kind)
        raise UsageError(f"{at}: expected {name}, got {value!r}", where=where(at))
    return value


def _build_dataclass(kind: Any, value: Any, where: Callable[[str], str], at: str) -> Any:
    if not isinstance(value, dict):
        raise UsageError(f"{at or 'recipe'}: expected a table, got {value!r}", where=where(at))
    hints, prefix = get_type_hints(kind), at and at + "."
    for name in value.keys() - hints.keys():
        near = get_close_matches(name, hints, 1)
        fix = f"did you mean {prefix}{near[0]}?" if near else f"the fields are {', '.join(sorted(hints))}"
        raise UsageError(f"{prefix}{name}: no such field", where=where(prefix + name), fix=fix)
    for f in fields(kind):
        if f.name not in value and f.default is MISSING and f.default_factory is MISSING:
            raise UsageError(f"{prefix}{f.name}: must be given", where=where(at))
    parts = {name: build(hints[name], part, where, prefix + name) for name, part in value.items()}
    try:
        return kind(**parts)
    except (ValueError, UsageError) as error:  # what the dataclass itself refuses
        what, remedy = (error.what, error.fix) if isinstance(error, UsageError) else (str(error), None)
        raise UsageError(f"{at + ': ' if at else ''}{what}", where=where(at), fix=remedy) from error


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace(
                "\x7f", "\\u007f"
            )  # TOML escapes as JSON does, and DEL
        case list() | tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case float():
            return repr(value) if "." in repr(value) or "e" in repr(value) or "inf" in repr(value) else f"{value!r}.0"
        case _:
            return str(value)

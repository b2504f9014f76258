"""Parameters and settings under the names of Hugging Face and Google: the engine that reads the tables of `families` in
both directions.

It imports no library of theirs, opens no file and builds no network. Everything that is read is checked against the
configuration first: a name, a shape or a size that does not fit is an error.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from bertworks.checkpoints.families import bert, distilbert, gpt2, roberta
from bertworks.checkpoints.families.family import GELUS, Family, Row
from bertworks.errors import BertworksError
from bertworks.models.config import LIMITS, EncoderConfig

_FAMILIES: list[Family] = [module.FAMILY for module in (bert, roberta, distilbert, gpt2)]
FAMILIES = {family.model_type: family for family in _FAMILIES}
# transformers has no such network: this part has our names. Its sizes are its own, and so is the classifier's input.
_RECURRENT: list[Row] = [
    (name, [name], axes)
    for layer in range(2)
    for direction in ("", "_reverse")
    for source in ("ih", "hh")
    for kind, axes in (("weight", "A A"), ("bias", "A"))
    for name in [f"recurrent.lstm.{kind}_{source}_l{layer}{direction}"]
]
OWN_TYPE = "bertworks"  # the model_type of networks that transformers does not have: it refuses them
UNUSED_POSITIONS = "encoder.embeddings.unused_positions.weight"  # rows in front of a position table, kept as they were
_OLD_NAMES = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}
_OUTPUTS = {  # layers whose name at Google's ends in output_weights and output_bias: what precedes it
    "cls.predictions": "cls/predictions/",
    "cls.seq_relationship": "cls/seq_relationship/",
    "classifier": "",
    "qa_outputs": "cls/squad/",
}
_OPTIMIZER = re.compile(r"(.+/)?(adam_m|adam_v|Adam|Adam_1|beta[12]_power|global_step)")  # its variables at Google's
_NOT_KEPT = {  # settings that concern other files than ours, or make transformers run a program
    "auto_map", "custom_pipelines", "quantization_config", "transformers_version", "torch_dtype", "_name_or_path",
}  # fmt: skip
_OF_LABELS = {"id2label", "label2id", "num_labels", "_num_labels", "problem_type"}


@dataclass(frozen=True)
class _Parameter:
    ours: str
    theirs: list[str]
    shape: tuple[int | None, ...]  # of each of theirs, after transposing; None: any
    is_transposed: bool = False
    is_positions: bool = False  # a position table with unused rows in front

    @property
    def component(self) -> str:
        return self.ours.split(".", 1)[0]

    def fits(self, shape: Iterable[int], parts: int) -> bool:
        """Whether a tensor of this shape may hold `parts` of theirs, joined along the first axis."""
        sizes = list(shape)
        expected = [size if size is None or axis else size * parts for axis, size in enumerate(self.shape)]
        return len(sizes) == len(expected) and all(e in (None, s) for e, s in zip(expected, sizes))


def component_names(state: Iterable[str]) -> frozenset[str]:
    """The components of a state of ours, of: encoder, pooler, lm_head, next_sentence, classifier, span, recurrent."""
    return frozenset(name.split(".", 1)[0] for name in state)


def components_in_file(theirs: Iterable[str], family: str = "bert") -> frozenset[str]:
    """The components, as in `component_names`, that a file with these names has something of."""
    f = FAMILIES[family]
    bare = {name.removeprefix(f.prefix) for name in theirs}
    rows = [*f.table, *_RECURRENT, *(row for rows in f.by_class.values() for row in rows)]
    return component_names(
        ours
        for ours, names, _ in rows
        for name in names
        for end in ("weight", "bias")
        if name.replace("*", end) in bare
    )


def architecture_of(state: Iterable[str], family: str = "bert") -> str:
    """The class of transformers for a pre-trained state. KeyError for the heads of fine-tuning, which need labels."""
    f = FAMILIES[family]
    return f.pretraining[component_names(state) - {"encoder", "pooler"} | f.implied_heads]


def to_huggingface(
    state: Mapping[str, Tensor], config: EncoderConfig, architecture: str | None = None
) -> dict[str, Tensor]:
    """Our parameters under their names: the names and shapes that their own class for these components saves.

    Tied copies are left out and the body has a prefix only next to a head, as in their files. Tensors are views.

    Args:
        architecture: their class; None: that of a pre-trained state.

    Raises:
        BertworksError: a name has no place there, a shape does not fit, or a component is incomplete.
    """
    family = FAMILIES[config.family]
    head = component_names(state) - {"encoder", "pooler"} | family.implied_heads
    theirs: dict[str, Tensor] = {}
    table = _parameters(config, state, architecture)
    _refuse_unknown(set(state) - {parameter.ours for parameter in table} - {UNUSED_POSITIONS}, None)
    for parameter in table:
        if parameter.ours in state:
            value = state[parameter.ours]
            _check_shape(parameter, parameter.ours, value, None, parts=len(parameter.theirs))
            if parameter.is_positions:
                unused = state.get(UNUSED_POSITIONS, value.new_zeros(family.unused_positions, value.shape[1]))
                value = torch.cat([unused, value])
            value = value.t() if parameter.is_transposed else value
            for name, piece in zip(parameter.theirs, value.chunk(len(parameter.theirs))):
                theirs[family.prefix + name if head and name.startswith(family.body) else name] = piece
    begun = component_names(state) | {"encoder"}
    _refuse_missing([p.ours for p in table if p.component in begun and p.ours not in state], None)
    return theirs


def from_huggingface(
    state: Mapping[str, Tensor], config: EncoderConfig, *, where: str | None = None
) -> dict[str, Tensor]:
    """Their parameters under our names, from a file of the body alone or with any head. What it has: `component_names`.

    The body must be complete and every head whole or absent. Tied copies must be equal to their original.

    Args:
        where: the file, for messages.

    Raises:
        BertworksError: unknown names (listed), a wrong shape, a component incomplete (what is missing is listed).
    """
    family = FAMILIES[config.family]
    theirs = _untied(_renamed(state, family, where), family, where)
    ours: dict[str, Tensor] = {}
    classes = [name for name, rows in family.by_class.items() if all(_is_in(row, theirs) for row in rows)]
    table = _parameters(config, theirs, classes[0] if classes else None)
    _refuse_unknown(theirs.keys() - {name for parameter in table for name in parameter.theirs}, where)
    begun = {p.component for p in table if not theirs.keys().isdisjoint(p.theirs)} | {"encoder"}
    wanted = [parameter for parameter in table if parameter.component in begun]
    _refuse_missing([name for parameter in wanted for name in parameter.theirs if name not in theirs], where)
    for parameter in wanted:
        pieces = [theirs[name].t() if parameter.is_transposed else theirs[name] for name in parameter.theirs]
        if parameter.is_positions and pieces[0].dim() == 2:
            ours[UNUSED_POSITIONS], pieces[0] = pieces[0].tensor_split([family.unused_positions])
        for name, piece in zip(parameter.theirs, pieces):
            _check_shape(parameter, name, piece, where)
        ours[parameter.ours] = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    return ours


def redundant_tensors(names: Collection[str], family: str = "bert") -> list[str]:
    """Which of the names in a file `from_huggingface` does not need: buffers, and copies of what is there as well."""
    f = FAMILIES[family]
    bare = {name.removeprefix(f.prefix): name for name in names}
    return sorted(name for short, name in bare.items() if _is_buffer(short, f) or f.tied.get(short) in bare)


def names_of_google(config: EncoderConfig) -> dict[str, str]:
    """What Google's code calls the variables of a BERT: their name, and the one in Hugging Face's files.

    A variable that is called `kernel` is the transposed matrix.
    """
    family = FAMILIES["bert"]
    theirs = [name for p in _parameters(config, []) if p.component != "recurrent" for name in p.theirs]
    names = {}
    for name in theirs:
        stem, _, end = name.rpartition(".")
        if stem in _OUTPUTS:
            names[f"{_OUTPUTS[stem]}output_{'weights' if end == 'weight' else end}"] = name
            continue
        stem = f"{family.prefix if name.startswith(family.body) else ''}{stem}".replace("layer.", "layer_").replace(
            ".", "/"
        )
        if stem.endswith("LayerNorm"):
            end = {"weight": "gamma", "bias": "beta"}[end]
        elif end == "weight":
            end = "" if stem.endswith("_embeddings") else "kernel"
        names[f"{stem}/{end}".rstrip("/")] = name
    return names


def is_of_optimizer(name: str) -> bool:
    """Whether a variable of Google's is the state of a training, and no parameter."""
    return _OPTIMIZER.fullmatch(name) is not None


def check_representable(config: EncoderConfig, pad_token_id: int) -> None:
    """Raises BertworksError for a network that the files of its family cannot describe, which transformers would read
    as another one. pad_token_id: of its tokenizer; RoBERTa counts positions from it."""
    family = FAMILIES.get(config.family)
    if family is None:
        raise BertworksError(f"family is {config.family!r}: expected one of {', '.join(FAMILIES)}")
    fixed = {f.name: f.default for f in fields(config) if f.name not in ("hidden_act", "family", *family.settings)}
    for name, value in (fixed | dict(family.fixed)).items():
        if getattr(config, name) != value:
            raise BertworksError(
                f"encoder.{name} is {getattr(config, name)!r}: files of {family.model_type} can only hold {value!r}",
                hint=f"--set encoder.{name}={json.dumps(value)}",
            )
    if family.unused_positions and pad_token_id != family.unused_positions - 1:
        raise BertworksError(
            f"the padding token has id {pad_token_id}: in {family.model_type} positions are counted from it, so it "
            f"must be {family.unused_positions - 1}",
            hint=f"use the tokenizer of a {family.model_type} model: --tokenizer FOLDER",
        )


def config_to_huggingface(
    config: EncoderConfig, *, architectures: Collection[str], pad_token_id: int = 0
) -> dict[str, Any]:
    """The content of config.json, every field written, with real types.

    Args:
        architectures: their class that the saved parameters are of, such as `BertForPreTraining`.
        pad_token_id: of the tokenizer that is saved in the same folder.

    Raises:
        BertworksError: see `check_representable`; a padding token from which positions would be counted otherwise.
    """
    check_representable(config, pad_token_id)
    family = FAMILIES[config.family]
    settings = {theirs: getattr(config, ours) for ours, (theirs, _) in family.settings.items()}
    activations = {ours: theirs for theirs, ours in reversed(GELUS.items())}
    settings |= {family.settings["intermediate_size"][0]: config.ffn_size}
    settings |= {
        family.settings["max_position_embeddings"][0]: config.max_position_embeddings + family.unused_positions
    }
    settings |= {family.activation: activations[config.hidden_act]}
    settings |= {name: value for name, value in family.required.items() if name != "position_embedding_type"}
    settings |= {"model_type": family.model_type, "architectures": list(architectures), "pad_token_id": pad_token_id}
    settings |= {theirs: getattr(config, ours) for theirs, ours in family.copied.items()}
    return dict(sorted({**settings, **family.written}.items()))


def config_from_huggingface(settings: Mapping[str, Any], *, where: str | None = None) -> EncoderConfig:
    """The encoder that a config.json describes. Keys that do not concern an encoder are ignored.

    Args:
        where: the file, for messages.

    Raises:
        BertworksError: an unknown family, or a network that is not computed here; a value of the wrong type or an
            absurd size.
    """
    kind = _kind(settings) if isinstance(settings, Mapping) else None
    if kind not in FAMILIES and kind != OWN_TYPE:
        there = f"model_type is {_shown(kind)}" if kind is not None else "there is no model_type"
        raise BertworksError(
            f"{there}: expected one of {', '.join(FAMILIES)}",
            where=where,
            hint='choose a folder whose config.json has such a "model_type" (for files of Google add "bert")',
        )
    family = FAMILIES["bert" if kind == OWN_TYPE else str(kind)]
    for name, value in family.required.items():
        if settings.get(name, value) != value:
            raise BertworksError(
                f"{name} is {_shown(settings[name])}: only {_shown(value)} is supported for {family.model_type}",
                where=where,
            )
    if family.unused_positions and settings.get("pad_token_id", 1) != family.unused_positions - 1:
        raise BertworksError(
            f"pad_token_id is {_shown(settings['pad_token_id'])}: positions of {family.model_type} start from it, "
            f"and only {family.unused_positions - 1} is supported",
            where=where,
        )
    values: dict[str, Any] = dict(family.fixed)
    for ours, (theirs, default) in family.settings.items():
        value = settings.get(theirs, default)
        if ours == "intermediate_size" and value is None:
            continue
        kind_of = int if default is None else type(default)
        values[ours] = _number(value, theirs, kind_of, where, LIMITS.get(ours, 0))
    values["max_position_embeddings"] -= family.unused_positions
    activation = settings.get(family.activation, family.default_activation)
    if not isinstance(activation, str) or activation not in GELUS:
        known = ", ".join(GELUS)
        raise BertworksError(f"{family.activation} is {_shown(activation)}: expected one of {known}", where=where)
    try:
        return EncoderConfig(family=family.model_type, hidden_act=GELUS[activation], **values)  # type: ignore[arg-type]
    except ValueError as error:
        raise BertworksError(str(error), where=where, hint="correct the file, or get it again") from error


def settings_to_keep(settings: Mapping[str, Any], *, head: bool) -> tuple[dict[str, Any], list[str]]:
    """What a config.json says beyond what an EncoderConfig and a head do, to be written again; and the names of what is
    left out. head: whether there is one whose labels are given elsewhere."""
    family = FAMILIES.get(str(_kind(settings)), FAMILIES["bert"])
    ours = {theirs for theirs, _ in family.settings.values()} | {family.activation, "model_type", "architectures"}
    ours |= {"pad_token_id", "is_decoder", "add_cross_attention", "tie_word_embeddings", "dtype"} | _OF_LABELS
    kept = {name: value for name, value in settings.items() if name not in ours | _NOT_KEPT}
    return kept, sorted((_NOT_KEPT | (set() if head else _OF_LABELS)) & settings.keys())


def _kind(settings: Mapping[str, Any]) -> Any:
    """The model_type. The first versions did not write it, but some wrote the name of the class."""
    named = settings.get("architectures")
    old = isinstance(named, list) and all(re.match("Bert(For|Model)", str(name)) for name in named) and named
    return settings.get("model_type", "bert" if old else None)


def _is_in(row: Row, names: Collection[str]) -> bool:
    return all(name.replace("*", "weight") in names for name in row[1])


def _is_buffer(name: str, family: Family) -> bool:
    return re.sub(r"\.\d+\.", ".#.", f".{name}").removeprefix(".") in family.buffers


def _number(value: object, name: str, kind: type, where: str | None, limit: int) -> int | float:
    if kind is int and type(value) is int and 1 <= value <= limit:
        return value
    if kind is float and isinstance(value, int | float) and type(value) is not bool and 0 <= value <= 1:
        return float(value)
    expected = f"a whole number from 1 to {limit:,}" if kind is int else "a number from 0 to 1"
    raise BertworksError(
        f"{name} is {_shown(value)}: expected {expected}", where=where, hint="correct the file, or get it again"
    )


def _shown(value: object) -> str:
    """A value from a file as it may stand in a message: never long."""
    if isinstance(value, str | bool | float | None) or (type(value) is int and abs(value) < 10**20):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return "an enormous number" if isinstance(value, int) else f"a {type(value).__name__}"


def _parameters(config: EncoderConfig, state: Collection[str], architecture: str | None = None) -> list[_Parameter]:
    """The table with its signs replaced: one entry for each of our parameters. state: the names that there are."""
    family, hidden = FAMILIES[config.family], config.hidden_size
    sizes: dict[str, int | None] = {"V": config.vocab_size, "H": hidden, "I": config.ffn_size, "Q": 3 * hidden}
    sizes |= {"P": config.max_position_embeddings, "T": config.type_vocab_size, "E": config.embedding_width}
    sizes |= {"2": 2, "L": None, "A": None}
    sizes["C"] = None if "recurrent" in component_names(state) else hidden
    replaced = family.by_class.get(architecture or "", [])
    rows = [row for row in family.table if row[0] not in {ours for ours, _, _ in replaced}]
    entries = []
    for ours, theirs, axes in (*rows, *replaced, *_RECURRENT):
        shape = tuple(sizes[axis] for axis in axes.split())
        for number in map(str, range(config.num_hidden_layers)) if "#" in ours else [""]:
            for end in ("weight", "bias") if "*" in ours else [""]:
                names = [name.replace("#", number).replace("*", end) for name in (ours, *theirs)]
                entries.append(
                    _Parameter(
                        names[0],
                        names[1:],
                        shape[:1] if end == "bias" else shape,
                        names[0].endswith(family.transposed or ("\0",)),
                        bool(family.unused_positions) and ours.endswith("embeddings.position.weight"),
                    )
                )
    return entries


def _renamed(state: Mapping[str, Tensor], family: Family, where: str | None) -> dict[str, Tensor]:
    """Without the prefix, without buffers, and with today's names."""
    renamed: dict[str, Tensor] = {}
    for name, value in state.items():
        new = name.removeprefix(family.prefix)
        for old, today in _OLD_NAMES.items():
            new = new.removesuffix(old) + today if new.endswith(old) else new
        if new in renamed:
            raise BertworksError(f"two tensors are both {new}: {name} is one of them", where=where)
        if not _is_buffer(new, family):
            renamed[new] = value
    return renamed


def _untied(theirs: dict[str, Tensor], family: Family, where: str | None) -> dict[str, Tensor]:
    """Without the copies of tied parameters; an original that is missing is taken from its copy."""
    for copy, original in family.tied.items():
        if copy in theirs and not _equal(theirs[copy], theirs.setdefault(original, theirs[copy])):
            raise BertworksError(
                f"{copy} differs from {original}: only models whose logits are tied to the embeddings are supported",
                where=where,
            )
    return {name: value for name, value in theirs.items() if name not in family.tied}


def _equal(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and first.shape == second.shape and torch.equal(first, second)


def _check_shape(parameter: _Parameter, name: str, value: Tensor, where: str | None, parts: int = 1) -> None:
    if not parameter.fits(value.shape, parts) or not value.is_floating_point():
        axes = ["any" if size is None else str(size * parts if not axis else size)
                for axis, size in enumerate(parameter.shape)]  # fmt: skip
        raise BertworksError(
            f"{name} is {value.dtype} {list(value.shape)}, but the configuration asks for floating-point "
            f"numbers of the shape [{', '.join(axes)}]",
            where=where,
            hint="use the config.json that was saved with these weights",
        )


def _refuse_unknown(names: Collection[str], where: str | None) -> None:
    if names:
        raise BertworksError(
            f"{_listed(names)}: no place for this in a BERT of this configuration",
            where=where,
            hint="use the config.json that was saved with these weights; other networks than BERT cannot be read",
        )


def _refuse_missing(names: Collection[str], where: str | None) -> None:
    if names:
        raise BertworksError(
            f"incomplete: {_listed(names)} missing",
            where=where,
            hint="the file was cut, or is not a whole model: get it again",
        )


def _listed(names: Collection[str]) -> str:
    first = [name if len(name) <= 120 else f"{name[:117]}..." for name in sorted(names)[:8]]
    return ", ".join(first) + (f" and {len(names) - 8} more" if len(names) > 8 else "")

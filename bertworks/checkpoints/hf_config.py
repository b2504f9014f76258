"""Read and write the settings of a network as config.json of Hugging Face. No torch.

- `Family`: what a family is: names of parameters, settings of config.json, classes, oddities. Each
  has a TOML file in families/; `FAMILIES` has all of them
- `config_from_huggingface`, `config_to_huggingface`: config.json <-> `EncoderConfig`
- `check_representable`, `can_hold`: whether the files of a family can describe a network
- `component_names`, `architecture_of`: what a state has, and its class

It imports no library of theirs and opens no file but its tables. `hf_mapping` translates the
parameters.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from bertworks.config import build, packaged_table
from bertworks.errors import BertworksError, UsageError, require
from bertworks.events import JsonObject
from bertworks.models.config import BERT, EncoderConfig
from bertworks.models.settings import LIMITS, RANGES, CharactersConfig, DecoderConfig, Head

# the model_type of networks that transformers does not have: it refuses them
OWN_TYPE = "bertworks"
# The class in config.json of an encoder with a linear layer on the means of its states.
# transformers has no such class: AutoModel opens the encoder alone. The layer has the name of the
# last layer of the family's class for whole texts, so that this class would read it, and its weight
# has one axis more than there, [1, labels, width], so that this class refuses the file with any
# number of labels, instead of computing something else with other layers at random.
VECTOR_CLASS = "BertworksVectorClassifier"
_NAMES = packaged_table(__file__, "other_names.toml")
# settings of every family that change what is computed, and the only value that is supported
REQUIRED: Mapping[str, Any] = packaged_table(__file__, "other_fields.toml")["required"]
_NOT_KEPT = {*_NAMES["not_kept"]}
_OF_LABELS = {*_NAMES["of_labels"]}
CORRECT = "correct the file, or get it again"
BODY = {"encoder", "decoder", "pooler"}  # the components that are no heads
_NOT_CLAMPED = -1  # the setting of XLNet with which all distances differ
Rows = Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Family:
    """The files of a family in transformers.

    Rows have a parameter of ours; the sizes of each of theirs; their names, joined in order along
    the first axis. "#" is the number of a layer, or of a group of layers that share their weights.
    "*" is weight, or bias, which has only the first axis; what a network lacks is in none of its
    files. Sizes: V vocabulary, P positions, T token types, E embedding, H hidden, I feed-forward, U
    the outputs of the first matrix of a feed-forward layer, Q 3 * H, D H / heads, R rows for
    distances, L labels, C the input of the classifier, 1 one; or the name of a field of
    EncoderConfig.

    prefix: before the names of the body, in files that hold a head as well.
    body: how names of the body begin, without the prefix.
    rows: see above; of the body, and of the heads of fine-tuning. {}: see `has_own_names`.
    pretraining_rows: of the heads of pre-training.
    by_class: rows that replace others in files of a class; []: they lack this row. A file is of the
        class in its config.json, or else of the first one, of which it has all names.
    tied: copies of tied parameters that some versions write, and what each must be equal to.
    buffers: names, with "#", of tensors that are no parameters.
    unread: names of tensors of heads of pre-training that are left out.
    transposed: endings of our names; their matrices are stored as [inputs, outputs].
    folded: endings of our names; the second axis of their matrices is stored as two, [heads, d].
    leading_axes: our names of vectors that are stored as [1, size], or as [1, 1, size]: how many
        axes of size 1 are in front.
    position_tables: names of tables of sines and cosines (`models.embeddings.sinusoids`), which
        some versions write.
    unused_positions: rows of the position table before the first position.
    always_projects: files have a projection of the embeddings even where its two widths are equal.
    settings: key of config.json: field of EncoderConfig, or of its decoder, as in
        "decoder.num_hidden_layers". Of several keys for a field the last one that is there counts.
    equal: key of config.json: another key that must have the same value.
    quotients: key of config.json: two other keys, of which it must be the quotient.
    activations: names of activation functions in these files: ours.
    lm_head_act: the activation in the head for masked tokens in all networks of the family; "" if
        it is the activation of the layers.
    earlier_null: a key of config.json that is null in files of bertworks 0.1.0, which have no
        `transformers_version` either; "" if these files need not be recognized. See
        `is_of_first_version`.
    flags: key of config.json: what its values, in JSON, are in ours.
    untyped: this number of token types in config.json means that there is no table of them.
    default: the configuration of a config.json without these keys; its position table has all rows.
        Fields that no key describes are equal in the whole family. `default.family` is the family's
        name (model_type).
    hidden_dropouts: fields of dropouts that are always that of the layers: these files have none
        of their own.
    refused: classes with heads that bertworks does not have: what they do.
    finetuned_directions: the directions of reading of networks that can be fine-tuned; (): all.
    generation_remark: what users of `generate` of transformers should know about this family.
    decoder: fields of EncoderConfig with other values in files with `is_decoder: true`; {}: such
        files are refused, or the family has no such setting.
    required: settings that change what is computed, and the only value that is supported.
    stated: the same, of settings that may not be absent: transformers takes another value then.
    required_null: settings that change what is computed, and must be null or absent.
    written, written_as_null: further settings that are written.
    token_ids: key of config.json: the token, or the name of its role, such as "cls_token"; its id
        is written there.
    pretraining: heads that a state holds, in alphabetical order: the class that saves exactly
        these.
    decoder_pretraining: the same for files with `is_decoder: true`.
    tasks: our task: the class.
    no_tokens: why no network of the family predicts tokens; "" if they can.
    google: replacements, in this order, that make the name of Google's variable from a name in
        these files.
    """

    prefix: str
    body: tuple[str, ...]
    rows: Rows
    pretraining_rows: Rows = field(default_factory=dict)
    by_class: Mapping[str, Rows] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)
    buffers: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    transposed: tuple[str, ...] = ()
    folded: tuple[str, ...] = ()
    leading_axes: Mapping[str, int] = field(default_factory=dict)
    position_tables: tuple[str, ...] = ()
    unused_positions: int = 0
    always_projects: bool = False
    settings: Mapping[str, str]
    equal: Mapping[str, str] = field(default_factory=dict)
    quotients: Mapping[str, Sequence[str]] = field(default_factory=dict)
    activations: Mapping[str, str] = field(default_factory=lambda: _NAMES["activations"])
    lm_head_act: str = ""
    earlier_null: str = ""
    flags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    untyped: int = 0
    default: EncoderConfig
    hidden_dropouts: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    finetuned_directions: tuple[str, ...] = ()
    generation_remark: str = ""
    decoder: Mapping[str, Any] = field(default_factory=dict)
    required: Mapping[str, Any] = field(default_factory=dict)
    stated: Mapping[str, Any] = field(default_factory=dict)
    required_null: tuple[str, ...] = ()
    written: Mapping[str, Any] = field(default_factory=dict)
    written_as_null: tuple[str, ...] = ()
    token_ids: Mapping[str, str] = field(default_factory=dict)
    pretraining: Mapping[str, str] = field(default_factory=dict)
    decoder_pretraining: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)
    no_tokens: str = ""
    google: Sequence[tuple[str, str]] = ()

    @property
    def has_own_names(self) -> bool:
        """Whether files have the parameters and the settings of bertworks as they are."""
        return not self.rows

    @property
    def has_languages(self) -> bool:
        """Whether networks of the family may have a table of languages."""
        return "languages" in self.settings.values()

    def can_finetune(self, task: str, config: EncoderConfig) -> bool:
        """Return whether the family has a place for the head of a task on this network."""
        directions = self.finetuned_directions or (config.direction,)
        return task in self.tasks and config.direction in directions

    def is_decoder(self, config: EncoderConfig) -> bool:
        """Return whether its file has `is_decoder: true`."""
        return config.direction == self.decoder.get("direction")

    def default_of(self, is_decoder: bool) -> EncoderConfig:
        """`default` of files with or without `is_decoder: true`."""
        return replace(self.default, **self.decoder) if is_decoder else self.default

    def pretraining_of(self, config: EncoderConfig) -> Mapping[str, str]:
        """`pretraining` of files of this network."""
        return self.decoder_pretraining if self.is_decoder(config) else self.pretraining


def _read_family(name: str) -> Family:
    """Return a family from its file.

    `extends` in it names another one, of which it takes what it does not have itself.
    """
    tables: JsonObject = {"extends": name}
    while "extends" in tables:
        tables = packaged_table(__file__, f"families/{tables.pop('extends')}.toml") | tables
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in tables.items()
    }
    default = tables["default"]
    for part, kind in (("decoder", DecoderConfig), ("characters", CharactersConfig)):
        if part in default:
            default = default | {part: kind(**default[part])}
    values["default"] = EncoderConfig(**default, family=name)
    return Family(**values)


# Each TOML file of the folder families/ is a family.
FAMILIES = {
    path.stem: _read_family(path.stem)
    for path in sorted(Path(__file__).parent.glob("families/*.toml"))
}


def component_names(state: Iterable[str]) -> frozenset[str]:
    """Return the components of a state under the names of bertworks.

    They are some of encoder, decoder, pooler, transform, lm_head, next_sentence, sentence_order,
    replaced_token, classifier, span, recurrent and mix.
    """
    return frozenset(name.split(".", 1)[0] for name in state)


def classes_of(settings: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the classes that a config.json names."""
    classes = (settings or {}).get("architectures")
    return tuple(map(str, classes)) if isinstance(classes, list) else ()


def architecture_of(state: Iterable[str], config: EncoderConfig = BERT) -> str:
    """Return the class of transformers for a pre-trained state.

    KeyError for the heads of fine-tuning, which need labels.
    """
    classes = FAMILIES[config.family].pretraining_of(config)
    return classes[" ".join(sorted(component_names(state) - BODY))]


def can_hold(config: EncoderConfig, heads: Collection[str]) -> bool:
    """Return whether files of a network have a place for these heads of pre-training, together."""
    return " ".join(sorted({*heads} - {"pooler"})) in FAMILIES[config.family].pretraining_of(config)


def check_representable(config: EncoderConfig, pad_token_id: int) -> None:
    """Raise BertworksError for a network that the files of its family cannot describe.

    transformers would read it as another one. pad_token_id: of its tokenizer; RoBERTa counts
    positions from it.
    """
    family = FAMILIES.get(config.family)
    if family is None:
        raise BertworksError(f"family is {config.family!r}: expected one of {', '.join(FAMILIES)}")
    require(
        (config.kind == "elmo") == (family.default.kind == "elmo"),
        f"encoder.family is {config.family!r} with kind {config.kind!r}: files of 'elmo' are for "
        "networks of this kind, and only they",
        hint="choose another family, or another kind",
    )
    if family.has_own_names:
        require(
            config.decoder is not None or family.default.decoder is None,
            f"encoder.family is {config.family!r}, and there is no decoder: such files are for "
            "translators",
            hint="--set encoder.decoder.num_hidden_layers=2; or choose another family",
        )
        positions = family.default.position_embedding_type
        require(
            positions != "relative" or config.position_embedding_type == positions,
            f"encoder.family is {config.family!r} with position_embedding_type "
            f"{config.position_embedding_type!r}: such files are for networks with 'relative'",
            hint="--set encoder.position_embedding_type=relative; or choose another family",
        )
        return
    require(
        config.decoder is None or config.decoder.divides_texts,
        f"encoder.decoder.divides_texts is false: files of {config.family} cannot hold that",
        hint="--set encoder.family=native",
    )
    # without a pooler
    free = {"pooler"} if config.pooler == "last" and config.direction == "left_to_right" else set()
    types = config.type_vocab_size
    require(
        not types or types != family.untyped,
        f"encoder.type_vocab_size is {types}: files of {config.family} cannot hold a table of "
        "one type",
        hint="use type_vocab_size 0, or 2 and more",
    )
    free |= {"lm_head_act"}  # `check_lm_head_act`: such a network has a model_type of its own
    config = _with_canonical_dropouts(config)
    if config.sequence_dropout is None:  # then it is the dropout of the layers for tokens too
        free |= {"token_dropout"}
    for name in family.hidden_dropouts:
        rate = config.choice_rate if name == "choice_dropout" else getattr(config, name)
        require(
            rate == config.hidden_dropout,
            f"encoder.{name} is {getattr(config, name)}: in {config.family} it is hidden_dropout",
            hint=f"--set encoder.{name}={config.hidden_dropout}",
        )
        free |= {name}
    free |= {name.split(".")[0] for name in family.settings.values()}
    for name, value in vars(family.default_of(family.is_decoder(config))).items():
        if (
            name not in family.settings.values()
            and getattr(config, name) != value
            and name not in free
        ):
            setting = f"--set encoder.{name}={json.dumps(value)}"
            raise BertworksError(
                f"encoder.{name} is {getattr(config, name)!r}: files of {config.family} can "
                f"only hold {value!r}",
                hint=f"leave {name} out of the recipe" if value is None else setting,
            )
    projects = config.embedding_width != config.hidden_size
    require(
        projects or not family.always_projects,
        f"encoder.embedding_size and encoder.hidden_size are both {config.hidden_size}: files of "
        f"{config.family} have a projection between them, which the network then lacks",
        hint=f"--set encoder.embedding_size={config.hidden_size // 2 or 1}",
    )
    directions = [
        direction
        for key, meanings in family.flags.items()
        if family.settings[key] == "direction"
        for direction in meanings.values()
    ]
    if directions and config.direction not in directions:
        reading = config.direction.replace("_", " ")
        raise BertworksError(
            f"files of {config.family} cannot hold a network that reads from {reading}"
        )
    expected = family.required.get("pad_token_id", pad_token_id)
    require(
        pad_token_id == expected,
        f"the padding token has id {pad_token_id}: in {config.family} positions are counted from "
        f"it, so it must be {expected}",
        hint=f"use the tokenizer of a {config.family} model: --tokenizer FOLDER",
    )


def _with_canonical_dropouts(config: EncoderConfig) -> EncoderConfig:
    """Return the same configuration with None for each dropout that is the default.

    None stands for the default.

    Files of transformers have a number for each dropout, so that configurations could not be
    compared otherwise.
    """
    if config.embedding_dropout == config.hidden_dropout:
        config = replace(config, embedding_dropout=None)
    if config.choice_dropout == config.sequence_rate:
        config = replace(config, choice_dropout=None)
    return config


def check_lm_head_act(config: EncoderConfig) -> None:
    """Raise BertworksError if the head for masked tokens has an unusual activation.

    The usual one is that of the heads of its family.

    transformers has no such network. bertworks reads existing ones, but does not train new ones.
    """
    if not _has_own_lm_head_act(config):
        return
    expected = FAMILIES[config.family].lm_head_act or config.hidden_act
    what = (
        f"the head for masked tokens has the activation {config.lm_head_activation!r}: in "
        f"{config.family} with"
    )
    what += f" hidden_act {config.hidden_act!r} it is {expected!r}"
    raise BertworksError(what, hint=f"--set encoder.lm_head_act={expected}")


def _has_own_lm_head_act(config: EncoderConfig) -> bool:
    family = FAMILIES[config.family]
    expected = family.lm_head_act or config.hidden_act
    is_described = "lm_head_act" in family.settings.values()
    has_other = config.lm_head_activation != expected and not is_described
    return config.lm_head == "transform" and has_other


def num_parameters(config: EncoderConfig, heads: Collection[Head]) -> int:
    """Return the number of parameters of a network and its heads in the files of its family.

    Unused rows of the position embeddings count.
    """
    return (
        config.num_parameters(*heads)
        + FAMILIES[config.family].unused_positions * config.embedding_width
    )


def config_to_huggingface(
    config: EncoderConfig,
    *,
    architectures: Collection[str],
    pad_token_id: int = 0,
    token_ids: Mapping[str, int] | None = None,
) -> JsonObject:
    """Return the content of config.json, every field written, with real types.

    Args:
        architectures: their class that the saved parameters are of, such as `BertForPreTraining`.
        pad_token_id: the id of the padding token of the tokenizer that is saved in the same folder;
            a negative number if it has none.
        token_ids: the ids of the tokens of that tokenizer, by token and by role, such as
            "cls_token".

    Raises:
        BertworksError: see `check_representable`; a padding token from which positions would be
            counted otherwise.
    """
    check_representable(config, pad_token_id)
    family = FAMILIES[config.family]
    activation_names = {
        activation: name for name, activation in reversed(list(family.activations.items()))
    }
    require(
        config.hidden_act in activation_names,
        f"encoder.hidden_act is {config.hidden_act!r}: files of {config.family} cannot name it",
        hint=f"use {' or '.join(activation_names)}",
    )
    values = {
        **vars(config),
        "intermediate_size": config.ffn_size,
        "embedding_size": config.embedding_width,
        "max_position_embeddings": config.max_position_embeddings + family.unused_positions,
        "hidden_act": activation_names[config.hidden_act],
        "lm_head_act": activation_names.get(config.lm_head_activation),
        "sequence_dropout": (
            config.sequence_rate if config.task_transform else config.sequence_dropout
        ),
        "type_vocab_size": config.type_vocab_size or family.untyped,
        "max_relative_positions": _written_distance(config),
        "embedding_dropout": config.embedding_rate,
        "choice_dropout": config.choice_rate,
        "clamp_length": config.clamp_length or _NOT_CLAMPED,
        "languages": {name: number for number, name in enumerate(config.languages)},
    }
    if family.has_own_names:
        values["encoder"] = asdict(config, dict_factory=_without_none)
    elif config.decoder is not None:
        values |= {f"decoder.{name}": value for name, value in vars(config.decoder).items()}
    for key, meanings in family.flags.items():
        name = family.settings[key]
        values[name] = next(
            json.loads(text) for text, meaning in meanings.items() if meaning == values[name]
        )
    fields = dict(vars(family.default))
    fields.update({name: value for name, value in values.items() if value is not None})
    ids_of_tokens = token_ids or {}
    id_settings = {key: ids_of_tokens.get(token) for key, token in family.token_ids.items()}
    if family.earlier_null in id_settings and id_settings[family.earlier_null] is None:
        del id_settings[family.earlier_null]  # a null there means a file of an earlier version
    settings = {
        "model_type": own_type(config.family) if family.has_own_names else config.family,
        **own_lm_head(config, architectures),
        "architectures": list(architectures),
        "pad_token_id": pad_token_id if pad_token_id >= 0 else None,
        **id_settings,
        **{key: fields[name] for key, name in family.settings.items()},
        **{key: fields[family.settings[other]] for key, other in family.equal.items()},
        **{
            key: fields[family.settings[whole]] // fields[family.settings[part]]
            for key, (whole, part) in family.quotients.items()
        },
        **family.written,
        **dict.fromkeys(family.written_as_null),
    }
    if family.is_decoder(config):
        settings["is_decoder"] = True
    if config.position_embedding_type == "rotary":
        for key in _NEWER_KEYS:
            settings.pop(key, None)
        if config.local_layers:
            settings |= _newer_keys(config)
    return dict(sorted(settings.items()))


# ModernBERT in transformers 5: the keys of config.json that describe its global and local layers,
# and the names of the two kinds of layers in them.
_NEWER_KEYS = ("layer_types", "rope_parameters")
_GLOBAL = "full_attention"
_LOCAL = "sliding_attention"
_BASES = {_GLOBAL: "global_rope_theta", _LOCAL: "local_rope_theta"}
_EVERY = "global_attn_every_n_layers"


def _newer_keys(config: EncoderConfig) -> JsonObject:
    """Return the settings that say which layers are local, and how each kind rotates."""
    layers = range(config.num_hidden_layers)
    types = [_LOCAL if config.is_local(number) else _GLOBAL for number in layers]
    bases = {_GLOBAL: config.rotary_base, _LOCAL: config.local_rotary_base}
    parameters = {
        kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()
    }
    return {"layer_types": types, "rope_parameters": parameters}


def _with_older_keys(
    settings: Mapping[str, Any], family: Family, where: object
) -> Mapping[str, Any]:
    """Return a config.json with the keys of transformers 4 in the place of those of transformers 5.

    Only a pattern of local layers that is not every n-th is left as `layer_types`. Other families
    have their settings as they were.

    Raises:
        BertworksError: other kinds of layers or of rotations.
    """
    if family.default.position_embedding_type != "rotary":
        return settings
    values = {key: value for key, value in settings.items() if key not in _NEWER_KEYS}
    parameters = settings.get("rope_parameters") or {}
    require(
        isinstance(parameters, Mapping) and parameters.keys() <= _BASES.keys(),
        f"rope_parameters is {parameters!r:.80}: expected a table for each of {', '.join(_BASES)}",
        where,
        CORRECT,
    )
    for kind, base in _BASES.items():
        table = parameters.get(kind) or {}
        is_plain = (
            isinstance(table, Mapping)
            and table.keys() <= {"rope_type", "rope_theta"}
            and table.get("rope_type", "default") == "default"
        )
        require(
            is_plain,
            f"rope_parameters.{kind} is {table!r:.80}: only rope_type 'default' with a rope_theta "
            "is supported",
            where,
        )
        if table.get("rope_theta") is not None:
            values[base] = table["rope_theta"]
    # transformers 4 rotated local layers as the others where this was null
    if values.get(_BASES[_LOCAL], 0) is None:
        values[_BASES[_LOCAL]] = values.get(_BASES[_GLOBAL], family.default.rotary_base)
    types = settings.get("layer_types")
    if types is None:
        return values
    count = settings.get("num_hidden_layers", family.default.num_hidden_layers)
    is_list = isinstance(types, list) and len(types) == count
    require(
        is_list and {*map(str, types)} <= _BASES.keys(),
        f"layer_types is {types!r:.80}: expected num_hidden_layers ({count}) times one of "
        f"{' or '.join(_BASES)}",
        where,
        CORRECT,
    )
    are_local = [kind == _LOCAL for kind in types]
    period = next((n for n in range(1, count) if not are_local[n]), count)
    values.pop(_EVERY, None)
    if are_local == [number % period > 0 for number in range(count)]:
        return values | {_EVERY: period}
    return values | {"layer_types": types}


def _with_distances(
    settings: Mapping[str, Any], family: Family, where: object
) -> Mapping[str, Any]:
    """Return a config.json of disentangled attention with the numbers that it leaves out.

    Other families have their settings as they were.

    Raises:
        BertworksError: an attention that adds other terms to the scores, or heads of another width.
    """
    if family.default.position_embedding_type != "disentangled":
        return settings
    terms = settings.get("pos_att_type")
    if isinstance(terms, str):
        terms = [term.strip() for term in terms.lower().split("|")]
    is_known = isinstance(terms, list) and sorted(map(str, terms)) == ["c2p", "p2c"]
    values = {**settings, "pos_att_type": family.stated["pos_att_type"]} if is_known else settings
    for name, value in family.stated.items():
        has_value = name in values and values[name] == value
        require(
            has_value,
            f"{name} is {settings.get(name)!r:.60}: only {value!r} is supported for "
            f"{family.default.family}",
            where,
        )
    require(
        "position_buckets" in settings,
        "there is no position_buckets: only networks with buckets of distances are supported",
        where,
    )
    hidden, heads = (
        settings.get(name, getattr(family.default, name))
        for name in ("hidden_size", "num_attention_heads")
    )
    for name, whole, parts in (
        ("embedding_size", hidden, 1),
        ("attention_head_size", hidden, heads),
    ):
        value = settings.get(name, whole)
        require(
            name not in settings or (type(value) is int and value * parts == whole),
            f"{name} is {value!r:.60} with hidden_size {hidden!r:.20}, num_attention_heads "
            f"{heads!r:.20}: only the usual width is supported",
            where,
        )
    furthest = settings.get("max_relative_positions", -1)
    if type(furthest) is int and furthest < 1:
        longest = settings.get("max_position_embeddings", family.default.max_position_embeddings)
        return {**settings, "max_relative_positions": longest}
    return settings


def _written_distance(config: EncoderConfig) -> int:
    """Return max_relative_positions of a config.json: -1 if it is the longest sequence."""
    furthest = config.max_relative_positions
    return -1 if furthest == config.max_position_embeddings else furthest


def _without_none(items: Iterable[tuple[str, Any]]) -> JsonObject:
    """Return a table without the values that are None, which is the default of their fields."""
    return {name: value for name, value in items if value is not None}


def own_lm_head(config: EncoderConfig, architectures: Collection[str]) -> dict[str, str]:
    """Return the settings of a saved head for masked tokens that transformers does not have.

    For any other network they are {}.

    Because of the model_type transformers refuses the folder instead of computing another function.
    """
    classes = FAMILIES[config.family].pretraining_of(config).items()
    has_lm_head = any(
        "lm_head" in heads.split() and name in architectures for heads, name in classes
    )
    if not has_lm_head or not _has_own_lm_head_act(config):
        return {}
    return {"model_type": own_type(config.family), "lm_head_act": config.lm_head_activation}


def config_from_huggingface(settings: Mapping[str, Any], *, where: object = None) -> EncoderConfig:
    """Return the encoder that a config.json describes.

    Keys that do not concern an encoder are ignored.

    Args:
        where: the file, for messages.

    Raises:
        BertworksError: an unknown family, or a network that is not computed here; a value of the
            wrong type or an absurd size.
    """
    kind = _kind(settings) if isinstance(settings, Mapping) else None
    family_name = _family_name(kind)
    if family_name not in FAMILIES:
        there = (
            f"the family {kind!r:.60} is not supported yet"
            if kind is not None
            else "there is no model_type"
        )
        raise BertworksError(
            f"{there}: expected one of {', '.join(FAMILIES)}",
            where=where,
            hint='choose a folder with such a "model_type" in its config.json (for files of Google '
            'add "bert")',
        )
    family = FAMILIES[family_name]
    for name in classes_of(settings):
        require(
            name not in family.refused,
            f"{name} {family.refused.get(name)}, which is not supported",
            where,
            "choose the pre-trained model, and fine-tune it: bertworks finetune DATA --model MODEL "
            "-o FOLDER",
        )
    for name, value in {
        **REQUIRED,
        **family.required,
        **dict.fromkeys(family.required_null),
    }.items():
        supported = "null" if value is None else repr(value)
        require(
            settings.get(name, value) == value,
            f"{name} is {settings.get(name)!r:.60}: only {supported} is supported for "
            f"{family.default.family}",
            where,
        )
    if family.has_own_names:
        return _own_config(settings, where)
    decoder = settings.get("is_decoder", False)
    require(
        not family.decoder or type(decoder) is bool,
        f"is_decoder is {decoder!r:.60}: expected true or false",
        where,
        CORRECT,
    )
    for key, other in family.equal.items():
        require(
            settings.get(key) in (None, settings.get(other)),
            f"{key} is {settings.get(key)!r:.60}, {other} is {settings.get(other)!r:.60}: only "
            "equal ones are supported",
            where,
        )
    for key, (whole, part) in family.quotients.items():
        sizes = [
            settings.get(name, getattr(family.default, family.settings[name]))
            for name in (whole, part)
        ]
        if all(type(size) is int and size > 0 for size in sizes):  # else see `_value`
            require(
                settings.get(key) in (None, sizes[0] // sizes[1]),
                f"{key} is {settings.get(key)!r:.60}: only {whole} / {part}, "
                f"{sizes[0] // sizes[1]}, is supported for {family.default.family}",
                where,
            )
    settings = _with_older_keys(settings, family, where)
    settings = _with_distances(settings, family, where)
    values = dict(vars(family.default_of(bool(family.decoder) and decoder)))
    described_fields: set[str] = set()
    for key, path in family.settings.items():
        *table, name = path.split(".")
        default = family.default.decoder if table else family.default
        value = getattr(default, name)
        if key in settings:
            value = _value(settings[key], key, name, family, where)
        elif path in described_fields:
            continue
        if key in settings:
            described_fields.add(path)
        if table:
            values["decoder"] = replace(values["decoder"], **{name: value})
        else:
            values[name] = value
    if values["local_layers"]:
        values["global_attention_every"] = 0
    # A head that differs from those of its family has a setting of its own (`own_lm_head`).
    # bertworks 0.1.0 gave the head of a RoBERTa the activation of its layers without it: its files
    # are recognized by a null that transformers does not write.
    lm_head_act = "" if is_of_first_version(settings) else family.lm_head_act
    if "lm_head_act" in family.settings.values():
        lm_head_act = values["lm_head_act"]
    elif "lm_head_act" in settings:
        lm_head_act = settings["lm_head_act"]
        activations = get_args(get_type_hints(EncoderConfig)["lm_head_act"])  # the first one is ""
        require(
            lm_head_act in activations,
            f"lm_head_act is {lm_head_act!r:.60}: expected one of {', '.join(activations[1:])}",
            where,
            CORRECT,
        )
    values["lm_head_act"] = "" if lm_head_act == values["hidden_act"] else lm_head_act
    values["max_position_embeddings"] -= family.unused_positions
    values["type_vocab_size"] -= values["type_vocab_size"] == family.untyped == 1
    if values["direction"] == "left_to_right" and values["pooler"] == "first":
        classes = {*family.tasks.values()} & {*map(str, settings.get("architectures") or [])}
        require(
            not classes,
            f"{', '.join(classes)} reads from left to right, and pools the first token, which "
            "has read nothing",
            where,
        )
        values["pooler"] = "last"
    if family.has_languages and values["type_vocab_size"] and not values["languages"]:
        values["languages"] = tuple(map(str, range(values["type_vocab_size"])))
    width = values["hidden_size"]
    require(
        not family.always_projects or values["embedding_size"] not in (0, width),
        f"embedding_size and hidden_size are both {width}: a projection between equal widths "
        "is not supported",
        where,
    )
    if values["sequence_dropout"] is None:
        values["token_dropout"] = False
    values |= dict.fromkeys(family.hidden_dropouts, values["hidden_dropout"])
    try:
        return _with_canonical_dropouts(EncoderConfig(**values))
    except ValueError as error:
        raise BertworksError(str(error), where=where, hint=CORRECT) from error


def _own_config(settings: Mapping[str, Any], where: object) -> EncoderConfig:
    """Return the configuration in a config.json that has it under the names of bertworks."""
    try:
        config = build(EncoderConfig, settings.get("encoder"), str(where), "encoder")
    except UsageError as error:
        raise BertworksError(error.what, where=where, hint=error.hint or CORRECT) from error
    family = _family_name(_kind(settings))
    require(
        config.family == family,
        f"encoder.family is {config.family!r:.60}: expected {family!r}",
        where,
        CORRECT,
    )
    check_representable(config, 0)
    return config


def is_of_first_version(settings: Mapping[str, Any]) -> bool:
    """Return whether bertworks 0.1.0 wrote a config.json of a family that it computed differently.

    It had another head for masked tokens than transformers.
    """
    family = FAMILIES[_family_name(_kind(settings))]
    is_null = family.earlier_null in settings and settings[family.earlier_null] is None
    return is_null and "transformers_version" not in settings


def static_settings(num_tokens: int, width: int) -> JsonObject:
    """Return the content of config.json for a table of static vectors of this shape."""
    family = FAMILIES["static"]
    return {
        "model_type": family.default.family,
        "architectures": list(family.pretraining.values()),
        "vocab_size": num_tokens,
        "hidden_size": width,
    }


def settings_to_keep(settings: Mapping[str, Any], *, head: bool) -> tuple[JsonObject, list[str]]:
    """Return the settings of a config.json to preserve, and the names of those that are dropped.

    The settings that an EncoderConfig and a head describe are in neither: they are written from
    these.

    Args:
        head: whether the model has a head, which describes the labels.
    """
    family = FAMILIES.get(_family_name(_kind(settings)), FAMILIES["bert"])
    described_keys = {
        *family.settings,
        *family.stated,
        "model_type",
        "architectures",
        "lm_head_act",
        "pad_token_id",
        "is_decoder",
        "add_cross_attention",
        "tie_word_embeddings",
        "dtype",
        *_OF_LABELS,
    }
    preserved_settings: JsonObject = {}
    for name, value in settings.items():
        # The tokenizer's id replaces a null: without an id transformers would take that of the
        # published models.
        is_null_id = value is None and name in family.token_ids
        if name not in described_keys and name not in _NOT_KEPT and not is_null_id:
            preserved_settings[name] = value
    dropped_keys = set(_NOT_KEPT)
    if not head:
        dropped_keys |= _OF_LABELS
    return preserved_settings, sorted(dropped_keys & settings.keys())


def _kind(settings: Mapping[str, Any]) -> Any:
    """Return the model_type.

    The first versions did not write it, but some wrote the name of the class.
    """
    named = settings.get("architectures")
    old = (
        isinstance(named, list)
        and all(re.match("Bert(For|Model)", str(name)) for name in named)
        and named
    )
    return settings.get("model_type", "bert" if old else None)


def own_type(family: str) -> str:
    """The model_type of a network on a body of this family that transformers does not have."""
    return OWN_TYPE if family == "bert" else f"{OWN_TYPE}-{family}"


def _family_name(kind: Any) -> str:
    return "bert" if kind == OWN_TYPE else str(kind).removeprefix(f"{OWN_TYPE}-")


def _value(value: Any, key: str, name: str, family: Family, where: object) -> object:
    """Return the value of a field of EncoderConfig, checked by the kind of its default.

    Args:
        value: the setting in config.json; of languages: the number of each name.
        key: the key of the setting in config.json.
        name: the name of the field.
    """
    default = getattr(family.default, name)
    is_dropout = name.endswith("_dropout")
    if name == "local_layers":
        return tuple(number for number, kind in enumerate(value) if kind == _LOCAL)
    if value is None and name in ("intermediate_size", "memory_length"):
        return 0
    if name in ("memory_length", "clamp_length") and type(value) is int and value in (0, -1):
        return 0
    if value is None and default is None and is_dropout:
        return None
    if name == "languages":
        names = (
            {number: name for name, number in value.items()}
            if isinstance(value, dict)
            else {-1: ""}
        )
        require(
            names.keys() == {*range(len(names))},
            f"{key} is {value!r:.60}: expected a number from 0 for each name",
            where,
            CORRECT,
        )
        return tuple(names[number] for number in range(len(names)))
    choices: Mapping[Any, str] = family.activations
    if key in family.flags:
        value = json.dumps(value)
        choices = family.flags[key]
    if name == "language":
        choices = {value: value}
        expected = "the name of a language"
        is_valid = isinstance(value, str)
    elif isinstance(default, str):
        expected = f"one of {', '.join(choices)}"
        is_valid = isinstance(value, str) and value in choices
    elif isinstance(default, bool):
        expected = "true or false"
        is_valid = type(value) is bool
    elif name in RANGES:
        least, most = RANGES[name]
        expected = f"a number from {least:g} to {most:g}"
        is_valid = type(value) in (int, float) and least <= value <= most
    elif isinstance(default, float) or is_dropout:
        expected = "a number from 0 to 1"
        is_valid = type(value) in (int, float) and 0 <= value <= 1
    else:
        limit = LIMITS[name]
        expected = f"a whole number from 1 to {limit:,}"
        is_valid = type(value) is int and 1 <= value <= limit
    require(is_valid, f"{key} is {value!r:.60}: expected {expected}", where, CORRECT)
    if isinstance(default, str):
        return choices[value]
    return float(value) if is_dropout else type(default)(value)

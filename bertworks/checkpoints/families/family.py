"""What a family is: names of parameters, settings of config.json, classes, oddities.

Each has a TOML file here.

Rows have a parameter of ours; the sizes of each of theirs; their names, joined in order along the
first axis. "#" is the number of a layer, or of a group of layers that share their weights. "*" is
weight, or bias, which has only the first axis. Sizes: V vocabulary, P positions, T token types, E
embedding, H hidden, I feed-forward, Q 3 * H, L labels, C the input of the classifier, 1 one; or
the name of a field of EncoderConfig.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertworks.config import packaged_table
from bertworks.models.config import EncoderConfig

Rows = Mapping[str, Sequence[str]]

# Theirs: ours. Google's code computes the tanh approximation under the name "gelu"; in these files
# it is exact.
GELUS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "gelu_python": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """The files of a family in transformers.

    prefix: before the names of the body, in files that hold a head as well.
    body: how names of the body begin, without the prefix.
    rows: see above; of the body, and of the heads of fine-tuning.
    pretraining_rows: of the heads of pre-training.
    by_class: rows that replace others in files of a class; []: they lack this row. A file is of the
        first class of which it has all names.
    tied: copies of tied parameters that some versions write, and what each must be equal to.
    buffers: names, with "#", of tensors that are no parameters.
    transposed: endings of our names whose matrices are stored [inputs, outputs].
    unused_positions: rows of the position table before the first position.
    always_projects: files have a projection of the embeddings even where its two widths are equal.
    settings: key of config.json: field of EncoderConfig. Of several keys for a field the last one
        counts.
    activations: names of activation functions in these files: ours.
    lm_head_act: the activation in the head for masked tokens in all networks of the family; "" if
        it is the activation of the layers.
    earlier_null: a key of config.json that is null in files of bertworks 0.1.0, which have no
        `transformers_version` either; "" if these files need not be recognized. See
        `hf_mapping.is_of_first_version`.
    flags: key of config.json: what its values, in JSON, are in ours.
    untyped: this number of token types in config.json means that there is no table of them.
    default: the configuration of a config.json without these keys; its position table has all rows.
        Fields that no key describes are equal in the whole family. `default.family` is the family's
        name (model_type).
    choices_have_hidden_dropout: the dropout before the output layer for choices is that of the
        layers, whatever is set for whole texts.
    finetuned_directions: the directions of reading of networks that can be fine-tuned; (): all.
    generation_remark: what users of `generate` of transformers should know about this family.
    decoder: fields of EncoderConfig with other values in files with `is_decoder: true`; {}: such
        files are refused, or the family has no such setting.
    required: settings that change what is computed, and the only value that is supported.
    required_null: settings that change what is computed, and must be null or absent.
    written, written_as_null: further settings that are written.
    token_ids: key of config.json: the token whose id is written there, or the name of its role,
        such as "cls_token".
    pretraining: heads that a state holds, in alphabetical order: the class that saves exactly
        these.
    decoder_pretraining: the same for files with `is_decoder: true`.
    tasks: our task: the class.
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
    transposed: tuple[str, ...] = ()
    unused_positions: int = 0
    always_projects: bool = False
    settings: Mapping[str, str]
    activations: Mapping[str, str] = field(default_factory=lambda: GELUS)
    lm_head_act: str = ""
    earlier_null: str = ""
    flags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    untyped: int = 0
    default: EncoderConfig
    choices_have_hidden_dropout: bool = False
    finetuned_directions: tuple[str, ...] = ()
    generation_remark: str = ""
    decoder: Mapping[str, Any] = field(default_factory=dict)
    required: Mapping[str, Any] = field(default_factory=dict)
    required_null: tuple[str, ...] = ()
    written: Mapping[str, Any] = field(default_factory=dict)
    written_as_null: tuple[str, ...] = ()
    token_ids: Mapping[str, str] = field(default_factory=dict)
    pretraining: Mapping[str, str] = field(default_factory=dict)
    decoder_pretraining: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)
    google: Sequence[tuple[str, str]] = ()

    @property
    def has_languages(self) -> bool:
        """Whether networks of the family may have a table of languages."""
        return "languages" in self.settings.values()

    def can_finetune(self, task: str, config: EncoderConfig) -> bool:
        """Return whether the family has a place for the head of a task on this network."""
        directions = self.finetuned_directions or (config.direction,)
        return task in self.tasks and config.direction in directions

    def flag_values(self, name: str) -> Collection[str]:
        """Return the values of a field of EncoderConfig that a flag of config.json can name.

        They are () if no flag describes the field.
        """
        flags = [values for key, values in self.flags.items() if self.settings[key] == name]
        return [value for values in flags for value in values.values()]

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
    tables: dict[str, Any] = {"extends": name}
    while "extends" in tables:
        tables = packaged_table(__file__, f"{tables.pop('extends')}.toml") | tables
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in tables.items()
    }
    values["default"] = EncoderConfig(**tables["default"], family=name)
    return Family(**values)


# Each TOML file of this folder is a family.
FAMILIES = {
    path.stem: _read_family(path.stem) for path in sorted(Path(__file__).parent.glob("*.toml"))
}

"""Read the names of classes that a table stores as numbers.

They are those of `ClassLabel` columns of the `datasets` library.

Such a column holds 0, 1, 2; the names of these classes stand beside the table: in
`Dataset.features`, and under the key `huggingface` of the schema's metadata in an Arrow table or a
Parquet file that `Dataset.to_parquet` has written. Both describe a column in the same way, for
example as

    {"_type": "ClassLabel", "names": ["neg", "pos"]}
    {"_type": "List", "feature": {"_type": "ClassLabel", "names": ["O", "B-PER", "I-PER"]}}

(`Sequence` and `LargeList` are other names of `List`). A dict without `_type` describes the fields
of an object. The number -1 stands for a missing label, as in the test sets of GLUE.
"""

import json
from collections.abc import Mapping
from typing import Any

from bertworks.errors import BertworksError, first_names
from bertworks.events import JsonObject

_METADATA_KEY = b"huggingface"
_MISSING_CLASS = -1
_LISTED_CLASSES = 8  # in a note
_UNNAMED_HINT = (
    "write the file again; or without its names of classes: table.replace_schema_metadata(None)"
)

# The names of classes in the order of their numbers; for an object, those of each field; None: no
# classes.
_Classes = list[str] | dict[str, Any] | None


class ClassNames:
    """The names of the classes of a table, by column.

    Columns of other types are not touched.

    Args:
        features: how each column is described, by its name, as in the examples above.
    """

    def __init__(self, features: Mapping[str, Any]):
        self._classes: dict[str, _Classes] = {}
        self.notes: list[str] = []
        for column, feature in features.items():
            names = _classes_of(feature)
            if names is not None:
                self._classes[str(column)] = names
                while isinstance(names, dict):
                    names = next(iter(names.values()))
                classes = [f"{number} {name}" for number, name in enumerate(names)]
                note = f"classes of {str(column)!r} by their names: "
                self.notes.append(note + first_names(classes, _LISTED_CLASSES))

    def __bool__(self) -> bool:
        return bool(self._classes)

    def named_row(self, row: Mapping[str, Any], where: str) -> JsonObject:
        """Return the row with names in the place of numbers. where: the row, for messages.

        Raises:
            BertworksError: a number is that of no class.
        """
        return {column: self.named_value(column, value, where) for column, value in row.items()}

    def named_value(self, column: str, value: Any, where: str) -> Any:
        """Return the value of a column with names in the place of numbers: see `named_row`."""
        try:
            return _named(self._classes.get(str(column)), value)
        except _UnknownClassError as error:
            number, count = error.args
            raise BertworksError(
                f"{str(column)!r} holds {number}, and its classes are numbered from 0 to "
                f"{count - 1}",
                where=where,
                hint="repair the value; -1 stands for a missing label",
            ) from error


class _UnknownClassError(Exception):
    """A number that has no class. Its arguments are the number, and the number of classes."""


def class_names_of_table(table: Any) -> ClassNames:
    """Return the names of classes of a table in memory.

    It is a data set of `datasets`, or a table or batch of pyarrow. Other values have none.

    Raises:
        BertworksError: the metadata of the schema are damaged.
    """
    features = getattr(table, "features", None)
    if isinstance(features, Mapping) and hasattr(features, "to_dict"):
        return ClassNames(features.to_dict())
    return class_names_of_schema(getattr(table, "schema", None), "the table")


def class_names_of_schema(schema: Any, where: str) -> ClassNames:
    """Return the names of classes in the metadata of a schema of pyarrow.

    Another value has none. where: the file, for messages.

    Raises:
        BertworksError: the metadata are damaged.
    """
    metadata = getattr(schema, "metadata", None)
    if not isinstance(metadata, Mapping) or _METADATA_KEY not in metadata:
        return ClassNames({})
    try:
        content = json.loads(metadata[_METADATA_KEY])
        info = content.get("info") if isinstance(content, dict) else None
        features = info.get("features") if isinstance(info, dict) else None
        return ClassNames(features if isinstance(features, dict) else {})
    except (ValueError, RecursionError) as error:
        raise BertworksError(
            "the names of classes in the metadata cannot be read: they are not JSON, or nested "
            "too deeply",
            where=where,
            hint=_UNNAMED_HINT,
        ) from error


def named_column(column: Any, where: str) -> Any:
    """Return the values of a column of `datasets` with the names of their classes.

    Other values are returned as they are.

    Raises:
        BertworksError: a number is that of no class.
    """
    source = getattr(column, "source", None)
    name = getattr(column, "column_name", None)
    names = class_names_of_table(source)
    if not isinstance(name, str) or not names:
        return column
    return [
        names.named_value(name, value, f"{where} {number}")
        for number, value in enumerate(column, 1)
    ]


def _classes_of(feature: Any) -> _Classes:
    """Return the classes that the description of a column names; None: there are none."""
    # a list, as early versions of `datasets` describe it
    if isinstance(feature, list) and len(feature) == 1:
        return _classes_of(feature[0])
    if not isinstance(feature, dict):
        return None
    kind = feature.get("_type")
    if kind == "ClassLabel":
        names = feature.get("names")
        is_valid = isinstance(names, list) and all(isinstance(name, str) for name in names)
        return names if is_valid else None
    if isinstance(kind, str):
        return _classes_of(feature.get("feature"))
    classes = {name: _classes_of(part) for name, part in feature.items()}
    return {name: part for name, part in classes.items() if part is not None} or None


def _named(classes: _Classes, value: Any) -> Any:
    """Return a value of a column, of any depth, with names in the place of numbers."""
    if classes is None:
        return value
    if isinstance(value, list):
        return [_named(classes, part) for part in value]
    if isinstance(classes, dict):
        if not isinstance(value, dict):
            return value
        return {name: _named(classes.get(name), part) for name, part in value.items()}
    if isinstance(value, bool) or not isinstance(value, int):
        return value  # a missing value, or a name already
    if value == _MISSING_CLASS:
        return None
    if not 0 <= value < len(classes):
        raise _UnknownClassError(value, len(classes))
    return classes[value]

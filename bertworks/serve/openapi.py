"""Requests and responses of every path as JSON Schema: the OpenAPI document, and the check of requests against it."""

import json
import re
from collections.abc import Mapping
from typing import Any

import bertworks
from bertworks.errors import UsageError
from bertworks.serve.job import Limits, RequestTooLargeError

Schema = Mapping[str, Any]
_ABSENT = object()
_NAMES = {"string": "a string", "array": "a list", "object": "an object", "integer": "a whole number",
          "number": "a number", "boolean": "true or false", "null": "null"}  # fmt: skip

STRING: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
INTEGER: Schema = {"type": "integer"}
BOOLEAN: Schema = {"type": "boolean"}
TEXT: Schema = {"type": "string", "minLength": 1}


def check(value: Any, schema: Schema, where: str = "the request") -> Any:
    """The value, with the defaults of fields that are not there.

    Raises:
        UsageError: it is not what the schema says, and where.
        TooMuchError: a list is too long.
    """
    if "anyOf" in schema:
        return _check_any(value, schema["anyOf"], where)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # which is what JSON Schema says of 1.0
    found = _type(value)
    if found != schema["type"] and (found, schema["type"]) != ("integer", "number"):
        hint = schema.get("description")
        raise UsageError(f"{where} is {_NAMES[found]}: expected {_NAMES[schema['type']]}", hint=hint)
    if value not in schema.get("enum", (value,)):
        expected = " or ".join(json.dumps(one) for one in schema["enum"])
        raise UsageError(f"{where} is {json.dumps(value)[:60]}: expected {expected}")
    match found:
        case "string":
            _check_text(value, schema, where)
        case "integer" | "number":
            least, most = schema.get("minimum", value), schema.get("maximum", value)
            if not least <= value <= most:
                raise UsageError(f"{where} is {value}: expected {least} to {most}")
        case "array":
            if len(value) > (most := schema.get("maxItems", len(value))):
                kind = RequestTooLargeError if most > 2 else UsageError  # three texts are not much, but no pair
                raise kind(f"{where} has {len(value):,} items: expected {most:,} at most")
            if len(value) < schema.get("minItems", 0):
                raise UsageError(f"{where} has {len(value)} items: expected {schema['minItems']} or more")
            return [check(one, schema["items"], f"{where}[{number}]") for number, one in enumerate(value)]
        case "object":
            return _check_fields(value, schema, where)
    return value


def _type(value: Any) -> str:
    kinds = {str: "string", list: "array", dict: "object", bool: "boolean", int: "integer", float: "number"}
    return kinds.get(type(value), "null")


def _check_any(value: Any, schemas: list[Schema], where: str) -> Any:
    """As the first that fits; else the error of the one that comes nearest: it is deepest inside."""
    errors: list[UsageError] = []
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    for schema in schemas:
        if schema["type"] == _type(value) or (schema["type"], _type(value)) == ("number", "integer"):
            try:
                return check(value, schema, where)
            except UsageError as error:
                errors.append(error)
    if errors:
        raise max(errors, key=lambda error: (isinstance(error, RequestTooLargeError), error.what.count("[")))
    expected = " or ".join(dict.fromkeys(_NAMES[schema["type"]] for schema in schemas))
    raise UsageError(f"{where} is {_NAMES[_type(value)]}: expected {expected}")


def _check_text(value: str, schema: Schema, where: str) -> None:
    if len(value) < schema.get("minLength", 0):
        raise UsageError(f"{where} is empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{where} holds half a character at {error.start}: a surrogate without its other half"
        ) from None


def _check_fields(value: dict[str, Any], schema: Schema, where: str) -> dict[str, Any]:
    found = {}
    for name, field in schema["properties"].items():
        given = value.get(name, field.get("default", _ABSENT))
        if given is _ABSENT:
            raise UsageError(f"{where} has no {name!r}")
        found[name] = (
            given if name not in value else check(given, field, name if where == "the request" else f"{where}.{name}")
        )
    return found


def _object(**properties: Schema) -> Schema:
    required = [name for name, field in properties.items() if "default" not in field]
    return {"type": "object", "properties": properties, "required": required}


def _list(items: Schema, **more: int) -> Schema:
    return {"type": "array", "items": items, **more}


def _any(*schemas: Schema, **more: Any) -> Schema:
    return {"anyOf": list(schemas), **more}


def _or_null(schema: Schema) -> Schema:
    return _any(schema, {"type": "null"}, default=None)


def _with(schema: Schema, default: Any) -> Schema:
    return {**schema, "default": default}


def requests_of(info: Mapping[str, Any], limits: Limits) -> dict[str, Schema]:
    """The schema of the request of each ability, for this model."""
    texts = _list(TEXT, minItems=1, maxItems=limits.texts)
    inputs = _any(TEXT, texts)
    # Clients of OpenAI may send ids of its own tokenizer, which are other words here.
    text = {**TEXT, "description": "send no ids of tokens; LangChain: check_embedding_ctx_length=False"}
    told = _any(text, _list(text, minItems=1, maxItems=limits.texts))
    top = {"type": "integer", "minimum": 1, "maximum": limits.k}
    cut, no = _or_null(BOOLEAN), _with(BOOLEAN, False)
    side = _with({"type": "string", "enum": ["Right", "right"]}, "Right")  # from which texts are cut: never the left
    prompt = (
        _or_null({**STRING, "enum": list(info["prompts"])}) if info["prompts"] else {"type": "null", "default": None}
    )
    again = no if (info["index"] or {}).get("rerank") else {**no, "enum": [False]}
    masked = {**TEXT, "pattern": re.escape(info["mask_token"])}
    size = _or_null({"type": "integer", "minimum": 1, "maximum": info["dimension"] or 1})
    choices, alone = info["reads"] == "choices", [] if info["reads"] in ("choices", "question") else [TEXT]
    item = _list(TEXT, minItems=3, maxItems=limits.texts) if choices else _list(TEXT, minItems=1, maxItems=2)
    asked = _object(question=TEXT, context=TEXT)
    tokens = _list({"type": "integer", "minimum": 0, "maximum": info["vocabulary"] - 1}, maxItems=limits.tokens)
    all_schemas = {
        "embed": _object(
            inputs=inputs, normalize=_with(BOOLEAN, True), truncate=cut, prompt_name=prompt, dimensions=size,
            truncation_direction=side,
        ),
        "similarity": _object(
            inputs=_object(source_sentence=TEXT, sentences=texts), truncate=cut, prompt_name=prompt,
            truncation_direction=side,
            parameters=_or_null(_object(truncate=cut, prompt_name=prompt, truncation_direction=side)),
        ),
        "embeddings": _object(
            input=told, model=_or_null(STRING), dimensions=size, user=_or_null(STRING),
            encoding_format=_with({"type": "string", "enum": ["float", "base64"]}, "float"),
        ),
        "fill": _object(inputs=_any(masked, _list(masked, minItems=1, maxItems=limits.texts)), top_k=_with(top, 5)),
        "predict": _object(
            inputs=_any(*alone, item, _list(item, minItems=1, maxItems=limits.texts)), raw_scores=no, truncate=cut,
            truncation_direction=side,
        ),
        "rerank": _object(
            query=TEXT, texts=texts, raw_scores=no, return_text=no, truncate=cut, truncation_direction=side,
        ),
        "ner": _object(inputs=inputs),
        "qa": _object(inputs=_any(asked, _list(asked, minItems=1, maxItems=limits.texts)), top_k=_with(top, 1)),
        "search": _object(
            query=TEXT, k=_with(top, 10), rerank=again,
            ranking=_with({"type": "string", "enum": ["hybrid", "dense", "bm25"]}, "hybrid"),
        ),
        "explain": _object(
            inputs=_any(*alone, item), target=_or_null(TEXT), maps=no,
            baseline=_with({"type": "string", "enum": ["mask", "pad"]}, "mask"),
        ),
        "tokenize": _object(inputs=inputs, add_special_tokens=_with(BOOLEAN, True), prompt_name=prompt),
        "decode": _object(
            ids=_any(tokens, _list(tokens, maxItems=limits.texts)), skip_special_tokens=_with(BOOLEAN, True)
        ),
    }  # fmt: skip
    return {name: schema for name, schema in all_schemas.items() if name in info["abilities"]}


_LABEL = _object(score=NUMBER, label=STRING)
_PLACE: dict[str, Schema] = {"start": INTEGER, "end": INTEGER}
_FILLING = _object(score=NUMBER, token=INTEGER, token_str=STRING, sequence=STRING, text=STRING)
_ENTITY = _object(entity_group=STRING, score=NUMBER, word=STRING, **_PLACE)
_ANSWER = _object(answer=STRING, score=NUMBER, **_PLACE)
_NULLABLE_INTEGER = _any(INTEGER, {"type": "null"})
_TOKEN = _object(id=INTEGER, text=STRING, special=BOOLEAN, start=_NULLABLE_INTEGER, stop=_NULLABLE_INTEGER)
_VECTOR = _any(_list(NUMBER), STRING)
ANSWERS: Mapping[str, Schema] = {
    "embed": _list(_list(NUMBER)),
    "similarity": _list(NUMBER),
    "embeddings": _object(
        object=STRING, model=STRING, usage=_object(prompt_tokens=INTEGER, total_tokens=INTEGER),
        data=_list(_object(object=STRING, index=INTEGER, embedding=_VECTOR)),
    ),
    "fill": _any(_list(_list(_FILLING)), _list(_list(_list(_FILLING)))),
    "predict": _any(_list(_LABEL), _list(_list(_LABEL))),
    "rerank": _list(_object(index=INTEGER, score=NUMBER)),
    "ner": _any(_list(_ENTITY), _list(_list(_ENTITY))),
    "qa": _any(_ANSWER, _list(_ANSWER)),
    "search": _list(_object(id=STRING, score=NUMBER, text=STRING, fields={"type": "object"})),
    "explain": _object(explained=STRING, tokens=_list(STRING), words=_list(STRING), spans=_list(_list(INTEGER))),
    "tokenize": _list(_list(_TOKEN)),
    "decode": _list(STRING),
}  # fmt: skip
SUMMARIES: Mapping[str, str] = {
    "embed": "Vectors of texts", "similarity": "Cosines between a text and others",
    "embeddings": "Vectors of texts, as OpenAI has them", "fill": "The likeliest tokens for every mask",
    "predict": "Labels of texts, the best first", "rerank": "Texts in the order in which they fit a query",
    "ner": "Entities, or words with their tags", "qa": "Answers to questions, in their contexts",
    "search": "Documents of the index", "explain": "Why the model says what it says",
    "tokenize": "Tokens of texts", "decode": "Texts of tokens",
}  # fmt: skip
PATHS: Mapping[str, tuple[str, ...]] = {"embeddings": ("/v1/embeddings", "/embeddings")}  # others: their name
ALL_PATHS = [path for name in ANSWERS for path in PATHS.get(name, (f"/{name}",))]
ERROR = _object(error=STRING, error_type=STRING)
OPENAI_ERROR = _object(error=_object(message=STRING, type=STRING))
_REFUSALS = {"400": "no JSON", "401": "no token, or a wrong one", "403": "a foreign page", "408": "too slow",
             "413": "too much", "415": "no JSON by its header", "422": "not what the schema says, or not to be met",
             "424": "the computation failed", "429": "overloaded: later", "503": "stopping"}  # fmt: skip


def paths_of(name: str) -> tuple[str, ...]:
    return PATHS.get(name, (f"/{name}",))


def document(info: Mapping[str, Any], limits: Limits, *, token: bool) -> dict[str, Any]:
    """The OpenAPI document of a server with this model."""
    paths: dict[str, Any] = {}
    for name, schema in requests_of(info, limits).items():
        for path in paths_of(name):
            content = {"application/json": {"schema": schema}}
            asked = {"requestBody": {"required": True, "content": content}}
            paths[path] = {"post": _operation(path, SUMMARIES[name], ANSWERS[name], token, asked)}
    for path, summary, schema in (
        ("/info", "The model, and what this server offers", {"type": "object"}),
        ("/health", "Whether this server answers", _object(status=STRING)),
        ("/v1/models", "The one model, as OpenAI lists them", _object(object=STRING, data=_list({"type": "object"}))),
    ):
        paths[path] = {"get": _operation(path, summary, schema, token and path != "/health", {})}
    secured = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}} if token else {}
    about = {"title": f"bertworks serve {info['model_id']}", "version": bertworks.__version__}
    return {"openapi": "3.1.0", "info": about, "paths": paths, "components": secured}


def _operation(path: str, summary: str, answer: Schema, token: bool, more: Mapping[str, Any]) -> dict[str, Any]:
    error = OPENAI_ERROR if path.startswith("/v1/") else ERROR
    codes = _REFUSALS if more else {code: _REFUSALS[code] for code in ("401", "403", "503")}
    responses = {"200": ("an answer", answer)} | {code: (text, error) for code, text in codes.items()}
    return {
        "summary": summary,
        "operationId": path.strip("/").replace("/", "_"),
        "responses": {
            code: {"description": text, "content": {"application/json": {"schema": schema}}}
            for code, (text, schema) in responses.items()
        },
        **({"security": [{"token": []}]} if token else {}),
        **more,
    }

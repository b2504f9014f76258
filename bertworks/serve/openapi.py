"""Requests and responses of every path as JSON Schema: the OpenAPI document, and the validation of requests."""

import json
import re
from collections.abc import Mapping
from typing import Any

import bertworks
from bertworks.errors import UsageError
from bertworks.serve.batching import Limits, RequestTooLargeError

Schema = Mapping[str, Any]
_TYPES = {str: "string", list: "array", dict: "object", bool: "boolean", int: "integer", float: "number",
          type(None): "null"}  # fmt: skip
_NAMES = {"string": "a string", "array": "a list", "object": "an object", "integer": "a whole number",
          "number": "a number", "boolean": "true or false", "null": "null"}  # fmt: skip

STRING: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
INTEGER: Schema = {"type": "integer"}
BOOLEAN: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
OBJECT: Schema = {"type": "object"}
TEXT: Schema = {"type": "string", "minLength": 1}


def check(value: Any, schema: Schema, where: str = "the request") -> Any:
    """The value, with the defaults of missing fields.

    Raises:
        UsageError: it does not match the schema, and where.
        RequestTooLargeError: a list is too long.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # in JSON Schema, 1.0 is an integer
    kind = _TYPES[type(value)]
    types, all_options = (kind, "number") if kind == "integer" else (kind,), schema.get("anyOf", (schema,))
    options = [option for option in all_options if option["type"] in types]
    if not options:
        expected = " or ".join(dict.fromkeys(_NAMES[option["type"]] for option in all_options))
        raise UsageError(f"{where} is {_NAMES[kind]}: expected {expected}", hint=schema.get("description"))
    errors: list[UsageError] = []
    for option in options:
        try:
            return _check_content(value, kind, option, where)
        except UsageError as error:
            errors.append(error)
    # The error of the option that fits best is the one deepest inside.
    raise max(errors, key=lambda error: (isinstance(error, RequestTooLargeError), error.what.count("[")))


def _check_content(value: Any, kind: str, schema: Schema, where: str) -> Any:
    """`check` of a value whose type fits."""
    if value not in schema.get("enum", (value,)):
        expected = " or ".join(map(json.dumps, schema["enum"]))
        raise UsageError(f"{where} is {json.dumps(value)[:60]}: expected {expected}")
    match kind:
        case "string":
            if len(value) < schema.get("minLength", 0):
                raise UsageError(f"{where} is empty")
            try:
                value.encode()
            except UnicodeEncodeError as error:
                what = f"{where} holds half a character at {error.start}: a surrogate without its other half"
                raise UsageError(what) from None
        case "integer" | "number":
            least, most = schema.get("minimum", value), schema.get("maximum", value)
            if not least <= value <= most:
                raise UsageError(f"{where} is {value}: expected {least} to {most}")
        case "array":
            if len(value) > (most := schema.get("maxItems", len(value))):
                error_type = RequestTooLargeError if most > 2 else UsageError  # three texts are not large, but no pair
                raise error_type(f"{where} has {len(value):,} items: expected {most:,} at most")
            if len(value) < schema.get("minItems", 0):
                raise UsageError(f"{where} has {len(value)} items: expected {schema['minItems']} or more")
            return [check(item, schema["items"], f"{where}[{number}]") for number, item in enumerate(value)]
        case "object":
            fields = {}
            for name, field in schema["properties"].items():
                if name in value:
                    fields[name] = check(value[name], field, name if where == "the request" else f"{where}.{name}")
                elif "default" in field:
                    fields[name] = field["default"]
                else:
                    raise UsageError(f"{where} has no {name!r}")
            return fields
    return value


def _object(**properties: Schema) -> Schema:
    required = [name for name, field in properties.items() if "default" not in field]
    return {"type": "object", "properties": properties, "required": required}


def _list(items: Schema, **more: int) -> Schema:
    return {"type": "array", "items": items, **more}


def _any(*schemas: Schema, **more: Any) -> Schema:
    return {"anyOf": list(schemas), **more}


def _or_null(schema: Schema) -> Schema:
    return _any(schema, NULL, default=None)


def _with(schema: Schema, default: Any) -> Schema:
    return {**schema, "default": default}


def _choice(*values: str) -> Schema:
    """One of some strings; the default is the first."""
    return {"type": "string", "enum": list(values), "default": values[0]}


def requests_of(info: Mapping[str, Any], limits: Limits) -> dict[str, Schema]:
    """The schema of the request of each ability, for this model."""

    def many(schema: Schema) -> Schema:
        return _list(schema, minItems=1, maxItems=limits.texts)

    def one_or_many(schema: Schema) -> Schema:
        return _any(schema, many(schema))

    # Clients of OpenAI may send token ids of its own tokenizer, which are other tokens here.
    text = {**TEXT, "description": "send no ids of tokens; LangChain: check_embedding_ctx_length=False"}
    top = {"type": "integer", "minimum": 1, "maximum": limits.k}
    no = _with(BOOLEAN, False)
    cut = {"truncate": _or_null(BOOLEAN), "truncation_direction": _choice("Right", "right")}  # never from the left
    prompt = _or_null({**STRING, "enum": list(info["prompts"])}) if info["prompts"] else _with(NULL, None)
    rerank = no if (info["index"] or {}).get("rerank") else {**no, "enum": [False]}
    masked = {**TEXT, "pattern": re.escape(info["mask_token"])}
    size = _or_null({"type": "integer", "minimum": 1, "maximum": info["dimension"] or 1})
    item = _list(TEXT, minItems=1, maxItems=2)
    if info["reads"] == "choices":
        item = _list(TEXT, minItems=3, maxItems=limits.texts)
    single = [] if info["reads"] in ("choices", "question") else [TEXT]
    tokens = _list({"type": "integer", "minimum": 0, "maximum": info["vocabulary"] - 1}, maxItems=limits.tokens)
    schemas = {
        "embed": _object(
            inputs=one_or_many(TEXT), normalize=_with(BOOLEAN, True), prompt_name=prompt, dimensions=size, **cut
        ),
        "similarity": _object(
            inputs=_object(source_sentence=TEXT, sentences=many(TEXT)), prompt_name=prompt, **cut,
            parameters=_or_null(_object(prompt_name=prompt, **cut)),
        ),
        "embeddings": _object(
            input=one_or_many(text), model=_or_null(STRING), dimensions=size, user=_or_null(STRING),
            encoding_format=_choice("float", "base64"),
        ),
        "fill": _object(inputs=one_or_many(masked), top_k=_with(top, 5)),
        "predict": _object(inputs=_any(*single, item, many(item)), raw_scores=no, **cut),
        "rerank": _object(query=TEXT, texts=many(TEXT), raw_scores=no, return_text=no, **cut),
        "ner": _object(inputs=one_or_many(TEXT)),
        "qa": _object(inputs=one_or_many(_object(question=TEXT, context=TEXT)), top_k=_with(top, 1)),
        "search": _object(query=TEXT, k=_with(top, 10), rerank=rerank, ranking=_choice("hybrid", "dense", "bm25")),
        "explain": _object(
            inputs=_any(*single, item), target=_or_null(TEXT), maps=no, baseline=_choice("mask", "pad")
        ),
        "tokenize": _object(inputs=one_or_many(TEXT), add_special_tokens=_with(BOOLEAN, True), prompt_name=prompt),
        "decode": _object(
            ids=_any(tokens, _list(tokens, maxItems=limits.texts)), skip_special_tokens=_with(BOOLEAN, True)
        ),
    }  # fmt: skip
    return {name: schema for name, schema in schemas.items() if name in info["abilities"]}


_LABEL = _object(score=NUMBER, label=STRING)
_SPAN: dict[str, Schema] = {"start": INTEGER, "end": INTEGER}
_FILLING = _object(score=NUMBER, token=INTEGER, token_str=STRING, sequence=STRING, text=STRING)
_ENTITY = _object(entity_group=STRING, score=NUMBER, word=STRING, **_SPAN)
_ANSWER = _object(answer=STRING, score=NUMBER, **_SPAN)
_NULLABLE_INTEGER = _any(INTEGER, NULL)
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
    "search": _list(_object(id=STRING, score=NUMBER, text=STRING, fields=OBJECT)),
    "explain": _object(explained=STRING, tokens=_list(STRING), words=_list(STRING), spans=_list(_list(INTEGER))),
    "tokenize": _list(_list(_TOKEN)),
    "decode": _list(STRING),
}  # fmt: skip
SUMMARIES: Mapping[str, str] = {
    "embed": "Vectors of texts", "similarity": "Cosines between a text and others",
    "embeddings": "Vectors of texts, in the format of OpenAI", "fill": "The most probable tokens for every mask",
    "predict": "Labels of texts, the best first", "rerank": "Texts sorted by relevance to a query",
    "ner": "Entities, or words with their tags", "qa": "Answers to questions, in their contexts",
    "search": "Documents of the index", "explain": "How much each token contributes to a prediction",
    "tokenize": "Tokens of texts", "decode": "Texts of tokens",
}  # fmt: skip
PATHS: Mapping[str, tuple[str, ...]] = {"embeddings": ("/v1/embeddings", "/embeddings")}  # others: their name
ERROR = _object(error=STRING, error_type=STRING)
OPENAI_ERROR = _object(error=_object(message=STRING, type=STRING))
_REFUSALS = {"400": "no JSON", "401": "no token, or a wrong one", "403": "a foreign page", "408": "too slow",
             "413": "too large", "415": "no JSON by its header", "422": "the request does not match the schema",
             "424": "the computation failed", "429": "overloaded: try again later", "503": "stopping"}  # fmt: skip


def paths_of(name: str) -> tuple[str, ...]:
    return PATHS.get(name, (f"/{name}",))


ALL_PATHS = [path for name in ANSWERS for path in paths_of(name)]


def document(info: Mapping[str, Any], limits: Limits, *, token: bool) -> dict[str, Any]:
    """The OpenAPI document of a server with this model."""
    paths: dict[str, Any] = {}
    for name, schema in requests_of(info, limits).items():
        for path in paths_of(name):
            body = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
            paths[path] = {"post": _operation(path, SUMMARIES[name], ANSWERS[name], token, body)}
    for path, summary, schema in (
        ("/info", "The model, and what this server offers", OBJECT),
        ("/health", "Whether this server answers", _object(status=STRING)),
        ("/v1/models", "The model, in the format of OpenAI", _object(object=STRING, data=_list(OBJECT))),
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

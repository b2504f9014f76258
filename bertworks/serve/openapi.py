"""The endpoints as JSON Schema: the validation of requests, and the OpenAPI document."""

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
STRING, NUMBER, INTEGER, BOOLEAN, NULL, OBJECT = (
    {"type": name} for name in ("string", "number", "integer", "boolean", "null", "object")
)
TEXT: Schema = {"type": "string", "minLength": 1}


def check(value: Any, schema: Schema, where: str = "the request") -> Any:
    """The value, with the defaults of missing fields.

    Raises:
        UsageError: it does not match the schema, and where.
        RequestTooLargeError: a list is too long.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # in JSON Schema, 1.0 is an integer
    kind, options, errors = _TYPES[type(value)], schema.get("anyOf", (schema,)), list[UsageError]()
    for option in options:
        try:
            if option["type"] == kind:
                return _check_content(value, option, where)
        except UsageError as error:
            errors.append(error)
    if errors:  # the error of the option that fits best is the one deepest inside
        raise max(errors, key=lambda error: (isinstance(error, RequestTooLargeError), error.what.count("[")))
    expected = " or ".join(dict.fromkeys(option["type"] for option in options))
    raise UsageError(f"{where} has the type {kind}: expected {expected}", hint=schema.get("description"))


def _check_content(value: Any, schema: Schema, where: str) -> Any:
    """`check` of a value whose type fits."""
    if value not in schema.get("enum", (value,)):
        expected = " or ".join(map(json.dumps, schema["enum"]))
        raise UsageError(f"{where} is {json.dumps(value)[:60]}: expected {expected}")
    match value:
        case str():
            if len(value) < schema.get("minLength", 0):
                raise UsageError(f"{where} is empty")
            if surrogate := re.search("[\ud800-\udfff]", value):
                what = f"{where} holds half a character at {surrogate.start()}: a surrogate without its other half"
                raise UsageError(what)
        case int() if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            raise UsageError(f"{where} is {value}: expected {schema['minimum']} to {schema['maximum']}")
        case list():
            if len(value) > (most := schema["maxItems"]):
                error_type = RequestTooLargeError if most > 2 else UsageError  # three texts are not large, but no pair
                raise error_type(f"{where} has {len(value):,} items: expected {most:,} at most")
            if len(value) < schema.get("minItems", 0):
                raise UsageError(f"{where} has {len(value)} items: expected {schema['minItems']} or more")
            return [check(item, schema["items"], f"{where}[{number}]") for number, item in enumerate(value)]
        case dict():
            if missing := [name for name in schema["required"] if name not in value]:
                raise UsageError(f"{where} has no {missing[0]!r}")
            prefix = "" if where == "the request" else f"{where}."
            return {
                name: check(value[name], field, prefix + name) if name in value else field["default"]
                for name, field in schema["properties"].items()
            }
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
_POSITION = _any(INTEGER, NULL)
_TOKEN = _object(id=INTEGER, text=STRING, special=BOOLEAN, start=_POSITION, stop=_POSITION)
_VECTOR = _object(object=STRING, index=INTEGER, embedding=_any(_list(NUMBER), STRING))
_USAGE = _object(prompt_tokens=INTEGER, total_tokens=INTEGER)
_DOCUMENT = _object(id=STRING, score=NUMBER, text=STRING, fields=OBJECT)
_WORDS = {"tokens": _list(STRING), "words": _list(STRING), "spans": _list(_list(INTEGER))}
ENDPOINTS: Mapping[str, tuple[str, Schema]] = {  # name -> what it does, and its answer
    "embed": ("Vectors of texts", _list(_list(NUMBER))),
    "similarity": ("Cosines between a text and others", _list(NUMBER)),
    "embeddings": (
        "Vectors of texts, in the format of OpenAI",
        _object(object=STRING, model=STRING, usage=_USAGE, data=_list(_VECTOR)),
    ),
    "fill": ("The most probable tokens for every mask", _any(*(_list(_list(i)) for i in (_FILLING, _list(_FILLING))))),
    "predict": ("Labels of texts, the best first", _any(_list(_LABEL), _list(_list(_LABEL)))),
    "rerank": ("Texts sorted by relevance to a query", _list(_object(index=INTEGER, score=NUMBER))),
    "ner": ("Entities, or words with their tags", _any(_list(_ENTITY), _list(_list(_ENTITY)))),
    "qa": ("Answers to questions, in their contexts", _any(_ANSWER, _list(_ANSWER))),
    "search": ("Documents of the index", _list(_DOCUMENT)),
    "explain": ("How much each token contributes to a prediction", _object(explained=STRING, **_WORDS)),
    "tokenize": ("Tokens of texts", _list(_list(_TOKEN))),
    "decode": ("Texts of tokens", _list(STRING)),
}
_ERRORS = {"/v1/": _object(error=_object(message=STRING, type=STRING)), "": _object(error=STRING, error_type=STRING)}
_REFUSALS = {"401": "no token, or a wrong one", "403": "a foreign page", "503": "stopping"}
_POST_REFUSALS = {"400": "no JSON", "408": "too slow", "413": "too large", "415": "no JSON by its header",
                  "422": "the request does not match the schema", "424": "the computation failed",
                  "429": "overloaded: try again later"}  # fmt: skip


def paths_of(name: str) -> tuple[str, ...]:
    """The paths of an endpoint."""
    return ("/v1/embeddings", "/embeddings") if name == "embeddings" else (f"/{name}",)


def document(info: Mapping[str, Any], requests: Mapping[str, Schema], *, token: bool) -> dict[str, Any]:
    """The OpenAPI document of a server with this model."""

    def content(description: str, schema: Schema) -> dict[str, Any]:
        return {"description": description, "content": {"application/json": {"schema": schema}}}

    def operation(path: str, summary: str, answer: Schema, request: Schema | None = None) -> dict[str, Any]:
        error = next(schema for prefix, schema in _ERRORS.items() if path.startswith(prefix))
        refusals = _REFUSALS if request is None else _REFUSALS | _POST_REFUSALS
        responses = {code: content(text, error) for code, text in refusals.items()}
        fields: dict[str, Any] = {
            "summary": summary, "operationId": path.strip("/").replace("/", "_"),
            "responses": {"200": content("an answer", answer), **responses},
        }  # fmt: skip
        if token and path != "/health":
            fields["security"] = [{"token": []}]
        if request is None:
            return {"get": fields}
        return {"post": {**fields, "requestBody": {**content("", request), "required": True}}}

    paths = {
        "/info": operation("/info", "The model, and what this server offers", OBJECT),
        "/health": operation("/health", "Whether this server answers", _object(status=STRING)),
        "/v1/models": operation(
            "/v1/models", "The model, in the format of OpenAI", _object(object=STRING, data=_list(OBJECT))
        ),
    } | {
        path: operation(path, *ENDPOINTS[name], request) for name, request in requests.items()
        for path in paths_of(name)
    }  # fmt: skip
    secured = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}} if token else {}
    about = {"title": f"bertworks serve {info['model_id']}", "version": bertworks.__version__}
    return {"openapi": "3.1.0", "info": about, "paths": paths, "components": secured}

"""Describe the endpoints: requests as types of msgspec, answers in answers.toml.

Requests are checked by these types, and the OpenAPI document describes both.

- `parse`, `read`: a body -> the fields of a request, checked
- `invoked_ability`: what a request to the main path, `POST /` and `/invocations`, wants from the
  model. Text Embeddings Inference answers there what the model is for, and clients of Hugging
  Face's pipelines send the requests of all tasks there, if their "model" is the address of a server
- `document`: the OpenAPI document; `documentation`: the same as a page for people, `GET /docs`
"""

import json
import re
from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict, get_args, get_origin

import msgspec
from msgspec import Meta

import bertworks
from bertworks.config import packaged_table
from bertworks.events import JsonObject
from bertworks.reports.svg import render
from bertworks.serve.batching import Limits, RequestError, grant
from bertworks.tasks.registry import TASKS
from bertworks.tasks.task import Task

# Some types depend on the model and are made when the server starts. mypy does not know such types.
_Annotated: Any = Annotated
_List: Any = list
_Literal: Any = Literal
_TypedDict: Any = TypedDict
Type = Any
Info = Mapping[str, Any]  # what the model offers, as in `GET /info`
Text = Annotated[str, Meta(min_length=1)]
# What an endpoint does, its paths and the JSON Schema of its answers; refusals by status.
_TABLE = packaged_table(__file__, "answers.toml")
ENDPOINTS: Mapping[str, Mapping[str, Any]] = _TABLE["endpoints"]
_REFUSALS: Mapping[str, Mapping[str, str]] = _TABLE["refusals"]
INVOCATIONS = "invocations"
# The abilities that can be invoked. If a request does not say which it wants, the model answers
# with the first of those that it has.
INVOKED = ("predict", "ner", "qa", "embed", "fill", "translate", "rerank", "similarity")
# Settings that only requests for vectors have: with them, the mask token in a text is a part of the
# text.
_VECTOR_SETTINGS = ("normalize", "prompt_name", "truncate", "truncation_direction", "dimensions")
_NO_IDS = (
    "send no ids of tokens; LangChain: check_embedding_ctx_length=False; or start the "
    "server with --token-ids"
)
_REFERENCE = "#/components/schemas/{name}"  # to a schema of the document
_EMPTY_TEXT = "Expected `str` of length >= 1"  # in the words of msgspec

_HALF_CHARACTER = re.compile(
    rb"\\ud[89ab]..(?!\\ud[c-f])|(?<!\\ud[89ab]..)\\ud[c-f]", re.IGNORECASE | re.DOTALL
)


def _number(text: str) -> float:
    """Return a number with a decimal point or an exponent: in JSON Schema, 1.0 is an integer."""
    value = float(text)
    return int(value) if value.is_integer() else value


_DECODER = msgspec.json.Decoder(float_hook=_number)


class TruncationDirection(StrEnum):
    """The end of a text from which it is truncated.

    Clients of TEI write a capital letter, and those of Hugging Face a small one; the OpenAPI
    document has only the first spelling, because generated code cannot have both.
    """

    LEFT = "Left"
    RIGHT = "Right"

    @classmethod
    def _missing_(cls, value: object) -> "TruncationDirection | None":
        return next((member for member in cls if member.value.lower() == value), None)


def parse(body: bytes | memoryview) -> Any:
    """Return the value of a body.

    Raises:
        RequestError: it is not JSON.
    """
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        grant(
            not _HALF_CHARACTER.search(body),
            422,
            "a string holds half a character: a surrogate without its other half",
        )
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RequestError(400, f"the body is not JSON in UTF-8: {what[:200]}") from None


def invoked_ability(request: Any, info: Info) -> str:
    """Return the name of the ability that a request to the main path is for.

    The model may lack it.

    The fields of the request decide first, then what the model can do. A masked language model
    gives vectors, or fills masks if `parameters` has `targets` or if every text has the mask token.

    request: a JSON value that is not checked yet.
    """
    fields = request if isinstance(request, dict) else {}
    inputs = fields.get("inputs")
    items = inputs if isinstance(inputs, list) else [inputs]
    first = items[0] if items and isinstance(items[0], dict) else {}
    if "query" in fields and "texts" in fields:
        return "rerank"
    if "source_sentence" in first:
        return "similarity"
    if "question" in first:
        return "qa"
    default = next(name for name in INVOKED if name in info["abilities"])
    if default != "embed" or "fill" not in info["abilities"]:
        return default
    parameters = fields.get("parameters")
    if isinstance(parameters, dict) and parameters.get("targets") is not None:
        return "fill"
    if any(fields.get(name) is not None for name in _VECTOR_SETTINGS):
        return "embed"
    has_masks = all(isinstance(text, str) and info["mask_token"] in text for text in items)
    return "fill" if has_masks else "embed"


def read(value: Any, types: Sequence[Type]) -> JsonObject:
    """Return the fields of a request, with defaults.

    Args:
        value: of the body.
        types: alternatives. See `_best_fitting` for whose error is reported.

    Raises:
        RequestError: it is of no such type, and where.
    """
    errors = []
    for type_ in types:
        try:
            return _fields(msgspec.convert(value, type_))
        except msgspec.ValidationError as error:
            errors.append(str(error))
    what, _, where = _best_fitting(errors, types).partition(" - at ")
    limit = re.search(r"`array` of length <= (\d+)", what)
    # three texts are not too large, but no pair
    status = 413 if limit and int(limit[1]) > 2 else 422
    where = where.strip("`").removeprefix("$").removeprefix(".") or "the request"
    field = where.rpartition(".")[2]
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what, re.DOTALL):
        names = ", ".join(_parameters_of(types[0]).__struct_fields__)
        what = f"{unknown[1]!r:.60} is not known here: expected some of {names or 'no setting'}"
    if what.startswith("Invalid enum value"):
        holder = _parameters_of(types[0]) if where.startswith("parameters.") else types[0]
        choices = _choices(holder.__annotations__[field])
        if field == "prompt_name":
            # tei-client reads the names of the prompts from these words of TEI.
            names = ", ".join(json.dumps(choice) for choice in choices if choice is not None)
            what += f". Available prompts: [{names}]"
        else:
            what += f": expected one of {', '.join(map(json.dumps, choices))}"
    hint = "GET /openapi.json describes all requests"
    if where.startswith("input[") and ("got `int`" in what or "got `array`" in what):
        hint = _NO_IDS
    elif what == _EMPTY_TEXT:
        what = "the text is empty"
        hint = "leave empty texts out"
    elif field == "prompt_name" and what.startswith("Expected `null`"):
        what = "this model has no prompts"
        hint = 'leave "prompt_name" out'
    raise RequestError(status, f"{where}: {what}", hint=hint)


def _best_fitting(errors: Sequence[str], types: Sequence[Type]) -> str:
    """Return the error of the alternative that a request was meant to be.

    It is one in a field that all alternatives share, else of a value of the right type, else the
    one deepest inside.
    """
    first, *alternatives = [type_.__annotations__ for type_ in types]
    differing = [
        name for name in first if any(fields.get(name) != first[name] for fields in alternatives)
    ]

    def fitness(error: str) -> tuple[bool, bool, bool, int]:
        is_setting = "`$.parameters" in error  # all fields before the settings are right then
        is_shared = not any(f" - at `$.{name}" in error for name in differing)
        return is_setting, is_shared and " - at " in error, ", got " not in error, error.count("[")

    return max(errors, key=fitness)


def _fields(request: msgspec.Struct) -> JsonObject:
    """Return the fields of a request.

    The settings in `parameters` count as fields, and take precedence.
    """
    fields: JsonObject = msgspec.structs.asdict(request)
    if settings := fields.get("parameters"):
        fields["parameters"] = {
            name: value
            for name, value in msgspec.structs.asdict(settings).items()
            if value is not None
        }
        fields |= fields["parameters"]
    return fields


def _parameters_of(request: Type) -> Type:
    """Return the type of the field `parameters` of a type of request."""
    return next(
        type_
        for type_ in get_args(request.__annotations__["parameters"])
        if type_ is not type(None)
    )


def _choices(type_: Type) -> list[Any]:
    """Return the values of a type that has only some.

    `null` is left out where it stands for a default.
    """
    if isinstance(type_, type) and issubclass(type_, Enum):
        return [member.value for member in type_]
    origin: Any = get_origin(type_)
    if origin is Literal:
        return list(get_args(type_))
    return [choice for part in get_args(type_) for choice in _choices(part)]


def _object(name: str, **fields: Type) -> Type:
    return _TypedDict(name, fields)


def requests_of(info: Info, limits: Limits) -> dict[str, list[Type]]:
    """Return the types of each ability's requests, for this model: one, or alternatives."""

    def many(item: Type, least: int = 1, most: int = limits.texts) -> Type:
        return _Annotated[_List[item], Meta(min_length=least, max_length=most)]

    def number(least: int, most: int) -> Type:
        return _Annotated[int, Meta(ge=least, le=most)]

    def documented(type_: Type, **schema: Any) -> Type:  # the endpoint checks it
        return _Annotated[type_, Meta(extra_json_schema=schema)]

    top = number(1, limits.k)
    size = (number(1, info["dimension"] or 1) | None, None)
    texts = Text | many(Text)
    yes = (bool, True)
    no = (bool, False)
    optional = (str | None, None)
    query = _Annotated[
        str, Meta(min_length=1, extra_json_schema={"maxLength": limits.query_characters})
    ]
    prompt = (_Literal[(None, *info["prompts"])], None)
    cut = {
        "truncate": (bool | None, None),
        "truncation_direction": (TruncationDirection, TruncationDirection.RIGHT),
    }
    rerank = no if (info["index"] or {}).get("rerank") else (documented(bool, const=False), False)
    largest_beam = info["largest_beam"] or 1
    languages = [None, *info["target_languages"]]
    masked = documented(Text, pattern=re.escape(info["mask_token"]))
    item = many(Text, 3) if info["reads"] == "choices" else many(Text, 1, 2)
    single = item if info["reads"] in ("choices", "question") else Text | item

    def tokens_of(vocabulary: int, least: int = 1) -> Type:
        return many(number(0, vocabulary - 1), least, limits.tokens)

    tokens = tokens_of(info["vocabulary"], 0)
    pair = _object("Pair", source_sentence=Text, sentences=many(Text))
    text_pair = _TypedDict("TextPair", {"text": Text, "text_pair": NotRequired[Text | None]})
    question = _object("Question", question=Text, context=Text)
    predicted = [single, many(item)]
    if info["reads"] != "choices":
        predicted = [single | text_pair, many(item), many(text_pair)]
    id_lists = [texts, tokens_of(info["vocabulary"]), many(tokens_of(info["vocabulary"]))]
    input_types: list[Type] = [texts]
    if info["token_ids"] is not None:
        ids_of_input = tokens_of(info["token_ids"]["vocabulary"])
        input_types += [ids_of_input, many(ids_of_input)]
    # alternatives, because a union has at most one type of list
    requests: dict[str, list[dict[str, Type]]] = {
        "embed": [
            {
                "inputs": inputs,
                "normalize": yes,
                "prompt_name": prompt,
                "dimensions": size,
                "encoding_format": (Literal["float"], "float"),
                **cut,
            }
            for inputs in id_lists
        ],
        "embed_all": [{"inputs": texts, "prompt_name": prompt, **cut}],
        "similarity": [{"inputs": pair, "prompt_name": prompt, **cut}],
        "embeddings": [
            {
                "input": inputs,
                "model": optional,
                "dimensions": size,
                "user": optional,
                "encoding_format": (Literal["float", "base64"], "float"),
                "truncate": (bool | None, None),
            }
            for inputs in input_types
        ],
        "fill": [{"inputs": masked | many(masked), "top_k": (top, 5), "return_text": no}],
        "predict": [{"inputs": inputs, "raw_scores": no, **cut} for inputs in predicted],
        "rerank": [
            {"query": Text, "texts": many(Text), "raw_scores": no, "return_text": no, **cut}
        ],
        "translate": [
            {
                "texts": many(str),
                "beam": (documented(int, minimum=1, maximum=largest_beam) | None, None),
                "length_penalty": (documented(float, minimum=-10, maximum=10) | None, None),
                "max_tokens": (_Annotated[int, Meta(ge=1)] | None, None),
                "no_repeat_ngram": (documented(int, minimum=0) | None, None),
                "target_language": (documented(str | None, enum=languages), None),
                "cut": no,
            }
        ],
        "ner": [{"inputs": texts}],
        "qa": [{"inputs": question | many(question), "top_k": (top, 1)}],
        "search": [
            {
                "query": query,
                "k": (top, 10),
                "rerank": rerank,
                "ranking": (Literal["hybrid", "dense", "bm25"], "hybrid"),
                "matches": no,
            }
        ],
        "explain": [
            {
                "inputs": single,
                "target": (Text | None, None),
                "maps": no,
                "baseline": (Literal["mask", "pad"], "mask"),
            }
        ],
        "tokenize": [{"inputs": texts, "add_special_tokens": yes, "prompt_name": prompt}],
        "decode": [{"ids": ids, "skip_special_tokens": yes} for ids in (tokens, many(tokens, 0))],
    }
    pipelines = _pipeline_settings(info, limits)
    for name in (*INVOKED, "embed_all"):
        # Settings as the pipelines of transformers read them: fields of the request that have a
        # default, and others that can only be here. A setting that is not known is refused, because
        # the answer would be to another question.
        settings = {
            key: field[0] for key, field in requests[name][0].items() if isinstance(field, tuple)
        }
        settings |= pipelines.get(name, {})
        parameters = msgspec.defstruct(
            f"{name}_parameters",
            [(key, type_ | None, None) for key, type_ in settings.items()],
            kw_only=True,
            forbid_unknown_fields=True,
        )
        for fields in requests[name]:
            fields["parameters"] = (parameters | None, None)
        if name == "predict" and info["reads"] in ("text", "text or pair"):
            # In a pipeline a list is several texts, and no pair as in TEI.
            requests[name].append(
                {**requests[name][0], "inputs": many(Text), "parameters": parameters}
            )
    types = dict[str, list[Type]]()
    for name in info["abilities"]:
        types[name] = []
        for n, fields in enumerate(requests[name] if name != INVOCATIONS else ()):
            # a type, or a tuple of type and default
            items = [
                (key, *(field if isinstance(field, tuple) else (field,)))
                for key, field in fields.items()
            ]
            types[name].append(msgspec.defstruct(f"{name}_{n}", items, kw_only=True))
    types[INVOCATIONS] = [type_ for name in INVOKED for type_ in types.get(name, ())]
    return types


def _pipeline_settings(info: Info, limits: Limits) -> dict[str, dict[str, Type]]:
    """Return the settings of the pipelines of transformers that a model can honour.

    The fields of the requests are not among them.
    """
    task = TASKS.get(info["task"])
    functions = Task.pipeline_functions if task is None else task.pipeline_functions
    entities: dict[str, Type] = {"ignore_labels": list[str]}
    if info["entities"]:  # entities of words have the tag of the first token of each word
        strategy = "first" if task is not None and task.reads_words else "simple"
        has_outside = Meta(extra_json_schema={"contains": {"const": "O"}})
        entities = {
            "aggregation_strategy": _Literal[strategy],
            "ignore_labels": _Annotated[list[str], has_outside],
        }
    longest = max(1, info.get("max_input_length") or 1)
    return {
        "predict": {"top_k": _Annotated[int, Meta(ge=1)], "function_to_apply": _Literal[functions]},
        "fill": {"targets": _Annotated[_List[Text], Meta(min_length=1, max_length=limits.k)]},
        "ner": entities,
        "qa": {
            "max_answer_len": _Annotated[int, Meta(ge=1, le=longest)],
            "handle_impossible_answer": bool,
        },
    }


def paths_of(name: str) -> Sequence[str]:
    """Return the paths of an endpoint."""
    paths: Sequence[str] = ENDPOINTS[name].get("paths", (f"/{name}",))
    return paths


def document(info: Info, requests: Mapping[str, list[Type]], *, token: bool) -> JsonObject:
    """Return the OpenAPI document of a server with this model."""
    schemas: JsonObject = {}

    def content(description: str, *alternatives: Mapping[str, Any]) -> JsonObject:
        schema = {"anyOf": alternatives} if len(alternatives) > 1 else alternatives[0]
        return {"description": description, "content": {"application/json": {"schema": schema}}}

    def operation(
        path: str,
        summary: str,
        answers: Sequence[Mapping[str, Any]],
        request: Sequence[Type] = (),
    ) -> JsonObject:
        is_openai = path.startswith("/v1/")
        error = {"$ref": _REFERENCE.format(name="OpenAIError" if is_openai else "Error")}
        refusals = dict(_REFUSALS["all"])
        if request:
            refusals |= _REFUSALS["openai" if is_openai else "post"]
        responses = {"200": content("an answer", *answers)}
        responses |= {code: content(text, error) for code, text in refusals.items()}
        name = re.sub(r"[{}]", "", path).strip("/").replace("/", "_") or "root"
        fields: JsonObject = {"summary": summary, "operationId": name, "responses": responses}
        if path.endswith("{model}"):
            # Not an enumeration of the one name: another name is not an invalid request, but not
            # there.
            schema = {"type": "string", "examples": [info["model_id"]]}
            fields["parameters"] = [
                {"name": "model", "in": "path", "required": True, "schema": schema}
            ]
            responses["404"] = content("another model", error)
        if token and path not in ("/health", "/ping"):
            fields["security"] = [{"token": []}]
        if request:
            types, named = msgspec.json.schema_components(request, ref_template=_REFERENCE)
            schemas.update(named)
            fields["requestBody"] = {**content("", *types), "required": True}
        return {"post" if request else "get": fields}

    paths = {path: operation(path, **fields) for path, fields in _TABLE["others"].items()}
    for name, types in requests.items():
        answers = ENDPOINTS[name]["answers"]
        if name == INVOCATIONS:
            answers = [
                answer
                for ability in INVOKED
                if ability in requests
                for answer in ENDPOINTS[ability]["answers"]
            ]
        for path in paths_of(name):
            paths[path] = operation(path, ENDPOINTS[name]["summary"], answers, types)
    page = {"description": "HTML", "content": {"text/html": {"schema": {"type": "string"}}}}
    error = {"$ref": _REFERENCE.format(name="Error")}
    fields = {
        "summary": "The page for a browser",
        "operationId": "page",
        "responses": {"200": page, "403": content(_REFUSALS["all"]["403"], error)},
    }
    paths["/"] = paths.get("/", {}) | {"get": fields}
    while names := _references([paths, schemas]) - schemas.keys():
        schemas.update({name: _TABLE["schemas"][name] for name in sorted(names)})
    secured = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}} if token else {}
    about = {"title": f"bertworks serve {info['model_id']}", "version": bertworks.__version__}
    return {
        "openapi": "3.1.0",
        "info": about,
        "paths": paths,
        "components": {"schemas": schemas, **secured},
    }


def _references(value: Any) -> set[str]:
    """Return the names of the schemas to which a part of the document refers."""
    reference = _REFERENCE.format(name=r"(\w+)")
    # A quotation mark within a text of the document, such as the name of a prompt, is escaped.
    return set(re.findall(rf'"\$ref": "{reference}"', json.dumps(value)))


def documentation(document: Mapping[str, Any]) -> bytes:
    """Return the page of an OpenAPI document, as HTML in UTF-8.

    It has every path, what it reads and what it answers. It loads nothing else than the style sheet
    of the server's page, and needs no script.
    """
    template = Path(__file__).with_name("documentation.html")
    dumps = partial(json.dumps, indent=2, ensure_ascii=False)
    page = render(template.read_text(encoding="utf-8"), document=document, dumps=dumps)
    return page.encode("utf-8", "backslashreplace")

"""`bertworks fill` and `bertworks evaluate`: what a model answers, and how well."""

import sys
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from bertworks.cli.console import emit, table
from bertworks.cli.options import Documents, Inputs, Json, TextColumn, Texts

Model = Annotated[str, Parameter(help="A model folder.")]


def fill(
    model: Model,
    texts: Texts,
    /,
    *,
    count: Annotated[int, Parameter(name=["--count", "-k"], validator=Number(gte=1), help="Answers per [MASK].")] = 5,
    as_json: Json = False,
) -> None:
    """Fill the blanks of a text: the likeliest words for every [MASK]."""
    from bertworks.use import fill as room

    lines = (line for text in texts for line in (sys.stdin.read().splitlines() if text == "-" else [text]))
    for answers in room.fill(model, lines, k=count):
        if as_json:
            emit(answers)
            continue
        for mask in answers:
            print(
                table((f"{answer['score']:6.1%}  {answer['token_str']}", answer["sequence"]) for answer in mask) + "\n"
            )


def mlm(
    model: Model,
    inputs: Inputs,
    /,
    *,
    text_column: TextColumn = None,
    documents: Documents = "auto",
    as_json: Json = False,
) -> None:
    """Masked-word loss, accuracy and perplexity, and next-sentence accuracy, on masks that are the same every time."""
    from bertworks.use.evaluate import evaluate_mlm

    result = evaluate_mlm(model, inputs, text_column=text_column, documents=documents)
    if as_json:
        emit(result)
    else:
        print(table((name, f"{v:,.0f}" if v == int(v) and v > 1 else f"{v:.4f}") for name, v in result.items()))

"""The parser of the command line: help without parsing, and the table of its modules."""

import inspect
from dataclasses import fields

import pytest

import bertworks as bw
from bertworks.cli import evaluation, inference, models, parser, training
from bertworks.cli.main import main
from bertworks.cli.parser import make_app
from tests.cli.test_start_page import parsers_page


def test_the_table_of_modules_has_every_command():
    for module in (training, inference, models):
        assert list(parser._functions(module)) == parser.MODULES[module.__name__.rpartition(".")[2]]
    assert parser.MODULES["evaluation"] == ["evaluate"]
    assert "task" in parser._functions(evaluation)


@pytest.mark.parametrize(
    "words", [["finetune"], ["import"], ["evaluate"], ["evaluate", "mlm"]], ids=" ".join
)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_is_printed_without_parsing(
    words: list[str], option: str, capsys: pytest.CaptureFixture[str]
):
    make_app(shows_all=False)([*words, option])
    page = capsys.readouterr().out
    assert main([*words, option]) == 0
    assert capsys.readouterr().out == page
    assert main([words[0], "--no-such-option", option]) == 0  # these words are parsed
    assert capsys.readouterr().out.startswith(f"Usage: bertworks {words[0]} ")


@pytest.mark.parametrize(
    "words", [["finetune"], ["import"], ["evaluate"], ["evaluate", "mlm"]], ids=" ".join
)
def test_a_parser_of_one_command_writes_the_same_help(words: list[str]):
    page = parsers_page(words, words[0], width=100)
    assert page == parsers_page(words, width=100)
    assert words[-1] in page


@pytest.mark.parametrize(
    ("group", "function"),
    [
        (training.PredictOptions, bw.predict_file),
        (inference.EmbedOptions, bw.embed_file),
        (inference.IndexOptions, bw.index_file),
        (inference.GenerateOptions, bw.generate),
        (evaluation.ProbeOptions, bw.evaluate_probe),
        (evaluation.TranslationOptions, bw.evaluate_translation),
    ],
)
def test_a_public_function_has_the_options_of_its_command_as_keywords(
    group: type, function: object
):
    parameters = inspect.signature(function).parameters  # type: ignore[arg-type]
    for field in fields(group):
        parameter = parameters[field.name]
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert parameter.default == field.default

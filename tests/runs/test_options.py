"""The options of trainings: public functions have each of them as a keyword."""

import inspect
from dataclasses import fields

import bertworks as bw
from bertworks.io.options import ReadOptions
from bertworks.runs.options import FinetuneOptions, LabelledOptions, PretrainOptions


def keywords(function: object) -> set[str]:
    return set(inspect.signature(function).parameters)  # type: ignore[arg-type]


def names(options: type) -> set[str]:
    return {field.name for field in fields(options)}  # type: ignore[arg-type]


def test_finetune_has_a_keyword_for_each_option() -> None:
    further = {"data", "dev", "read", "output", "device", "overwrite", "progress", "log_to"}
    further |= {"epochs", "learning_rate", "batch_size", "max_length", "windows"}
    assert keywords(bw.finetune) == names(FinetuneOptions) | further


def test_check_file_has_a_keyword_for_each_option_of_labelled_data() -> None:
    assert keywords(bw.check_file) >= names(LabelledOptions) | {"read"}


def test_options_keep_their_defaults_in_the_request_and_in_the_function() -> None:
    request = bw.make_finetune_request([{"text": "a", "label": "b"}])
    parameters = inspect.signature(bw.finetune).parameters
    for field in fields(FinetuneOptions):
        expected = "stable" if field.name == "recipe" else field.default
        assert getattr(request, field.name) == expected
        assert parameters[field.name].default == expected
    assert request.read == ReadOptions()


def test_pretrain_has_a_keyword_for_each_option() -> None:
    further = {"inputs", "output", "text_column", "documents", "encoding"}
    further |= {"device", "overwrite", "workers", "verify", "log_to"}
    assert keywords(bw.pretrain) == names(PretrainOptions) | further
    parameters = inspect.signature(bw.pretrain).parameters
    for field in fields(PretrainOptions):
        assert parameters[field.name].default == field.default

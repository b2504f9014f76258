"""Measure how far a reader travels: what a call runs of the package, how often it opens its input,
how many functions the request of a fine-tuning passes through, how many places know the names of
tasks.

    python tools/routes.py [--static] [--modules] [--json]

The routes are public functions, called once, each in a fork of a process that has imported every
module of the package. Models are tiny and have random weights. Modules, functions, calls and opens:
see `tracing.Trace`. Where a route begins and ends stands at its function here. Figures of the
server differ by a few calls from run to run.

The other figures are counted in the text of the package (`--static`: these alone, without importing
it): see `request_walk` for the request, `names` for tasks and refused names, and `size` for tokens.
"""

import argparse
import gzip
import importlib
import json
import os
import pkgutil
import random
import signal
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # also where a test loads this file by its path

import names
import request_walk
import size
from tracing import Recorder, Trace, traced

ROOT = size.ROOT
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
# so that routes are the same on all machines
SETTINGS: dict[str, Any] = {"device": "cpu", "precision": "fp32"}
REFUSED = "refused"
NUM_ROWS = 30
NUM_DOCUMENTS = 60
GOOD = "good great fine lovely happy".split()
BAD = "bad awful poor nasty sad".split()
FILLER = (
    "the film was a story of men and dogs in this town with some music that they heard last night"
).split()
RECIPE = """
title = "Tiny"

[encoder]
vocab_size = 200
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 2
max_position_embeddings = 64

[sampling]
format = "full_sentences"

[optimizer]
learning_rate = 1e-3

[train]
precision = "fp32"

[[train.phases]]
num_steps = 10
batch_size = 8
sequence_length = 32
"""


@dataclass(frozen=True)
class Route:
    """A call that is traced.

    name: what it does, in the table.
    run: calls it with the recorder, which it starts and stops, and the folder of `Materials`.
    data: the name of the input file whose opens are counted; "": there is none.
    is_standard_input: whether the function reads the input as standard input.
    counts_opens_alone: whether only the opens stand in the table, because the rest is that of the
        route before.
    """

    name: str
    run: Callable[[Recorder, Path], None]
    data: str = ""
    is_standard_input: bool = False
    counts_opens_alone: bool = False


@dataclass(frozen=True)
class Measurement:
    """A row of the table."""

    name: str
    value: float | str


class FirstLossError(BaseException):
    """Ends a training at its first loss. No handler of errors in the package may catch it."""


def sentence(generator: random.Random, words: list[str]) -> str:
    """Seven words in random order, of which one is among `words`."""
    sample = [*generator.choices(FILLER, k=6), generator.choice(words)]
    generator.shuffle(sample)
    return " ".join(sample)


def write_data(folder: Path) -> None:
    """Write the inputs: a row without a label, labelled rows of two classes, raw text."""
    generator = random.Random(0)
    (folder / "row.csv").write_text("text\nthe film was good\n")
    rows = ["text,label"]
    for number in range(NUM_ROWS):
        is_positive = number % 2 == 1
        rows.append(
            f"{sentence(generator, GOOD if is_positive else BAD)},{'pos' if is_positive else 'neg'}"
        )
    (folder / "rows.csv").write_text("\n".join(rows) + "\n")
    for name in ("row.csv", "rows.csv"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
    documents = []
    for _ in range(NUM_DOCUMENTS):
        sentences = [sentence(generator, GOOD + BAD).capitalize() + "." for _ in range(6)]
        documents.append(" ".join(sentences) + "\n")
    (folder / "corpus.txt").write_text("\n".join(documents))


def write_models(folder: Path) -> None:
    """Write a tokenizer, a BERT of two layers with random weights, a classifier that is trained for
    one epoch, shards of the raw text, and a recipe for them."""
    import torch

    import bertworks as bw

    words = " ".join([*GOOD, *BAD, *FILLER])
    tokenizer, _ = bw.train_vocabulary([words] * 5, bw.VocabularyConfig(size=200))
    tokenizer.model_max_length = 64
    tokenizer.save(folder / "tokenizer")
    config = bw.EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    bw.save_model(
        folder / "model", bw.PretrainingModel(config).state_dict(), config, tokenizer, card="tiny"
    )
    request = bw.make_finetune_request(
        folder / "rows.csv",
        model=str(folder / "model"),
        method="full",
        validation="split",
        epochs=1,
    )
    finish(bw.finetune_events(folder / "classifier", request, device="cpu", compares=False))
    bw.write_shards(bw.CorpusReader([folder / "corpus.txt"]), tokenizer, folder / "shards")
    recipe = RECIPE.replace("vocab_size = 200", f"vocab_size = {tokenizer.vocab_size}")
    (folder / "recipe.toml").write_text(recipe)


def finish(events: Iterable[Any]) -> None:
    """Take all events of a function that works while it yields them."""
    for _ in events:
        pass


def predict(data: str) -> Callable[[Recorder, Path], None]:
    """From the call of `predict_file` to its end. data: the name of the input, or "-"."""

    def run(recorder: Recorder, folder: Path) -> None:
        import bertworks as bw

        path = data if data == "-" else str(folder / data)
        recorder.start()
        finish(bw.predict_file(folder / "classifier", path, "out.csv", **SETTINGS))
        recorder.stop()

    return run


def open_model(recorder: Recorder, folder: Path) -> None:
    """From the folder of a classifier to a `Predictor`."""
    import bertworks as bw

    recorder.start()
    bw.Predictor(folder / "classifier", **SETTINGS)
    recorder.stop()


def predict_text(recorder: Recorder, folder: Path) -> None:
    """From a text to its prediction by an open `Predictor`."""
    import bertworks as bw

    predictor = bw.Predictor(folder / "classifier", **SETTINGS)
    recorder.start()
    predictor.predict(["the film was good"])
    recorder.stop()


def embed(recorder: Recorder, folder: Path) -> None:
    """From the call of `embed_file` to its end."""
    import bertworks as bw

    recorder.start()
    finish(bw.embed_file(folder / "model", str(folder / "row.csv"), "out.npy", **SETTINGS))
    recorder.stop()


def finetune(data: str) -> Callable[[Recorder, Path], None]:
    """From the options of a fine-tuning to its first loss: torch then computes gradients for the
    first time."""

    def run(recorder: Recorder, folder: Path) -> None:
        import torch

        import bertworks as bw

        def stop(*arguments: Any, **options: Any) -> None:
            recorder.stop()
            raise FirstLossError

        torch.autograd.backward = stop
        path = data if data == "-" else str(folder / data)
        try:
            recorder.start()
            request = bw.make_finetune_request(
                path, model=str(folder / "model"), precision=SETTINGS["precision"]
            )
            finish(bw.finetune_events("out", request, device=SETTINGS["device"]))
        except FirstLossError:
            return
        raise RuntimeError("the fine-tuning computed no loss")

    return run


def prepare(recorder: Recorder, folder: Path) -> None:
    """From a file of raw text and a tokenizer to shards."""
    import bertworks as bw

    tokenizer = bw.Tokenizer.load(folder / "tokenizer")
    recorder.start()
    bw.write_shards(bw.CorpusReader([folder / "corpus.txt"]), tokenizer, "shards")
    recorder.stop()


def compute_losses(recorder: Recorder, folder: Path) -> None:
    """From a folder of shards to the losses of the first batch of a pre-training, by a network that
    exists."""
    import numpy as np

    import bertworks as bw
    from bertworks.runs.pretrain_job import phase_batches
    from bertworks.training.recipe import load_recipe

    recipe = load_recipe(str(folder / "recipe.toml"))
    network = bw.PretrainingModel.of(recipe)
    tokenizer = bw.Tokenizer.load(folder / "tokenizer")
    plans = Path("plans")
    plans.mkdir()
    recorder.start()
    shards = bw.Shards.open(folder / "shards")
    documents = np.arange(len(shards.documents) - 1)
    batches = phase_batches(shards, documents, recipe, tokenizer, plans, 0, 1)
    network(batches(0)[0])
    recorder.stop()


def serve_prediction(recorder: Recorder, folder: Path) -> None:
    """From the bytes of a request for /predict to those of its answer, by a server that has
    answered one before."""
    from bertworks.serve.server import serve

    answers: list[Any] = []

    def predict(url: str) -> None:
        body = json.dumps({"inputs": ["the film was good"]}).encode()
        request = urllib.request.Request(
            f"{url}predict", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            answers.append(json.load(response))

    def use(url: str) -> None:
        try:
            predict(url)
            recorder.start()
            predict(url)
            recorder.stop()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    for event in serve(folder / "classifier", port=0, **SETTINGS):
        if "url" in event.fields:
            threading.Thread(target=use, args=(event.fields["url"],)).start()
    if len(answers) != 2:
        raise RuntimeError("the server did not answer")


ROUTES = (
    Route("predict one csv row", predict("row.csv"), "row.csv"),
    Route("predict one csv.gz row", predict("row.csv.gz"), "row.csv.gz", counts_opens_alone=True),
    Route(
        "predict one row of standard input",
        predict("-"),
        "row.csv",
        is_standard_input=True,
        counts_opens_alone=True,
    ),
    Route("open a model", open_model),
    Route("predict one text with an open model", predict_text),
    Route("embed one csv row", embed, "row.csv"),
    Route("csv of 30 rows to the first loss", finetune("rows.csv"), "rows.csv"),
    Route(
        "csv.gz of 30 rows to the first loss",
        finetune("rows.csv.gz"),
        "rows.csv.gz",
        counts_opens_alone=True,
    ),
    Route(
        "standard input of 30 rows to the first loss",
        finetune("-"),
        "rows.csv",
        is_standard_input=True,
        counts_opens_alone=True,
    ),
    Route("raw text of 60 documents to shards", prepare, "corpus.txt"),
    Route("shards to the losses of a batch", compute_losses),
    Route("served /predict", serve_prediction),
)


def import_everything(package: Any) -> None:
    """Import all modules of the package and look up its public names, so that no route does. A
    module whose library is not installed is left out."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            if (error.name or "").partition(".")[0] == package.__name__:
                raise
            print(f"left out: {module.name} ({error})", file=sys.stderr)
    for name in package.__all__:
        getattr(package, name)


def trace_routes(folder: Path, routes: Iterable[Route] = ROUTES) -> dict[str, Trace | None]:
    """The trace of each route, by its name; None: the function refuses this input. folder: an empty
    one, for files."""
    # the package of this checkout, even if another one is installed
    sys.path.insert(0, str(ROOT.parent))
    import bertworks as bw

    import_everything(bw)
    package = Path(bw.__file__).resolve().parent
    write_data(folder)
    traced(lambda _: write_models(folder), package, folder / "models")
    traces: dict[str, Trace | None] = {}
    for number, route in enumerate(routes):
        working_folder = folder / f"route-{number}"

        def run(
            recorder: Recorder, route: Route = route, refusal: Path = working_folder / REFUSED
        ) -> None:
            try:
                route.run(recorder, folder)
            except bw.UsageError as error:
                recorder.stop()
                refusal.write_text(str(error))

        trace = traced(
            run,
            package,
            working_folder,
            input_file=folder / route.data if route.data else None,
            is_standard_input=route.is_standard_input,
        )
        traces[route.name] = None if (working_folder / REFUSED).exists() else trace
    return traces


def quantities_of_routes(routes: Iterable[Route] = ROUTES) -> Iterator[tuple[Route, str]]:
    """The routes, and what of each stands in the table, in its order."""
    for route in routes:
        if not route.counts_opens_alone:
            yield from ((route, quantity) for quantity in ("modules", "functions", "calls"))
        if route.data:
            yield route, "opens"


def traced_measurements(traces: dict[str, Trace | None]) -> list[Measurement]:
    """The rows of the table about routes."""
    measurements = []
    for route, quantity in quantities_of_routes():
        trace = traces[route.name]
        value: float | str = REFUSED
        if trace is not None:
            value = len(trace.modules) if quantity == "modules" else getattr(trace, quantity)
        measurements.append(Measurement(f"{route.name}: {quantity}", value))
    return measurements


def static_measurements(root: Path = ROOT) -> list[Measurement]:
    """The rows of the table that are counted in the text of a package. Nothing is imported."""
    walk = request_walk.walk_request(root)
    places = names.task_names(root)
    total = size.sizes_of_packages(root)[size.TOTAL]
    lines = size.lines_of_other_files(root)
    return [
        Measurement("request of a fine-tuning: modules", len(walk.modules)),
        Measurement("request of a fine-tuning: times handed on", walk.hand_overs),
        Measurement("request of a fine-tuning: climbs", walk.climbs),
        Measurement("request of a fine-tuning: names", len(walk.names)),
        Measurement("comparisons and match cases with a task's name, outside tasks/", len(places)),
        Measurement("modules with such a comparison", len({place.module for place in places})),
        Measurement("refused names of variables and parameters", len(names.refused_names(root))),
        Measurement("modules of the package", total.modules),
        Measurement("Python tokens of the package", total.tokens),
        Measurement("Python lines of code of the package", total.code_lines),
        Measurement("Python tokens per line of code", total.tokens_per_line),
        *(Measurement(f"lines of {kind}", count) for kind, count in lines.items()),
    ]


def route_measurement_names() -> list[str]:
    """The names of the rows of the table about routes, in its order."""
    return [f"{route.name}: {quantity}" for route, quantity in quantities_of_routes()]


def table(measurements: list[Measurement]) -> str:
    """The measurements as a table in Markdown."""
    rows = ["| measure | now |", "|---|---|"]
    for row in measurements:
        value = f"{row.value:,}" if isinstance(row.value, int | float) else row.value
        rows.append(f"| {row.name} | {value} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--static", action="store_true", help="only count in the text of the package"
    )
    parser.add_argument(
        "--modules", action="store_true", help="also print the modules that each route enters"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    traces: dict[str, Trace | None] = {}
    if not arguments.static:
        os.environ.update(ENVIRONMENT)  # before torch is imported
        with tempfile.TemporaryDirectory(prefix="bertworks-routes-") as folder:
            traces = trace_routes(Path(folder).resolve())
    measurements = [*(traced_measurements(traces) if traces else []), *static_measurements()]
    modules = (
        {name: trace.modules for name, trace in traces.items() if trace}
        if arguments.modules
        else {}
    )
    if arguments.json:
        content: dict[str, Any] = {row.name: row.value for row in measurements}
        print(json.dumps({"now": content, **({"modules": modules} if modules else {})}, indent=2))
        return
    print(table(measurements))
    for name, entered in modules.items():
        print(f"\n{name}:\n  " + "\n  ".join(entered))


if __name__ == "__main__":
    main()

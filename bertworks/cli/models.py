"""The commands `serve`, `export`, `import`, `convert`, `push`, `doctor` and `demo`."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

import bertworks as bw
from bertworks.cli import console
from bertworks.cli.console import with_json_and_urls
from bertworks.errors import UsageError
from bertworks.events import Event


def serve(
    model: str,
    /,
    *,
    task: console.JointTask = None,
    host: str = "127.0.0.1",
    port: Annotated[int, console.at_least(0, ["--port", "-p"], most=65535)] = 8080,
    index: Path | None = None,
    api_key: str | None = None,
    max_batch_tokens: Annotated[int, console.at_least(1)] = 4096,
    max_concurrent_requests: Annotated[int, console.at_least(1)] = 512,
    patience: Annotated[float, console.at_least(0)] = 30.0,
    token_ids: Literal["own", "cl100k_base", "o200k_base"] | None = None,
    windows: int = 0,
    examples: Path | None = None,
    device: str = "auto",
    precision: console.InferencePrecision = "auto",
) -> Iterator[console.Result]:
    """Serve a model over HTTP: a page, and an API for clients of Text Embeddings Inference and
    OpenAI embeddings.

    GET /info lists what the model can do. Logs are JSON lines on standard error. On
    SIGTERM and Ctrl-C, requests in progress are finished, and waiting ones get status 503.

    Args:
        host: Address to listen on. Addresses beyond this machine need an API key of at least 16
            characters.
        port: Port to listen on; 0: any free port.
        index: The folder of an index to search. Default: none.
        api_key: API key that requests need, or several, one per line. Prefer the variable
            BERTWORKS_API_KEY, which other users cannot see. Default: none.
        max_batch_tokens: Tokens per batch.
        max_concurrent_requests: Maximum number of requests at a time; more are rejected. Clients
            get equal shares.
        patience: Maximum seconds that a request may wait for the model; one that would wait longer
            is rejected with status 429. Up to 32 requests with 32 texts each of one client always
            wait.
        token_ids: How to read token ids that clients send to /v1/embeddings. own: ids of this
            model; cl100k_base, o200k_base: ids of OpenAI. Their table is read from the cache of
            tiktoken. Default: such requests are rejected.
        windows: For embeddings: read longer texts in up to this many windows, and average their
            embeddings; 0: truncate them. A fine-tuned model uses the number of its training, an
            index its own.
        examples: Text file with up to 20 texts, one per line, that the page offers to click on; a
            tab separates the two texts of a pair. Default: none, because training data is
            private.

    Examples:
        bertworks serve MODEL
        bertworks serve minilm --index INDEX --port 9000
    """
    from bertworks.serve.batching import Limits
    from bertworks.serve.server import serve as run

    for event in run(
        bw.task_folder(model, task),
        host=host,
        port=port,
        index=index,
        token=api_key or os.environ.get("BERTWORKS_API_KEY", ""),
        device=device,
        precision=precision,
        limits=Limits(
            batch_tokens=max_batch_tokens, requests=max_concurrent_requests, patience=patience
        ),
        token_ids=token_ids,
        windows=windows,
        examples=examples,
    ):
        yield {"kind": event.kind, **event.fields}, event.text


def export(
    model: str,
    /,
    *,
    output: Annotated[
        Path,
        console.output_file(help="The output folder; with --format word2vec the output file."),
    ],
    task: console.JointTask = None,
    format: Literal["onnx", "word2vec"] = "onnx",
    encoder: console.Flag = False,
    int8: console.Flag = False,
    data: str | None = None,
    subfolder: console.Flag = False,
    overwrite: console.Overwrite = False,
) -> Iterable[Event]:
    """Export a model to ONNX and compare it with the original, or static vectors to word2vec text.

    `predict`, `evaluate task` and `translate` read the folder too. The outputs are the logits of a
    fine-tuned model, the logits over the vocabulary of a pre-trained model, or the hidden states of
    an encoder. A translator becomes three files: its encoder, its decoder, and its decoder for one
    more token.

    Args:
        format: The file format. word2vec: the output is a text file with a line for each word.
        encoder: Export the hidden states only, without the head.
        int8: 8-bit weights: smaller, faster, slightly less accurate.
        data: Labelled rows to evaluate, compare and time both models on. Default: none.
        subfolder: Write the ONNX files into the subfolder onnx, where transformers.js, optimum and
            sentence-transformers look for them. Default: next to the tokenizer.

    Examples:
        bertworks export MODEL -o EXPORTED
        bertworks export VECTORS -o vectors.txt --format word2vec
    """
    folder = bw.task_folder(model, task)
    return bw.export(
        folder,
        output,
        format=format,
        encoder=encoder,
        int8=int8,
        data=data,
        subfolder=subfolder,
        overwrite=overwrite,
    )


def import_(
    checkpoint: Path,
    options: Path | None = None,
    /,
    *,
    output: console.Output,
    config: Path | None = None,
    vocabulary: Annotated[Path | None, Parameter(name="--vocab")] = None,
    lowercase: Annotated[bool | None, Parameter(name="--uncased", negative="--cased")] = None,
    gelu: Literal["tanh", "exact"] = "tanh",
    leave_out: console.Repeatable = None,
    overwrite: console.Overwrite = False,
) -> Iterable[Event]:
    """Convert a TensorFlow checkpoint of BERT, an ELMo or a word2vec text to a model folder.

    Neither TensorFlow nor AllenNLP is needed. The other options are for checkpoints of BERT.

    Args:
        checkpoint: A TensorFlow checkpoint, such as bert_model.ckpt, or its folder; the published
            weights of an ELMo in HDF5 (pip install "bertworks[elmo]"); or a word2vec text.
        options: The options.json of an ELMo.
        config: The configuration file. Default: bert_config.json next to the checkpoint.
        vocabulary: The vocabulary file. Default: vocab.txt next to the checkpoint.
        lowercase: Lowercase the text. Default: detected from the names, else from the vocabulary.
        gelu: tanh: the approximation in Google's code; exact: the exact function.
        leave_out: A variable to leave out, or a pattern with *. Repeatable.

    Examples:
        bertworks import bert_model.ckpt -o MODEL
        bertworks import elmo_weights.hdf5 options.json -o MODEL
    """
    return bw.import_checkpoint(
        checkpoint,
        output,
        config=config,
        vocabulary=vocabulary,
        lowercase=lowercase,
        gelu=gelu,
        leave_out=leave_out or [],
        elmo_options=options,
        overwrite=overwrite,
    )


def convert(
    model: str,
    /,
    *,
    output: console.Output,
    language: str = "",
    task: console.JointTask = None,
    accept_changes: console.Flag = False,
    trust_pickle: console.Flag = False,
    positions: Annotated[int | None, console.at_least(1)] = None,
    static: Annotated[int | None, console.at_least(1)] = None,
    text: console.Repeatable = None,
    train: console.Repeatable = None,
    train_texts: Annotated[int | None, console.at_least(1)] = None,
    overwrite: console.Overwrite = False,
) -> Iterable[Event]:
    """Convert a model to a clean folder: safetensors, configuration, tokenizer, model card.

    Args:
        model: A model folder, old or new, a name on the hub, or a TensorFlow checkpoint of
            Google's.
        language: For a multilingual model: the language of all texts that the new folder will read,
            e.g. en.
        accept_changes: Accept weights that another program has written into a folder of bertworks.
        trust_pickle: Read weights in pytorch_model.bin, of a model that has no others: in a process
            with limits, by torch's restricted loader, and dense tensors only.
        positions: Let the model read texts of this many tokens: its table of positions gets more
            rows, which repeat the learned ones. Train it with long texts afterwards.
            Default: as many as before.
        static: Make static vectors of this many numbers, one for each token of the vocabulary; or
            shorten static vectors. Default: neither.
        text: With --static, general text for the frequencies of tokens: a file, folder or glob.
            Repeatable. Default: the text of --train, else the order of the vocabulary.
        train: Text on which static vectors are trained: they are fitted to the vectors that the
            model has for it. A file, folder or glob; repeatable. The same command continues after
            an interruption.
        train_texts: Maximum number of texts of a few sentences that are drawn from --train.
            Default: 30,000, which one core reads with minilm in about five minutes.

    Examples:
        bertworks convert OLD-MODEL -o MODEL
        bertworks convert minilm -o STATIC --static 256 --text wikipedia.txt
    """
    return bw.convert(
        bw.task_folder(model, task),
        output,
        language=language,
        accept_changes=accept_changes,
        trust_pickle=trust_pickle,
        positions=positions,
        static=static,
        text=text or (),
        train=train or (),
        train_texts=train_texts,
        overwrite=overwrite,
    )


def push(
    model: Path,
    repository: str,
    /,
    *,
    dry_run: console.Flag = False,
    private: console.Flag = False,
    licence: Annotated[str | None, Parameter(name="--license")] = None,
) -> Iterable[Event]:
    """Upload a model folder to the Hugging Face hub: only weights, configuration, tokenizer and
    card.

    Args:
        model: A model folder.
        repository: owner/name on the Hugging Face hub.
        dry_run: Show the files and the card, but upload nothing.
        private: Make a new repository private.
        licence: License for the model card, such as mit or apache-2.0. Default: as in the folder.

    Examples:
        bertworks push MODEL owner/name --dry-run
        bertworks push MODEL owner/name --private --license mit
    """
    return bw.push(model, repository, dry_run=dry_run, private=private, licence=licence)


def slurm(
    *words: Annotated[str, Parameter(allow_leading_hyphen=True)],
    nodes: Annotated[int, console.at_least(1, most=console.MOST_PROCESSES)] = 1,
    gpus: Annotated[int, console.at_least(0, most=console.MOST_PROCESSES)] = 0,
    processes: Annotated[int | None, console.at_least(1, most=console.MOST_PROCESSES)] = None,
    cpus: Annotated[int | None, console.at_least(1, most=console.MOST_PROCESSES)] = None,
    time: str = "1d",
) -> console.Result:
    """Print a script for Slurm's sbatch that runs a training, on one machine or several.

    The job saves a minute before its time limit and is put into the queue again until the training
    is done.

    Args:
        words: The training: pretrain or finetune with its arguments.
        nodes: Number of machines.
        gpus: GPUs on each machine.
        processes: Processes on each machine. Default: one per GPU, or one.
        cpus: CPUs on each machine. Default: 8 for each process.
        time: Time limit of the job, e.g. 8h or 2d.

    Examples:
        bertworks slurm pretrain SHARDS -o MODEL --gpus 8 --time 8h > job.sh
        bertworks slurm finetune train.csv -o MODEL --nodes 2 --gpus 4
    """
    from bertworks.cli.training import finetune, pretrain
    from bertworks.runs.launch import batch_script

    if not {*words[:1]} & {"pretrain", "finetune"}:
        raise UsageError(
            "a job is a training: pretrain or finetune",
            hint="bertworks slurm pretrain SHARDS -o MODEL",
        )
    app = App(print_error=False, exit_on_error=False)
    for command in (pretrain, finetune):
        app.command(with_json_and_urls(command))
    app.parse_args(words)  # a wrong option is found now, and not when the job starts
    count = processes or max(1, gpus)
    text = batch_script(
        words, nodes=nodes, processes=count, gpus=gpus, cpus=cpus or 8 * count, time=time
    )
    return {"script": text}, text.rstrip()


def doctor(*, as_json: console.Json = False) -> int:
    """Report this machine's hardware, the settings chosen for it, and whether training works. Takes
    a few seconds.

    Examples:
        bertworks doctor
        bertworks doctor --json
    """
    checks = []
    for check in bw.doctor():
        checks.append(check)
        if not as_json:
            hint = f"\n{'':16}hint: {check.hint}" if check.hint else ""
            console.out(f"{'  ' if check.good else '! '}{check.name:<14}{check.text}{hint}")
    if as_json:
        console.emit([asdict(check) for check in checks])
    return 0 if all(check.good for check in checks) else 1


def demo(
    *,
    output: Annotated[Path, console.output_file()] = Path("demo"),
    minutes: Annotated[float, console.at_least(0.5)] = 3.5,
) -> Iterable[Event]:
    """Pre-train and fine-tune small BERTs on the English text that Python includes, and show the
    results.

    Nothing is downloaded.

    Args:
        output: The output folder.
        minutes: Minutes for the vocabulary and the pre-training.

    Examples:
        bertworks demo
        bertworks demo -o DEMO --minutes 1
    """
    from bertworks.demo.tour import demo as run

    return run(output, minutes=minutes)

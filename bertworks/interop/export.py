"""Write a model as an ONNX file for other programs, a translator as three.

Static vectors become a word2vec text (`word2vec`).

The model is traced; the files are compared with the model and timed before they appear.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from timeit import Timer
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

import bertworks
from bertworks.batching.batch import Batch, collate, token_budget_batches
from bertworks.batching.examples import Example, Target
from bertworks.checkpoints.generation_config import GENERATION_FILE
from bertworks.checkpoints.hf_config import architecture_of, component_names
from bertworks.checkpoints.model_card import fill_template, with_tokenizer_note
from bertworks.checkpoints.model_files import (
    EXPORTED,
    EXPORTED_BELOW,
    EXPORTED_TRANSLATOR,
    weights_sha256,
)
from bertworks.checkpoints.model_folder import save_settings
from bertworks.checkpoints.sentence_transformers import module_files
from bertworks.checkpoints.storage import read_json
from bertworks.checkpoints.task_config import (
    exported_settings,
    output_layer,
    put_temperature_into_weights,
    save_task,
)
from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import items
from bertworks.errors import UsageError, expect, quoted, require
from bertworks.evaluation.evaluate import evaluate_task
from bertworks.events import Event, JsonObject
from bertworks.inference.engine import BATCH_TOKENS, LazyModel, OnnxModel, open_model
from bertworks.inference.onnx_translation import OnnxTranslationNetwork
from bertworks.inference.predictor import Predictor, copy_files, schema_for
from bertworks.inference.translation import (
    DecodingRules,
    TranslationNetwork,
    Translator,
    beam_search,
    open_network,
)
from bertworks.interop.trace import (
    OPSET,
    ExportedNetwork,
    outputs_of,
    write_onnx,
    write_translator,
)
from bertworks.interop.word2vec import export_word2vec
from bertworks.io.atomic_write import (
    local_path,
    refuse_not_empty,
    remove_leftovers,
    replacing_folder,
    write_json,
    write_text,
)
from bertworks.io.inputs import IssueCounter
from bertworks.models.transformer import Encoder
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.registry import TASKS
from bertworks.tasks.scores import format_metrics
from bertworks.tasks.settings import TaskConfig
from bertworks.training.objectives import PretrainingModel

# The largest difference of logits; of numbers beyond 100, as a regression may give, a millionth.
LARGEST_DIFFERENCE = 1e-4
# Batches that are compared: sequences, tokens of the longest.
_SHAPES = ((1, 1), (1, 2), (1, 16), (2, 7), (3, 33), (8, 64), (5, 128), (2, 512))
# Batches that are timed without data.
_TIMED_SHAPES = ((1, 20), (16, 48), (4, 200))
_ROWS = 256  # rows of the data that are timed
_ROUNDS = 3  # rounds of the timing
_MOST_STEPS = 50  # tokens of a translation that is timed
_LAST_STEPS = 2  # tokens of a compared translation that are computed one by one
_RECORD = "export.json"  # what was exported, and the hash of the files

_OnnxNetwork = OnnxModel | OnnxTranslationNetwork
ExportFormat = Literal["onnx", "word2vec"]


class _Source(NamedTuple):
    """The model to export.

    predictor, task: of a fine-tuned model, whose temperature is in the weights of `network`.
    translator: over the same weights, of a model with a decoder.
    """

    name: str
    model: LazyModel
    network: ExportedNetwork
    predictor: Predictor | None = None
    task: TaskConfig | None = None
    translator: Translator | None = None

    @property
    def files(self) -> Sequence[str]:
        """The names of the files to write."""
        return EXPORTED if self.translator is None else EXPORTED_TRANSLATOR

    def logits(self, batch: Batch) -> Tensor:
        """Return the outputs of the network for a batch."""
        return outputs_of(self.network, batch)


def export(
    model: str | Path,
    output: str | Path,
    *,
    format: ExportFormat = "onnx",
    encoder: bool = False,
    int8: bool = False,
    data: str | Path | None = None,
    subfolder: bool = False,
    overwrite: bool = False,
) -> Iterator[Event]:
    """Export a model to a folder with one ONNX file, of a translator three, config and tokenizer.

    Static vectors become a file, a word2vec text, see `export_word2vec`.

    `Predictor`, `predict_file` and `Translator` read it. The files are compared with the model
    before the folder appears. A folder that holds this export already, as after an interruption at
    the very end, stays as it is.

    Args:
        model: fine-tuned, pre-trained (its masked LM is exported), an encoder alone, or a
            translator with a Transformer; static vectors for "word2vec".
        format: "onnx" or "word2vec". The other options are for "onnx".
        encoder: export only the hidden states, without the head.
        int8: 8-bit weights and matrix products: smaller and faster; the differences are reported.
        data: labelled rows to evaluate and time both models on.
        subfolder: write onnx/model.onnx next to the tokenizer, where transformers.js, optimum and
            sentence-transformers look for it; else model.onnx. The same for the three files of a
            translator.
        overwrite: replace an output that exists.

    Raises:
        UsageError: the output exists and is not this export; data for a model without the head of a
            task; the encoder of a translator.
        BertworksError: no such model, or an unsupported one; the file differs from the model; onnx
            or onnxruntime is not installed.
    """
    if format == "word2vec":
        has_options = encoder or int8 or subfolder or data is not None
        expect(
            not has_options,
            "--encoder, --int8, --data and --subfolder are for ONNX files",
            hint="leave them out; or leave --format word2vec out",
        )
        yield from export_word2vec(model, output, overwrite=overwrite)
        return
    target = local_path(output)
    source = _open(model, encoder_only=encoder)
    if data is not None and source.predictor is None:
        hint = "leave it out"
        if source.translator is not None:
            hint += f"; then bertworks evaluate translation {quoted(target)} SOURCE TARGET"
        raise UsageError(
            "this model has no head of a task to evaluate on data", where=data, hint=hint
        )
    results: JsonObject = {"output": str(target), "format": format, "int8": int8}
    settings = {"config": str(source.model.config), "task": str(source.task), "data": str(data)}
    request = {**source.model.fingerprint, **settings, "encoder": encoder, "int8": int8}
    if source.translator is not None:
        request["decoding"] = str(source.translator.decoding)
    places = list(source.files)
    if subfolder:
        places = [f"{EXPORTED_BELOW}/{name}" for name in places]
        # Other exports have no such entry, also those of earlier versions.
        request["place"] = places[0]
    record = read_json(target / _RECORD) if (target / _RECORD).is_file() else {}
    if record.get("request") == request and record.get("sha256") == weights_sha256(target):
        yield Event(
            "note", f"{target} already holds the complete export: there is nothing to write"
        )
        remove_leftovers(target.parent, name=target.name)
    else:
        refuse_not_empty(target, overwrite, [model])
        with replacing_folder(target) as folder:
            paths = [folder / place for place in places]
            paths[0].parent.mkdir(exist_ok=True)
            is_encoder = isinstance(source.network, Encoder)
            config = source.model.config
            head: JsonObject
            if source.task:
                head = exported_settings(source.task, config)
                save_task(source.task, folder)
            else:
                names = ["encoder."] if is_encoder else ["encoder.", "lm_head."]
                head = {"architectures": [architecture_of(names, config)]}
            max_length = source.task.max_length if source.task else None
            save_settings(folder, config, source.model.tokenizer, head, max_length=max_length)
            if is_encoder:  # the files that say how vectors are made
                copy_files(source.model.folder, folder, module_files(source.model.folder))
            if source.translator is not None:
                settings_files = ["config.json", GENERATION_FILE]
                copy_files(
                    source.model.folder,
                    folder,
                    [name for name in settings_files if (source.model.folder / name).is_file()],
                )
            _write(source, paths)
            exported = _opened(source, paths)
            results["largest_difference"] = _compare(source, exported, results["output"])
            longest = min(512, config.max_position_embeddings)
            yield Event(
                "note",
                f"onnxruntime agrees on {len(_SHAPES)} shapes, from 1 x 1 to 2 x {longest}: "
                f"differences up to {results['largest_difference']:.1e}",
            )
            if any(map(config.is_local, range(config.num_hidden_layers))):
                yield Event(
                    "note",
                    "local layers have a mask over all pairs of tokens in the file: it computes "
                    "the same, but its memory grows with the square of the length of a text",
                )
            batches = _batches(source, data)
            quantized = ""
            if int8:
                _quantize(source, paths)
                exported = _opened(source, paths)
                expected = _outputs(source.logits, batches)
                computed = _outputs(partial(_exported_logits, exported), batches)
                differences = (expected - computed).abs()
                cost = {
                    "largest": float(differences.max()),
                    "mean": float(differences.mean()),
                    "deviation": float(expected.std()),
                }
                results["cost"] = cost
                quantized = f" With 8-bit weights they differ by up to {cost['largest']:.3f}."
                yield Event(
                    "note",
                    f"int8: outputs differ by up to {cost['largest']:.3f}, by {cost['mean']:.4f} "
                    f"on average, and have a standard deviation of {cost['deviation']:.3f}",
                    cost,
                )
            timers = [Timer(run) for run in _runs(source, exported, batches)]
            rounds = [[timer.timeit(1) for timer in timers] for _ in range(_ROUNDS)]
            torch_seconds, onnx_seconds = map(min, zip(*rounds))
            results |= {"seconds": onnx_seconds, "seconds_ours": torch_seconds}
            count = sum(batch.layout.num_sequences for batch in batches)
            yield Event(
                "note",
                f"speed on {count} texts: ONNX Runtime {onnx_seconds:.2f} s, PyTorch "
                f"{torch_seconds:.2f} s (ONNX {torch_seconds / onnx_seconds:.2f}x)",
            )
            if data is not None:
                texts = []
                for name, evaluated in (("figures_ours", source.model.folder), ("figures", folder)):
                    evaluation = evaluate_task(evaluated, data, device="cpu", precision="fp32")
                    figures = results[name] = evaluation["figures"]
                    texts.append(format_metrics(figures, positive=evaluation["positive"]))
                before_export, after = texts
                yield Event("note", f"{data}: {after}; before the export {before_export}")
            values = {
                "name": source.name,
                "opset": OPSET,
                "version": bertworks.__version__,
                "difference": results["largest_difference"],
                "quantized": quantized,
            }
            card = _card(source, exported, places, values)
            write_text(folder / "README.md", with_tokenizer_note(card, source.model.tokenizer))
            write_json(folder / _RECORD, {"request": request, "sha256": weights_sha256(folder)})
    results["bytes"] = sum((target / place).stat().st_size for place in places)
    written = ", ".join(str(target / place) for place in places)
    yield Event("done", f"{written}: {results['bytes'] / 1e6:,.1f} MB", results)


def _open(model: str | Path, *, encoder_only: bool) -> _Source:
    """Return the network to export.

    Raises:
        UsageError: an exported model, or weights in a subfolder; the encoder of a translator.
        BertworksError: a network that ONNX programs cannot run.
    """
    source = open_model(model, "cpu", translates=True, embeds=True)
    require(
        source.config.kind != "static" or source.has_task,
        "these are static vectors: there is no network that ONNX programs could run",
        source.folder,
        f"bertworks export {quoted(source.folder)} -o vectors.txt --format word2vec",
    )
    expect(
        not source.exported,
        "this is an exported model",
        where=source,
        hint="use the model that it was made from",
    )
    source.refuse_nested()
    name = Path(model).resolve().name
    if source.config.decoder is not None:
        return _open_translator(name, source, encoder_only=encoder_only)
    require(
        source.config.kind != "elmo",
        "this model reads the spelling of whole words, which programs for exported models do not "
        "pass to a network",
        source,
        "export another encoder, such as minilm",
    )
    components = component_names(source.state)
    require(
        "recurrent" not in components or encoder_only,
        "the head of this model is an LSTM: programs for exported models do not support it",
        source,
        "export a model that was fine-tuned with another recipe; or only the hidden states: "
        "--encoder",
    )
    if not encoder_only and components & {"classifier", "span"}:
        predictor = Predictor(source, precision="fp32")
        compares = predictor.description.vectors in ("pair", "cosine")
        require(
            not compares,
            "this model compares the vectors of two texts: programs for exported models read "
            "one at a time",
            source,
            "export only the hidden states: --encoder",
        )
        network = predictor.network
        task = predictor.description
        layer, task = put_temperature_into_weights(output_layer(network.state_dict()), task)
        network.load_state_dict(layer, strict=False, assign=True)
        return _Source(name, source, network, predictor, task)
    if not encoder_only and "lm_head" in components:
        pretrained = partial(PretrainingModel, objectives={"masked_lm": 1.0})
        return _Source(name, source, source.network(pretrained))
    return _Source(name, source, source.network(Encoder, "encoder."))


def _open_translator(name: str, source: LazyModel, *, encoder_only: bool) -> _Source:
    """Return the network of a translator to export.

    Raises as `_open`.
    """
    require(
        source.config.kind == "transformer",
        "the encoder and the decoder of this model are LSTMs: exported decoders read and return "
        "the keys and values of attention, which LSTMs do not have",
        source,
        "train a Transformer: bertworks pretrain --parallel SOURCE TARGET -o MODEL --recipe "
        "transformer-tiny",
    )
    expect(
        not encoder_only,
        "the encoder of a translator is not exported without its decoder",
        where=source,
        hint=f"leave --encoder out: {EXPORTED_TRANSLATOR[0]} gives its hidden states",
    )
    translator = Translator(source, precision="fp32")
    return _Source(name, source, open_network(source), translator=translator)


def _write(source: _Source, paths: Sequence[Path]) -> None:
    """Write the ONNX files of a model."""
    if source.translator is None:
        write_onnx(paths[0], source.network)
    else:
        assert isinstance(source.network, PretrainingModel)
        write_translator(paths, source.network)


def _opened(source: _Source, paths: Sequence[Path]) -> _OnnxNetwork:
    """Return the network of the files that were written for a model."""
    if source.translator is None:
        return OnnxModel(paths[0])
    return OnnxTranslationNetwork(paths, source.model.config)


def _exported_logits(exported: _OnnxNetwork, batch: Batch) -> Tensor:
    """Return what `_Source.logits` returns, computed by onnxruntime.

    The decoder for one more token computes the last tokens of the longest translations.
    """
    if isinstance(exported, OnnxModel):
        return exported.logits(batch)
    assert batch.token_type_ids is not None
    is_source = batch.token_type_ids == 0
    source = exported.encode(batch.input_ids[is_source], batch.layout.select(is_source))
    layout = batch.layout.select(~is_source)
    tokens = layout.pad(batch.input_ids[~is_source])
    first = max(1, layout.max_seqlen - _LAST_STEPS)
    cache = exported.start(source, 1, _LAST_STEPS)
    parts = [tokens[:, :first], *tokens[:, first:].split(1, 1)]
    return layout.unpad(torch.cat([exported.decode(part, source, cache) for part in parts], 1))


def _runs(
    source: _Source, exported: _OnnxNetwork, batches: Sequence[Batch]
) -> list[Callable[[], object]]:
    """Return what is timed: the batches by torch, and by onnxruntime.

    Of a translator they are greedy translations, which do not end before their limit.
    """
    if source.translator is None or isinstance(exported, OnnxModel):
        computed = source.logits, partial(_exported_logits, exported)
        return [partial(_outputs, compute, batches) for compute in computed]
    start = source.translator.start_id
    networks = source.translator.network, exported
    return [partial(_translate, network, batches, start) for network in networks]


def _translate(
    network: TranslationNetwork | OnnxTranslationNetwork, batches: Sequence[Batch], start: int
) -> None:
    """Translate the sources of batches, each token after the one before it."""
    for batch in batches:
        assert batch.token_type_ids is not None
        is_source = batch.token_type_ids == 0
        layout = batch.layout.select(is_source)
        lengths = layout.cu_seqlens.diff().tolist()
        sources = [ids.tolist() for ids in batch.input_ids[is_source].split(lengths)]
        limits = [min(length, _MOST_STEPS) for length in lengths]
        beam_search(network, sources, start, [], limits, DecodingRules(beam=1))


def _card(
    source: _Source, exported: _OnnxNetwork, places: Sequence[str], values: Mapping[str, object]
) -> str:
    """Return the text of README.md.

    Args:
        places: of the files, within the folder.
        values: what the cards of all kinds of models name.
    """
    if source.translator is not None:
        template = Path(__file__).with_name("exported_translator.md")
        return fill_template(template, files=places, start=source.translator.start_id, **values)
    assert isinstance(exported, OnnxModel)
    d = source.task
    windows = ""
    if d is not None and d.windows > 1:
        windows = (
            f" It reads a text of more than {d.max_length} tokens in up to {d.windows} windows, "
            "which overlap by half, and takes the mean of their logits; so should other programs."
        )
    return fill_template(
        Path(__file__).with_name("exported.md"),
        file=places[0],
        windows=windows,
        kind=f"a BERT fine-tuned for {source.task.task}" if source.task else "a BERT",
        shape=exported.session.get_inputs()[0].shape,
        outputs=" and ".join(
            f"`{value.name}` {value.shape}" for value in exported.session.get_outputs()
        ),
        **values,
    )


def _random_batch(
    source: _Source, generator: np.random.Generator, sequences: int, length: int
) -> Batch:
    """Return random sequences: one of the length, the others shorter.

    The targets are those of the head. Of a translator they are pairs, sources of these lengths and
    translations, which have at least two tokens.
    """
    longest = min(length, source.model.config.max_position_embeddings)
    is_pooled = isinstance(source.network, TaskModel) and source.network.task.pooled
    examples = []
    for n in [longest, *generator.integers(max(1, longest // 4), longest + 1, sequences - 1)]:
        positions = np.zeros(1, np.int64) if is_pooled else np.arange(n)
        target = Target(positions, np.zeros(len(positions), np.int64))
        ids = generator.integers(0, source.model.config.vocab_size, n)
        types = np.sort(generator.integers(0, 2, n))
        name = "task"
        if source.translator is not None:
            name = "translation"
            translation = generator.integers(0, source.model.config.vocab_size, max(2, n))
            types = np.repeat([0, 1], [n, len(translation)])
            ids = np.concatenate([ids, translation])
            target = Target(np.arange(n, len(ids)), translation)
        examples.append(Example(ids, types, {name: target}))
    return collate(examples)


def _batches(source: _Source, data: str | Path | None) -> list[Batch]:
    """Return the batches to time: rows of the data, or random sequences of usual lengths."""
    if data is None or source.predictor is None:
        generator = np.random.default_rng(0)
        return [_random_batch(source, generator, *shape) for shape in _TIMED_SHAPES]
    reader = RowReader(data)
    schema, _ = schema_for(reader, source.predictor.task, ())
    rows = islice(items(reader, schema, TASKS, left_out=IssueCounter()), _ROWS)
    units = [features.unit for features in source.predictor.reading(rows)]
    return list(token_budget_batches(units, BATCH_TOKENS))


def _compare(source: _Source, exported: _OnnxNetwork, where: str) -> float:
    """Return the largest difference between the model and the exported one on eight shapes.

    Raises:
        BertworksError: it is too large.
    """
    generator = np.random.default_rng(0)
    largest = 0.0
    for shape in _SHAPES:
        batch = _random_batch(source, generator, *shape)
        expected = source.logits(batch)
        difference = float((expected - _exported_logits(exported, batch)).abs().max())
        what = (
            f"what was exported differs from the model by {difference:.1e} on {shape[0]} x "
            f"{shape[1]} tokens"
        )
        agrees = difference <= LARGEST_DIFFERENCE * max(1.0, float(expected.abs().max()) / 100)
        require(
            agrees,
            f"{what}; it is not kept",
            where,
            "report this, with the versions that `bertworks doctor` shows",
        )
        largest = max(largest, difference)
    return largest


def _quantize(source: _Source, paths: Sequence[Path]) -> None:
    """Replace the weights of the files by 8-bit weights, with one scale per column."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    for path in paths:
        # The LM head reads the embedding matrix too: a quantized Gather would be converted back at
        # each call. The encoder of a translator is in a file without it.
        has_lm_head = isinstance(source.network, PretrainingModel)
        has_lm_head = has_lm_head and path.name != EXPORTED_TRANSLATOR[0]
        kinds = ["MatMul"] if has_lm_head else ["MatMul", "Gather"]
        small = path.with_suffix(".int8")
        # One bit less: products of two of them overflow on processors without instructions for 8
        # bits (AVX2).
        quantize_dynamic(
            path, small, kinds, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8
        )
        small.replace(path)


def _outputs(compute: Callable[[Batch], Tensor], batches: Sequence[Batch]) -> Tensor:
    """Return the outputs of all batches in a row."""
    return torch.cat([compute(batch).flatten() for batch in batches])

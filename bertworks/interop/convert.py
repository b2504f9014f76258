"""Converts a model to a clean model folder, and reports what it leaves out.

Sources: a Hugging Face folder, old or new, with any head; a folder of bertworks; a TensorFlow
checkpoint of Google's; the published weights of an ELMo. The values of the weights stay, except
that the output layer of a folder of an earlier version is divided by the temperature of its task.
Names, files and tokenizer become those of today. Of a folder that has its weights in a pickle, the
tokenizer files are copied as they are. With `static` the new folder has static vectors instead of
the network; with `positions` the network reads longer texts.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from bertworks.checkpoints import hf_config, hf_mapping
from bertworks.checkpoints.allennlp import is_hdf5, load_elmo
from bertworks.checkpoints.generation_config import GENERATION_FILE
from bertworks.checkpoints.model_card import (
    fill_template,
    loading_code,
    shape_of,
    with_encoder_use,
    without_division,
)
from bertworks.checkpoints.model_files import check_vocabulary, has_weights
from bertworks.checkpoints.model_folder import Model, ModelFolder, save_model
from bertworks.checkpoints.pickled_weights import (
    PICKLE_FILES,
    PickledWeights,
    find_pickle,
    read_pickled_weights,
)
from bertworks.checkpoints.resolve import (
    MODEL_DOCUMENTS,
    NETWORK_FILES,
    is_model_name,
    place_of_links,
    resolve_model,
    split_files,
)
from bertworks.checkpoints.sentence_transformers import (
    MODEL_FILE,
    SentenceTransformerSettings,
    module_files,
    module_pickles,
)
from bertworks.checkpoints.task_config import TASK_FILE, task_settings
from bertworks.checkpoints.tensorflow import find_checkpoint, load_checkpoint
from bertworks.checkpoints.vector_modules import vector_network
from bertworks.errors import (
    BertworksError,
    UsageError,
    expect,
    explain_os_errors,
    quoted,
    require,
    some_names,
)
from bertworks.events import Event, JsonObject
from bertworks.inference.engine import open_model
from bertworks.inference.predictor import copy_files
from bertworks.interop.positions import lengthen
from bertworks.interop.word2vec import is_word2vec, read_word2vec
from bertworks.io.atomic_write import (
    local_path,
    refuse_not_empty,
    remove,
    replacing_folder,
    temporary_sibling,
    write_text,
)
from bertworks.io.inputs import as_path
from bertworks.runs.static_distillation import StaticVectors, distil, shorten
from bertworks.runs.static_training import USUAL_TEXTS, TeacherVectors
from bertworks.tasks.registry import task_of
from bertworks.tasks.settings import TaskConfig
from bertworks.text.tokenizer_folder import TOKENIZER_FILES

_READ = (*NETWORK_FILES, TASK_FILE)  # files that are read, or that repeat what is in those
_HEADS = {"classifier", "span", "recurrent"}


@dataclass(frozen=True)
class _Source:
    """A model to be written.

    head: the settings of config.json besides those of the encoder.
    folder: the folder from which `files` are copied; files: names in it.
    sentence: how the vectors are made, for sentence-transformers.
    tokenizer_files: files of the source that are copied; (): the files are written anew.
    card: the template of the model card.
    """

    model: Model
    head: JsonObject
    notes: list[str]
    folder: Path = Path()
    files: Sequence[str] = ()
    task: TaskConfig | None = None
    sentence: SentenceTransformerSettings | None = None
    tokenizer_files: Sequence[Path] = ()
    card: str = "converted.md"


def convert(
    source: str | Path,
    output: str | Path,
    *,
    language: str = "",
    accept_changes: bool = False,
    trust_pickle: bool = False,
    positions: int | None = None,
    static: int | None = None,
    text: Sequence[str | Path] = (),
    train: Sequence[str | Path] = (),
    train_texts: int | None = None,
    overwrite: bool = False,
) -> Iterator[Event]:
    """Write a model as a clean folder.

    It has config.json, model.safetensors (float32), the tokenizer files and README.md.

    The same source gives the same bytes (except the name in a new model card). A converted folder
    converts to itself. Iterate to the end to finish the work.

    Args:
        source: a model folder, a name as for `fill`, or a TensorFlow checkpoint: bert_model.ckpt,
            or its folder.
        output: a folder that does not exist, or is empty.
        language: of all texts that the new folder will read, of a model with several.
        accept_changes: accept weights and a task that are not those that bertworks wrote into the
            source.
        trust_pickle: read weights in pytorch_model.bin, if there are no others. It is a pickle,
            which could run a program: a child process with limits reads it with torch's restricted
            loader, and only dense tensors are accepted. The tokenizer files are copied as they are.
        positions: tokens of the longest text: the table of positions gets more rows, see
            `bertworks.interop.positions`. None: it stays.
        static: numbers of a vector: the new folder has a vector for each token instead of the
            network, see `bertworks.runs.static_distillation`; or the source has static vectors,
            and the new ones are shorter. None: the network stays.
        text: raw text from which the frequencies of tokens are counted, for `static`; (): they are
            counted in `train`, or guessed from the order of the vocabulary.
        train: raw text: the static vectors are fitted to the vectors of the source for texts of it,
            see `bertworks.runs.static_training`. An interrupted command continues. (): nothing is
            trained.
        train_texts: how many texts of a few sentences are drawn from `train`, at most; None:
            `bertworks.runs.static_training.USUAL_TEXTS`.
        overwrite: replace the content of the output folder.

    Raises:
        BertworksError: the source cannot be read, is not a BERT, or has unknown content; it has
            changed since bertworks wrote it; weights in a pickle that is not trusted, or holds
            something else than tensors; a text without a token of the vocabulary.
        UsageError: the output folder is not empty; more numbers than the vectors of the source
            have; positions for a network without a table of them, or no more than it has.
    """
    expect(
        positions is None or static is None,
        "--positions is for the network, and --static replaces it by vectors without positions",
        hint="leave one of them out",
    )
    expect(
        static is not None or not text,
        "--text is for the frequencies of static vectors",
        hint="add --static 256, or leave --text out",
    )
    expect(
        static is not None or not train,
        "--train trains static vectors",
        hint="add --static 256, or leave --train out; a network is trained by pretrain or finetune",
    )
    expect(
        train_texts is None or train,
        "--train-texts says how much of the text of --train is read",
        hint="add --train CORPUS, or leave --train-texts out",
    )
    # A folder with a config.json is a model folder, whatever else it holds.
    is_folder = is_model_name(source) or (as_path(source, "model") / "config.json").exists()
    if not is_folder and find_checkpoint(Path(source)) is not None:
        expect(not language, "checkpoints of Google's have no languages", where=source)
        expect(
            not trust_pickle,
            "Google's checkpoints are not pickles",
            where=source,
            hint="leave --trust-pickle out",
        )
        expect(
            static is None,
            "static vectors are made of a model folder, not of a checkpoint",
            where=source,
            hint=f"in two steps: bertworks convert {quoted(source)} -o MODEL; bertworks convert "
            f"MODEL -o STATIC --static {static}",
        )
        expect(
            positions is None,
            "the table of positions of a model folder gets more rows, not that of a checkpoint",
            where=source,
            hint=f"in two steps: bertworks convert {quoted(source)} -o MODEL; bertworks convert "
            f"MODEL -o LONG --positions {positions}",
        )
        yield from import_checkpoint(source, output, overwrite=overwrite)
        return
    output = local_path(output)
    refuse_not_empty(output, overwrite, [source])
    name = str(source) if is_model_name(source) else Path(source).resolve().name
    if static is not None:
        expect(
            not trust_pickle and not accept_changes,
            "--static reads neither pickles nor changed weights",
            where=source,
            hint=f"in two steps: bertworks convert {quoted(source)} -o MODEL "
            f"{'--trust-pickle' if trust_pickle else '--accept-changes'}; bertworks convert MODEL "
            f"-o STATIC --static {static}",
        )
        yield from _convert_to_static(
            name, output, source, language, static, text, train, train_texts
        )
        return
    path = resolve_model(source, trust_pickle=trust_pickle)
    folder = ModelFolder(path, language, accepts_changes=accept_changes)
    pickle = None if has_weights(folder.within) else find_pickle(folder.within)
    pickles = [] if pickle is None else [pickle]
    pickles += module_pickles(path)
    if trust_pickle and pickles:
        expect(
            positions is None,
            "--positions reads no pickles",
            where=source,
            hint=f"in two steps: bertworks convert {quoted(source)} -o MODEL --trust-pickle; "
            f"bertworks convert MODEL -o LONG --positions {positions}",
        )
        yield from _convert_pickles(name, output, folder, pickles, language)
        return
    if trust_pickle:
        yield Event("note", "the weights are not in a pickle: nothing has to be trusted")
    content = _read_folder(folder)
    if positions is not None:
        model, notes = lengthen(content.model, positions, path)
        notes += _shorter_limits(content)
        content = replace(content, model=model, notes=[*notes, *content.notes])
    yield from _write(name, output, content)


def _shorter_limits(source: _Source) -> list[str]:
    """Return a note for each limit of length that stays when a network gets more positions."""
    notes = []
    if source.task is not None:
        notes.append(
            f"its task still cuts texts at {source.task.max_length:,} tokens, as it was trained: "
            "finetune --set max_length trains it with longer ones"
        )
    if source.sentence is not None and source.sentence.max_length is not None:
        notes.append(
            f"embed still cuts texts at {source.sentence.max_length:,} tokens, as "
            "sentence_bert_config.json says: embed --max-length reads longer ones"
        )
    return notes


def _convert_to_static(
    name: str,
    output: Path,
    source: str | Path,
    language: str,
    dimensions: int,
    text: Sequence[str | Path],
    train: Sequence[str | Path],
    train_texts: int | None,
) -> Iterator[Event]:
    """Write the vocabulary of a model as static vectors; shorter ones, if it has these already.

    Args:
        name: of the source, for the model card.
        source, language, text, train, train_texts: as for `convert`.
        dimensions: numbers of a vector.
    """
    model = open_model(source, "auto", language, embeds=True)
    if model.config.kind == "static":
        expect(
            not text,
            "these vectors are already weighted by the frequencies of their tokens",
            where=model.folder,
            hint="leave --text out; or make them again of the encoder, with --text",
        )
        expect(
            not train,
            "static vectors are trained from the encoder that they were made of",
            where=model.folder,
            hint="name the encoder instead, or leave --train out",
        )
        yield from _write_static(name, output, shorten(model, dimensions))
    elif train:
        teacher = TeacherVectors(model, train, train_texts or USUAL_TEXTS, output)
        with teacher.job.open():  # what the teacher has read is kept until the folder is written
            vectors = yield from distil(model, dimensions, text, teacher)
            yield from _write_static(name, output, vectors)
    else:
        vectors = yield from distil(model, dimensions, text)
        yield from _write_static(name, output, vectors)


def _write_static(name: str, output: Path, vectors: StaticVectors) -> Iterator[Event]:
    """Write static vectors. name: of the source, for the model card."""
    model = vectors.model
    head = {"architectures": [hf_config.architecture_of(model.state, model.config)]}
    source = _Source(model, head, vectors.notes, sentence=vectors.sentence, card="static.md")
    yield from _write(name, output, source)


def _convert_pickles(
    name: str, output: Path, folder: ModelFolder, pickles: Sequence[Path], language: str
) -> Iterator[Event]:
    """Convert a folder with weights in pickles, which are trusted.

    Args:
        name: of the source, for the model card.
        pickles: what `find_pickle` returned for the folder of the network, if its weights are a
            pickle, and for the folders of modules of sentence-transformers.
        language: as for `convert`.
    """
    _require_config(folder)
    # The vocabulary and the configuration are checked before the pickle is read.
    check_vocabulary(folder.tokenizer, folder.config, folder.within)
    for file_name in dict.fromkeys(pickle.name for pickle in pickles):
        yield Event(
            "note", f"{file_name} is read in a process of its own: only dense tensors are accepted"
        )
    scratch = temporary_sibling(output.resolve())
    with explain_os_errors("cannot be written", output, "choose another path with -o"):
        scratch.mkdir(parents=True)
    try:
        contents: dict[Path, PickledWeights] = {}
        root = place_of_links(folder.folder)
        own_scratch = scratch
        for number, pickle in enumerate(pickles):
            contents[pickle.parent] = read_pickled_weights(pickle, own_scratch, root)
            own_scratch = scratch / str(number)
            own_scratch.mkdir()
        weights = contents[folder.within].tensors if folder.within in contents else None
        source = _read_folder(ModelFolder(folder.folder, language, weights=weights), contents)
        paths: list[Path] = []
        if weights is not None:
            paths = [
                folder.within / name for name in TOKENIZER_FILES if (folder.within / name).is_file()
            ]
        notes = [note for content in contents.values() for note in content.notes]
        yield from _write(
            name, output, replace(source, notes=[*notes, *source.notes], tokenizer_files=paths)
        )
    finally:
        remove(scratch)


def import_checkpoint(
    checkpoint: str | Path, output: str | Path, *, overwrite: bool = False, **options: Any
) -> Iterator[Event]:
    """Convert weights in the file of another program to a model folder, without that program.

    Args:
        checkpoint: a TensorFlow checkpoint of Google's: bert_model.ckpt, one of its files, or the
            folder that holds it; the weights of an ELMo in HDF5, as AllenNLP publishes them; or a
            word2vec text, compressed or not, which takes no options (`bertworks.interop.word2vec`).
        options: how the checkpoint is read. config, vocabulary: files; not given: bert_config.json
            and vocab.txt next to it. lowercase: not given: inferred from the names of checkpoint
            and folder, else from the vocabulary. gelu: the meaning of "gelu": "tanh", the
            approximation in Google's code (usual), or "exact". leave_out: names or patterns (`*`)
            of variables to leave out. elmo_options: the options.json of an ELMo, which has none of
            the other options.
        overwrite: replace the content of the output folder.

    Raises:
        BertworksError, UsageError: as `convert`; h5py, which reads HDF5, is not installed.
    """
    elmo_options = options.pop("elmo_options", None)
    path = as_path(checkpoint)
    output = local_path(output)
    if is_hdf5(path):
        inputs = [path] if elmo_options is None else [path, elmo_options]
        refuse_not_empty(output, overwrite, inputs)
        yield from _import_elmo(path, output, elmo_options, options)
        return
    expect(
        elmo_options is None,
        "only an ELMo has a second file: its weights, in HDF5",
        where=checkpoint,
        hint="leave the second file out, or name elmo_weights.hdf5 first",
    )
    prefix = find_checkpoint(path)
    if prefix is None and is_word2vec(path):
        refuse_not_empty(output, overwrite, [path])
        yield from _import_word2vec(path, output, options)
        return
    if prefix is None:
        raise BertworksError(
            "neither a TensorFlow checkpoint, which has an .index file, nor a word2vec text, with "
            "a first line such as '71291 100'",
            where=checkpoint,
            hint="give bert_model.ckpt where there is a bert_model.ckpt.index; other models: "
            "bertworks convert",
        )
    refuse_not_empty(output, overwrite, [path])
    model, notes = load_checkpoint(prefix, **options)
    parts = hf_config.component_names(model.state)  # checkpoints do not name the head
    if "span" in parts:
        head = task_settings(TaskConfig(task="qa"))
    elif "classifier" in parts:
        labels = tuple(f"LABEL_{n}" for n in range(len(model.state["classifier.weight"])))
        notes.append(
            f"output_weights is read as a classifier of whole texts with {len(labels)} labels. "
            "Checkpoints do not name labels: write the names into id2label and label2id of "
            "config.json"
        )
        head = task_settings(TaskConfig(task="classification", labels=labels))
    else:
        head = {"architectures": [hf_config.architecture_of(model.state, model.config)]}
    yield from _write(prefix.name, output, _Source(model, head, notes))


def _import_elmo(
    weights: Path, output: Path, elmo_options: str | Path | None, options: JsonObject
) -> Iterator[Event]:
    """Convert the published weights of an ELMo.

    Args:
        options: those of checkpoints of Google's, which an ELMo does not have.
    """
    changed = [name for name, value in options.items() if value not in (None, [], (), "tanh")]
    expect(
        not changed,
        f"{', '.join(changed)}: the weights of an ELMo have no such option",
        where=weights,
        hint="leave it out",
    )
    if elmo_options is None:
        raise UsageError(
            "the weights of an ELMo need their options.json, which describes the network",
            where=weights,
            hint=f"bertworks import {quoted(weights)} options.json -o MODEL",
        )
    model, notes = load_elmo(weights, as_path(elmo_options))
    head = {"architectures": [hf_config.architecture_of(model.state, model.config)]}
    yield from _write(weights.name, output, _Source(model, head, notes, card="elmo.md"))


def _import_word2vec(path: Path, output: Path, options: Mapping[str, Any]) -> Iterator[Event]:
    """Convert a word2vec text; raises as `import_checkpoint`.

    options: of that function, with values that were not given.
    """
    is_plain = (
        not any(options.get(name) for name in ("config", "vocabulary", "leave_out"))
        and options.get("lowercase") is None
    )
    expect(
        is_plain,
        "the options of a TensorFlow checkpoint mean nothing for a word2vec text",
        where=path,
        hint="leave them out",
    )
    model, notes = read_word2vec(path)
    head = {"architectures": [hf_config.architecture_of(model.state, model.config)]}
    sentence = SentenceTransformerSettings()
    source = _Source(model, head, notes, sentence=sentence, card="static.md")
    yield from _write(path.name, output, source)


def _write(name: str, output: Path, source: _Source) -> Iterator[Event]:
    """Write a source to a folder that does not exist, or is empty.

    Args:
        name: of the source, for the model card.
    """
    model = source.model
    notes = source.notes
    longest = model.config.max_position_embeddings
    # Programs truncate their texts to this length.
    if model.tokenizer.model_max_length > longest and not source.tokenizer_files:
        notes.append(
            f"the tokenizer's model_max_length is {longest:,} now, the number of positions of the "
            "model"
        )
        model.tokenizer.model_max_length = longest
    architecture = source.head["architectures"][0]
    has_own_type = str(source.head.get("model_type")).startswith(hf_config.OWN_TYPE)
    is_own = has_own_type or bool(hf_config.own_lm_head(model.config, [architecture]))
    is_own = is_own or architecture == hf_config.VECTOR_CLASS
    is_static = model.config.kind == "static"
    is_own = is_own or is_static or hf_config.FAMILIES[model.config.family].has_own_names
    library = "transformers"
    if is_own:
        library = "sentence-transformers" if is_static else "bertworks"
    values = {
        "name": " ".join(output.resolve().name.split()),
        "source": " ".join(name.split()),
        "c": model.config,
        "kind": architecture,
        "shape": shape_of(model.config),
        "library": library,
        "notes": "\n".join(f"- {note}" for note in notes or ["nothing was left out"]),
        "use": loading_code(model.config, architecture, in_transformers=not is_own),
    }
    with replacing_folder(output) as temporary:
        save_model(
            temporary,
            model.state,
            model.config,
            model.tokenizer,
            card=fill_template(Path(__file__).with_name(source.card), **values),
            head=source.head,
            task=source.task,
        )
        if source.tokenizer_files:
            for name_of_file in TOKENIZER_FILES:
                (temporary / name_of_file).unlink(missing_ok=True)
            for path in source.tokenizer_files:
                shutil.copyfile(path, temporary / path.name)
        if source.sentence is not None:
            source.sentence.save(temporary, model.config.hidden_size, is_static=is_static)
        copy_files(source.folder, temporary, source.files)
        if source.task is not None and "README.md" in source.files:
            # Sentences of an earlier version are replaced that are not true any more.
            path = temporary / "README.md"
            source_card = path.read_text(encoding="utf-8")
            card = without_division(source_card) if source.task.divides_logits else source_card
            if source.task.reads_means:
                card = with_encoder_use(card, source.task, model.config)
            if card != source_card:
                write_text(path, card)
    yield from (Event("note", note) for note in notes)
    parts = sorted(hf_config.component_names(model.state))
    count = sum(value.numel() for value in model.state.values())
    yield Event(
        "done",
        f"{output}: {architecture}, {count:,} parameters ({', '.join(parts)})",
        {"folder": str(output), "parts": parts, "parameters": count, "notes": notes},
    )


def _require_config(source: ModelFolder) -> None:
    """Refuse a folder without config.json, which only static vectors do not need."""
    require(
        source.has_static_vectors or (source.within / "config.json").exists(),
        "this folder holds no model: there is no config.json",
        source.folder,
        "name a model folder, a TensorFlow checkpoint (model.ckpt) or a model on the Hugging "
        "Face hub",
    )


def _read_folder(source: ModelFolder, pickles: Mapping[Path, PickledWeights] = {}) -> _Source:
    """Read a model folder.

    Args:
        pickles: the content of trusted pickles, by their folder.
    """
    folder = source.folder
    inner = source.within
    _require_config(source)
    settings = source.settings
    model = source.load()
    sentence, module_names, notes = _sentence_transformer(source, pickles)
    head, task = _head(source, model.state)
    if task is not None and task.divides_logits:
        notes.append(
            f"the output layer is divided by the temperature {task.temperature:.4g} of "
            f"{TASK_FILE} now"
        )
    preserved, dropped = hf_config.settings_to_keep(
        settings, head=bool(hf_config.component_names(model.state) & _HEADS)
    )
    architectures = settings.get("architectures")
    if architectures and architectures != head["architectures"]:
        notes.append(
            f"architectures was {architectures}; it is {head['architectures']} now, the class of "
            "these weights"
        )
    preserved = {name: value for name, value in preserved.items() if name not in head}
    weights = source.weights
    dtypes = {
        str(tensor.dtype).removeprefix("torch.")
        for tensor in weights.values()
        if tensor.is_floating_point()
    }
    redundant = hf_mapping.redundant_tensors(weights, model.config.family)
    unread = hf_mapping.unread_tensors(weights, model.config.family)
    root = place_of_links(folder)
    documents = MODEL_DOCUMENTS
    # The card of all languages has other commands.
    if source.config.language != settings.get("language", ""):
        documents = [name for name in MODEL_DOCUMENTS if name != "README.md"]
    names = [
        name for name in (*documents, GENERATION_FILE, *module_names) if (folder / name).is_file()
    ]
    copied = [name for name in names if root in (folder / name).resolve().parents]
    network_files = list(_READ)
    if source.within in pickles:
        network_files += PICKLE_FILES
    read_files = [*network_files, *copied]
    if sentence:
        read_files += ["2_Normalize/config.json", *module_files(folder, trusts_pickles=True)]
        read_files += [f"{place.name}/{name}" for place in pickles for name in PICKLE_FILES]
    if inner != folder:
        read_files += [
            f"{inner.name}/{name}" for name in (*network_files, "sentence_*_config.json")
        ]
    _, other_files = split_files(folder, read_files)
    left_out = {
        "the weights are float32 now; they were": sorted(dtypes - {"float32"}),
        "left out of the weights, as counters or copies:": redundant,
        "left out of the weights, as heads of pre-training that are not computed:": unread,
        "left out of config.json:": dropped,
        "left out of the folder:": other_files,
    }
    notes += [f"{what} {some_names(names, 20)}" for what, names in left_out.items() if names]
    notes += model.tokenizer.notes
    return _Source(model, preserved | head, notes, folder, copied, task, sentence)


def _sentence_transformer(
    source: ModelFolder, pickles: Mapping[Path, PickledWeights]
) -> tuple[SentenceTransformerSettings | None, list[str], list[str]]:
    """Return how vectors are made, names of files to copy, and notes.

    The settings are None if bertworks cannot make such vectors, or the model has none.

    Args:
        pickles: as for `_read_folder`.
    """
    files: list[str] = []
    try:
        files = module_files(source.folder, trusts_pickles=bool(pickles))
        _, settings, unwritten, _ = source.sentence_transformer
        modules = [
            replace(module, weights=pickles[module.folder].tensors)
            if module.folder in pickles
            else module
            for module in settings.modules
        ]
        settings = replace(settings, modules=modules)
        vector_network(modules, source.config.hidden_size)  # which refuses damaged modules
    except BertworksError as error:
        note = f"the settings of its vectors are left out: {error.what}"
        if files:
            what = f"copied, although bertworks does not make such vectors ({error.what})"
            note = f"{what}: {', '.join(files)}"
        return None, files, [note]
    if not files:
        return None, [], []
    return settings, [MODEL_FILE], [f"left out of {name}" for name in unwritten]


def _head(source: ModelFolder, state: Mapping[str, Tensor]) -> tuple[JsonObject, TaskConfig | None]:
    """Return the settings of config.json for the head, and the task of a bertworks folder.

    Raises:
        BertworksError: config.json does not name the head of these weights, or another one.
    """
    folder = source.within
    settings = source.settings
    parts = hf_config.component_names(state)
    names = ", ".join(sorted(parts & _HEADS))
    if not names:
        return {"architectures": [hf_config.architecture_of(state, source.config)]}, None
    has_task_file = source.has_task_file
    require(
        has_task_file or settings.get("architectures"),
        f"these weights have a head ({names}), but config.json does not name its class",
        folder,
        'add its class, such as "architectures": ["BertForSequenceClassification"]',
    )
    task = source.task_config
    expected = task_of(task).head()
    outputs = len(state.get(f"{expected.head}.weight", ()))
    expected_parts = {"recurrent": bool(task.lstm_units), "mix": task.feature_layers == "mix"}
    fits = outputs == expected.outputs and all(
        is_expected == (part in parts) for part, is_expected in expected_parts.items()
    )
    require(
        fits,
        f"the head of these weights ({names}, {outputs} outputs) does not fit {task.task} with "
        f"{expected.outputs} outputs in config.json",
        folder,
        "use the config.json that was saved with these weights",
    )
    head = task_settings(task, source.config)
    if has_task_file:
        return head, task
    # The defaults of bertworks for one label differ from those of transformers.
    label_settings: JsonObject = {"problem_type": settings.get("problem_type")}
    if settings.get("id2label"):  # also for tasks without labels: other programs show them
        id2label = {str(number): str(label) for number, label in settings["id2label"].items()}
        label_settings["id2label"] = id2label
        label_settings["label2id"] = {label: int(number) for number, label in id2label.items()}
    elif not task.labels:
        label_settings |= {"id2label": None, "label2id": None}
    return {name: value for name, value in (head | label_settings).items() if value}, None

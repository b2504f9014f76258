"""Files that lie, lead elsewhere or are far too much: each ends in an error of ours, in little memory and soon.
Weights, configurations and pickles are in test_model_folder, vocabularies in test_tokenizer, checkpoints in
test_tensorflow; here is what these leave: links and pipes, sizes, and the files of tasks, vectors, exports and indexes.

All cases run in one process (this file, run as a program), which watches its own memory: `main`.
"""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

MOST = 256  # MB that a case may take beyond what was taken before
HANG = 60  # seconds after which a case counts as hanging: many times what any needs


def changed(name: str, **changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({k: v for k, v in (content | changes).items() if v is not ...}))

    return change


def written(name: str, content: bytes | str | Callable[[], bytes]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        made = content() if callable(content) else content
        (folder / name).write_bytes(made.encode() if isinstance(made, str) else made)

    return write


def linked(name: str, target: str) -> Callable[[Path], None]:
    def link(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name) if target == "a pipe" else (folder / name).symlink_to(target)

    return link


def tokenizer_json(**changes: Any) -> Callable[[Path], None]:
    """The model's own tokenizer.json with parts exchanged."""

    def change(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        (folder / "tokenizer.json").write_text(json.dumps(content | changes))

    return change


def many_words(folder: Path) -> None:
    """300,000 words, of which the last is there twice."""
    content = json.loads((folder / "tokenizer.json").read_text())
    words = "".join(f'"w{n}": {n}, ' for n in range(300_000)) + '"w0": 1'
    text = json.dumps(content | {"model": content["model"] | {"vocab": "VOCAB"}})
    (folder / "tokenizer.json").write_text(text.replace('"VOCAB"', f"{{{words}}}"))


def postings_beyond(folder: Path) -> None:
    """An index whose words stand in documents that it does not have."""
    from safetensors.numpy import load_file, save_file

    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    save_file(tensors | {"postings.texts": tensors["postings.texts"] + 10**6}, path)


def rows_elsewhere(folder: Path) -> None:
    """An index whose rows are half a line."""
    from safetensors.numpy import load_file, save_file

    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    save_file(tensors | {"offsets": tensors["offsets"] + 3}, path)


def other_kind_of_vectors(folder: Path) -> None:
    from safetensors.numpy import load_file, save_file

    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    save_file(tensors | {"vectors": tensors["vectors"].astype("int64")}, path)


def segments_named(name: str) -> Callable[[Path], None]:
    return changed("index.json", segments={name: ""})


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, ("exploded",)


def onnx_of(*nodes: tuple[str, list[str], list[str], dict[str, Any]], **constants: Any) -> Callable[[Path], None]:
    """A graph with a BERT's inputs and outputs, and something else in it."""

    def write(folder: Path) -> None:
        import numpy as np
        import onnx
        from onnx import TensorProto, helper

        values = helper.make_tensor_value_info
        made = [helper.make_node(kind, inputs, outputs, **settings) for kind, inputs, outputs, settings in nodes]
        tensors = [onnx.numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
        graph = helper.make_graph(
            made, "g",
            [values("input_ids", TensorProto.INT64, ["batch", "length"])],
            [values("logits", TensorProto.FLOAT, ["batch", 2])], tensors,
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        (folder / "model.onnx").write_bytes(model.SerializeToString())

    return write


def endless(folder: Path) -> None:
    """A loop without end."""
    import onnx
    from onnx import TensorProto, helper

    values = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["again"]), helper.make_node("Identity", ["x"], ["y"])], "body",
        [values("n", TensorProto.INT64, []), values("go", TensorProto.BOOL, []),
         values("x", TensorProto.FLOAT, [1, 2])],
        [values("again", TensorProto.BOOL, []), values("y", TensorProto.FLOAT, [1, 2])],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Loop", ["", "true", "start"], ["logits"], body=body)], "g",
        [values("input_ids", TensorProto.INT64, ["batch", "length"])],
        [values("logits", TensorProto.FLOAT, ["batch", 2])],
        [helper.make_tensor("true", TensorProto.BOOL, [], [True]),
         helper.make_tensor("start", TensorProto.FLOAT, [1, 2], [0, 0])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    del onnx


MODEL: dict[str, Callable[[Path], None]] = {
    **{f"{name} is a pipe": linked(name, "a pipe") for name in ("config.json", "model.safetensors", "tokenizer.json")},
    **{f"{name} is endless": linked(name, "/dev/zero")
       for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")},
    "config.json is a folder of secrets": linked("config.json", "/etc"),
    "config.json is another's file": linked("config.json", "/etc/passwd"),
    "config.json of many lists": written("config.json", lambda: b"[" + b"[]," * 5_000_000 + b"[]]"),
    "config.json of many names": written(
        "config.json", lambda: ("{" + ",".join(f'"{n:x}":1' for n in range(1_400_000)) + "}").encode()
    ),
    "config.json of many layers": changed("config.json", num_hidden_layers=10**9),
    "config.json of the largest sizes": changed(
        "config.json", num_hidden_layers=1024, hidden_size=65536, vocab_size=4_000_000, intermediate_size=524_288
    ),
    "tokenizer.json of many lists": written("tokenizer.json", lambda: b'{"a":[' + b"[]," * 5_000_000 + b"[]]}"),
    "tokenizer.json of many names": written(
        "tokenizer.json", lambda: ("{" + ",".join(f'"{n:x}":1' for n in range(1_500_000)) + "}").encode()
    ),
    "tokenizer.json of 200 MB": written("tokenizer.json", lambda: b'{"a": "' + b"x" * 200_000_000 + b'"}'),
    "tokenizer.json with a word twice": many_words,
    "tokenizer.json that is a pickle": written("tokenizer.json", pickle.dumps(Bomb())),
    "tokenizer.json with many added tokens": tokenizer_json(added_tokens=[
        {"id": n, "content": f"[{n}]", "single_word": False, "lstrip": True, "rstrip": True, "normalized": True,
         "special": False} for n in range(80_000)
    ]),
    "tokenizer.json with a wrong pattern": tokenizer_json(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": "(" * 50_000}, "behavior": "Isolated", "invert": False}
    ),
    "tokenizer.json of nothing": tokenizer_json(model={"type": "WordPiece", "vocab": {}}),
}  # fmt: skip
VOCABULARY: dict[str, Callable[[Path], None]] = {
    "vocab.txt is endless": linked("vocab.txt", "/dev/zero"),
    "vocab.txt of one line": written("vocab.txt", lambda: b"x" * 200_000_000),
    "vocab.txt of many lines": written("vocab.txt", lambda: b"".join(b"%x\n" % n for n in range(3_000_000))),
    "vocab.txt that is a pickle": written("vocab.txt", pickle.dumps(Bomb())),
    "added tokens that are none": written("special_tokens_map.json", '{"additional_special_tokens": 5}'),
    "added tokens that are lists": written("special_tokens_map.json", '{"additional_special_tokens": [["a"]]}'),
    "added tokens by any id": written("added_tokens.json", '{"a": [1]}'),
}
TASK: dict[str, Callable[[Path], None]] = {
    "task.json is endless": linked("task.json", "/dev/zero"),
    "labels that are a number": changed("task.json", labels=5),
    "labels that are the same": changed("task.json", labels=["a", "a"]),
    "a task of another world": changed("task.json", task="sorcery"),
    "a task that is a list": changed("task.json", task=["classification"]),
    "nothing is read": changed("task.json", max_length=0),
    "more is read than there is": changed("task.json", max_length=1 << 20),
    "a threshold that is a word": changed("task.json", task="multilabel", threshold="much"),
    "a column that is a list": changed("task.json", label=["a"], document=5),
    "a separator that is a number": changed("task.json", separator=5),
    "more labels than outputs": changed("task.json", labels=[str(n) for n in range(90_000)]),
    "a field too many": changed("task.json", command="rm -rf /"),
}
THEIR_TASK: dict[str, Callable[[Path], None]] = {  # a folder without task.json
    "positions in words": changed("config.json", max_position_embeddings="many"),
    "positions in a list": changed("config.json", max_position_embeddings=[1]),
    "labels by any number": changed("config.json", id2label={"-1": "a"}),
    "labels of one name": changed("config.json", id2label={"0": "a", "1": "a"}),
    "labels that are lists": changed("config.json", id2label=[["a"]]),
    "a million labels": changed("config.json", id2label={str(n): str(n) for n in range(10**6)}, label2id=...),
}
VECTORS: dict[str, Callable[[Path], None]] = {
    "modules.json is endless": linked("modules.json", "/dev/zero"),
    "a module above": written(
        "modules.json", '[{"type": "x.Transformer", "path": "../other"}, {"type": "x.Pooling", "path": "1_Pooling"}]'),
    "a module at the root": written(
        "modules.json", '[{"type": "x.Transformer", "path": "/etc"}, {"type": "x.Pooling", "path": "1_Pooling"}]'),
    "a module of theirs": written("modules.json", '[{"type": "evil.Program", "path": ""}]'),
    "modules that are numbers": written("modules.json", "[1, 2]"),
    "pooling that is a list of lists": written("1_Pooling/config.json", '{"pooling_mode": [["mean"]]}'),
    "prompts that are numbers": written("config_sentence_transformers.json", '{"prompts": {"a": 1}}'),
    "a default prompt that is a list": written("config_sentence_transformers.json", '{"default_prompt_name": ["a"]}'),
    "a length below all": written("sentence_bert_config.json", '{"max_seq_length": -5}'),
}  # fmt: skip
EXPORTED: dict[str, Callable[[Path], None]] = {
    "an export that is a pickle": written("model.onnx", pickle.dumps(Bomb())),
    "an export that is an archive": written("model.onnx", b"PK\x03\x04" + bytes(1000)),
    "an export of nothing": written("model.onnx", b""),
    "an export of zeros": written("model.onnx", bytes(10_000)),
    "an export is endless": linked("model.onnx", "/dev/zero"),
    "a graph that lies about its output": onnx_of(
        ("Cast", ["input_ids"], ["a"], {"to": 1}), ("Slice", ["a", "zero", "one", "one"], ["logits"], {}),
        zero=[0], one=[1],
    ),
    "a graph of a terabyte": onnx_of(("ConstantOfShape", ["shape"], ["logits"], {}), shape=[500_000, 500_000]),
    "a graph that grows": onnx_of(
        ("Cast", ["input_ids"], ["a"], {"to": 1}), ("Tile", ["a", "times"], ["logits"], {}), times=[1, 10**10]
    ),
    "a graph without end": endless,
    "a graph of unknown nodes": onnx_of(("Sorcery", ["input_ids"], ["logits"], {})),
}  # fmt: skip
INDEX: dict[str, Callable[[Path], None]] = {
    "an index is endless": linked("index.json", "/dev/zero"),
    "a segment above": segments_named("../segment-000001"),
    "a segment at the root": segments_named("/etc/passwd"),
    "a segment that is not there": segments_named("segment-999999"),
    "segments in a list": changed("index.json", segments=["segment-000001"]),
    "a dimension of any size": changed("index.json", dimension=10**12),
    "deleted rows that are no base64": changed("index.json", segments={"segment-000001": "????"}),
    "deleted rows that are a number": changed("index.json", segments={"segment-000001": 7}),
    "an index of another's model": changed("index.json", model="/etc"),
    "an index of a model on the hub": changed("index.json", model="evil/model"),
    "an index of no fingerprint": changed("index.json", fingerprint=5),
    "words beyond the documents": postings_beyond,
    "rows that are half": rows_elsewhere,
    "vectors that are whole numbers": other_kind_of_vectors,
    "rows are endless": linked("segment-000001.jsonl", "/dev/zero"),
}
CASES = {
    "model": MODEL, "vocabulary": VOCABULARY, "task": TASK, "their task": THEIR_TASK, "vectors": VECTORS,
    "exported": EXPORTED, "index": INDEX,
}  # fmt: skip


def good_folder(kind: str, folder: Path) -> tuple[Path, Callable[[Path], object]]:
    """A good folder of a kind, and what is done with it."""
    from fine import write_model
    from test_export import write_head

    import bertworks as bw

    def predict(folder: Path) -> object:
        return bw.Predictor(folder).predict(["a good film"] * 3)

    def embed(folder: Path) -> object:
        return bw.load(folder, device="cpu").embed(["a"])

    match kind:
        case "model" | "vocabulary":
            write_model(folder)
            if kind == "vocabulary":
                (folder / "tokenizer.json").unlink()
            return folder, embed
        case "task" | "their task":
            write_head(folder, "classification")
            if kind == "their task":
                (folder / "task.json").unlink()
            return folder, predict
        case "vectors":
            bw.Embedder(write_model(folder.with_name("plain")), device="cpu").save(folder)
            return folder, lambda folder: bw.Embedder(folder, device="cpu").embed(["a"])
        case "exported":
            list(bw.export(write_head(folder.with_name("classifier"), "classification"), folder))
            return folder, predict
        case _:
            model = write_model(folder.with_name("model"))
            bw.Index.create(folder, model, device="cpu").add(["good film", "sad dogs"])
            return folder, lambda folder: bw.Index(folder, device="cpu").search("good dogs")


def memory(name: str) -> int:
    """A line of /proc/self/status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(name))


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """The process ends where this takes longer: what hangs within a library hears no exception."""
    signal.alarm(seconds)
    yield
    signal.alarm(0)


def main(kinds: Sequence[str], cases: Sequence[str] = ()) -> None:
    """Every case, one after the other; a line of JSON for each."""
    import resource

    from bertworks.errors import BertworksError

    os.environ["HF_HUB_OFFLINE"] = "1"
    for kind in kinds:
        with tempfile.TemporaryDirectory() as at:
            good, act = good_folder(kind, Path(at) / "good")
            act(good)  # libraries are loaded, and threads begun
            # For what would take everything:
            resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + 4096 << 20, resource.RLIM_INFINITY))
            for case in cases or CASES[kind]:
                folder = shutil.copytree(good, Path(at) / "hostile", symlinks=True)
                CASES[kind][case](folder)
                Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
                before, start = memory("VmRSS"), time.process_time()
                with at_most(HANG):
                    try:
                        act(folder)
                        outcome, words = "no error", ""
                    except BertworksError as error:
                        outcome, words = "BertworksError", str(error)
                    except BaseException as error:
                        outcome, words = type(error).__name__, str(error)[:500]
                seconds, megabytes = round(time.process_time() - start, 3), memory("VmHWM") - before
                found = {"outcome": outcome, "megabytes": megabytes, "seconds": seconds, "words": words}
                print(json.dumps({"case": f"{kind}: {case}", **found}), flush=True)
                shutil.rmtree(folder)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of each case; nothing of those after one that hung or killed the process."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("no /proc: the peak of memory cannot be read here")
    pytest.importorskip("onnxruntime")
    paths = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parent)])
    ran = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, check=False,
        cwd=tmp_path_factory.mktemp("hostile"), env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    return {line["case"]: line for line in lines} | {"stderr": ran.stderr}


@pytest.mark.parametrize("case", [f"{kind}: {case}" for kind, cases in CASES.items() for case in cases])
def test_it_ends_in_an_error_of_ours(case: str, found: dict[str, Any]):
    assert case in found, f"the process ended here, or before: {found['stderr'][-1000:]}"
    assert found[case]["outcome"] == "BertworksError", found[case]
    assert len(found[case]["words"]) < 1000
    assert found[case]["megabytes"] <= MOST


if __name__ == "__main__":
    main(sys.argv[1:2] or list(CASES), sys.argv[2:])

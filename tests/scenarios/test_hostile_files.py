"""Files that lie, lead elsewhere or are far too much: each ends in an error of ours, in little
memory and soon. Weights, configurations and pickles are in test_model_folder, vocabularies in
test_tokenizer, checkpoints in test_tensorflow; here is what these leave: links and pipes, sizes,
and the files of tasks, vectors, exports and indexes.

All cases run in one process (this file, run as a program), which watches its own memory: `main`.
"""

import base64
import json
import os
import pickle
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT

MOST = 256  # MB that a case may take beyond what was taken before
HANG = 60  # seconds after which a case counts as hanging: many times what any needs


def changed(name: str, **changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(
            json.dumps({k: v for k, v in (content | changes).items() if v is not ...})
        )

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


def onnx_of(
    *nodes: tuple[str, list[str], list[str], dict[str, Any]], **constants: Any
) -> Callable[[Path], None]:
    """A graph with a BERT's inputs and outputs, and something else in it."""

    def write(folder: Path) -> None:
        import numpy as np
        import onnx
        from onnx import TensorProto, helper

        values = helper.make_tensor_value_info
        made = [
            helper.make_node(kind, inputs, outputs, **settings)
            for kind, inputs, outputs, settings in nodes
        ]
        tensors = [
            onnx.numpy_helper.from_array(np.array(value), name) for name, value in constants.items()
        ]
        graph = helper.make_graph(
            made,
            "g",
            [values("input_ids", TensorProto.INT64, ["batch", "length"])],
            [values("logits", TensorProto.FLOAT, ["batch", 2])],
            tensors,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        (folder / "model.onnx").write_bytes(model.SerializeToString())

    return write


def endless(folder: Path) -> None:
    """A loop without end."""
    import onnx
    from onnx import TensorProto, helper

    values = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["again"]),
            helper.make_node("Identity", ["x"], ["y"]),
        ],
        "body",
        [
            values("n", TensorProto.INT64, []),
            values("go", TensorProto.BOOL, []),
            values("x", TensorProto.FLOAT, [1, 2]),
        ],
        [values("again", TensorProto.BOOL, []), values("y", TensorProto.FLOAT, [1, 2])],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["", "true", "start"], ["logits"], body=body)],
        "g",
        [values("input_ids", TensorProto.INT64, ["batch", "length"])],
        [values("logits", TensorProto.FLOAT, ["batch", 2])],
        [
            helper.make_tensor("true", TensorProto.BOOL, [], [True]),
            helper.make_tensor("start", TensorProto.FLOAT, [1, 2], [0, 0]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    del onnx


MODEL: dict[str, Callable[[Path], None]] = {
    **{
        f"{name} is a pipe": linked(name, "a pipe")
        for name in ("config.json", "model.safetensors", "tokenizer.json")
    },
    **{
        f"{name} is endless": linked(name, "/dev/zero")
        for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    },
    "config.json is a folder of secrets": linked("config.json", "/etc"),
    "config.json is another's file": linked("config.json", "/etc/passwd"),
    "config.json of many lists": written("config.json", lambda: b"[" + b"[]," * 5_000_000 + b"[]]"),
    "config.json of many names": written(
        "config.json",
        lambda: ("{" + ",".join(f'"{n:x}":1' for n in range(1_400_000)) + "}").encode(),
    ),
    "config.json of many layers": changed("config.json", num_hidden_layers=10**9),
    "config.json of the largest sizes": changed(
        "config.json",
        num_hidden_layers=1024,
        hidden_size=65536,
        vocab_size=4_000_000,
        intermediate_size=524_288,
    ),
    "tokenizer.json of many lists": written(
        "tokenizer.json", lambda: b'{"a":[' + b"[]," * 5_000_000 + b"[]]}"
    ),
    "tokenizer.json of many names": written(
        "tokenizer.json",
        lambda: ("{" + ",".join(f'"{n:x}":1' for n in range(1_500_000)) + "}").encode(),
    ),
    "tokenizer.json of 200 MB": written(
        "tokenizer.json", lambda: b'{"a": "' + b"x" * 200_000_000 + b'"}'
    ),
    "tokenizer.json with a word twice": many_words,
    "tokenizer.json that is a pickle": written("tokenizer.json", pickle.dumps(Bomb())),
    "tokenizer.json with many added tokens": tokenizer_json(
        added_tokens=[
            {
                "id": n,
                "content": f"[{n}]",
                "single_word": False,
                "lstrip": True,
                "rstrip": True,
                "normalized": True,
                "special": False,
            }
            for n in range(80_000)
        ]
    ),
    "tokenizer.json with a wrong pattern": tokenizer_json(
        pre_tokenizer={
            "type": "Split",
            "pattern": {"Regex": "(" * 50_000},
            "behavior": "Isolated",
            "invert": False,
        }
    ),
    "tokenizer.json of nothing": tokenizer_json(model={"type": "WordPiece", "vocab": {}}),
}


def replace(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def split(pattern: str) -> Callable[[Path], None]:
    """A tokenizer that splits at a regular expression."""
    rule = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return tokenizer_json(pre_tokenizer=rule)


def template(
    single: str = "$A", pair: str = "$A $B", ids: Sequence[int] = (2,), kind: int = 0
) -> Callable[[Path], None]:
    """A tokenizer with another template. $A, $B: the texts; C: [CLS]."""

    def piece(word: str) -> dict[str, Any]:
        name, content = ("SpecialToken", "[CLS]") if word == "C" else ("Sequence", word[1])
        return {name: {"id": content, "type_id": kind}}

    special = {"[CLS]": {"id": "[CLS]", "ids": list(ids), "tokens": ["[CLS]"] * len(ids)}}
    return tokenizer_json(
        post_processor={
            "type": "TemplateProcessing",
            "single": [*map(piece, single.split())],
            "pair": [*map(piece, pair.split())],
            "special_tokens": special,
        }
    )


def charsmap(*units: int, texts: bytes = b"a\0") -> Callable[[Path], None]:
    """A tokenizer with a table of SentencePiece: a trie of these units, and replacements."""
    table = struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + texts
    return tokenizer_json(
        normalizer={"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}
    )


def with_model(**changes: Any) -> Callable[[Path], None]:
    """A tokenizer with other settings of its model; with a vocabulary, as the only tokens."""

    def change(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        if "vocab" in changes:
            content |= {"added_tokens": [], "post_processor": None}
        content["model"] |= changes
        (folder / "tokenizer.json").write_text(json.dumps(content))

    return change


UNIGRAM = [
    ["<unk>", 0.0],
    *([f"{n}" + "x" * 500 + f"{n}" + "y" * 500, -1.0] for n in range(28_000)),
]
TOKENIZER: dict[str, Callable[[Path], None]] = {
    "a special token of a far id": template("C $A", ids=[1_000_000_000]),
    "a special token of another's id": template("C $A", ids=[3]),
    "two ids for a special token": template("C $A", ids=[2, 2]),
    "many special tokens": template("C " * 1000 + "$A"),
    "a template without the text": template("C"),
    "a template with the text twice": template("$A $A"),
    "a template in another order": template(pair="$B $A"),
    "a type that the model lacks": template(kind=7),
    "ids of BERT that are others": tokenizer_json(
        post_processor={"type": "BertProcessing", "sep": ["[SEP]", 9], "cls": ["[CLS]", 2]}
    ),
    "a text 4,096 times as long": tokenizer_json(
        normalizer={"type": "Sequence", "normalizers": [replace("aa", String="a")] * 12}
    ),
    "a text without end": tokenizer_json(
        normalizer={"type": "Sequence", "normalizers": [replace("aa", String="a")] * 40}
    ),
    "replacements between characters": tokenizer_json(normalizer=replace("b" * 1000, Regex="")),
    "replacements of nothing": tokenizer_json(normalizer=replace("b" * 1000, String="")),
    "a million characters in front": tokenizer_json(
        normalizer={"type": "Prepend", "prepend": "a" * 1_000_000}
    ),
    "replacements within others": tokenizer_json(
        normalizer={
            "type": "Sequence",
            "normalizers": [{"type": "Sequence", "normalizers": [replace("aaaa", String="a")] * 3}]
            * 3,
        }
    ),
    **{
        f"the pattern {pattern}": split(pattern)
        for pattern in (
            "(a+)+$",
            "(a|a)*b",
            "(?:a{1,9}){1,9}b",
            "(?<x>a\\g<x>|b)",
            r"(a)\1*",
            "a{1,9}+b",
            "a{100000}",
            "a*a*a*b",
            "(?:a*|b)(?:c*|a)(?:a*|d)x",
            "(?>a+)+b",
        )
    },
    "a long pattern": split("x" * 2000),
    "a table that leads elsewhere": charsmap(*[0xFFFFFFFF] * 256),
    "a table that is cut": charsmap(0),
    "a table of half a character": charsmap(*([0x100] + [1] * 255), texts="é".encode()[1:] + b"\0"),
    "a table of long replacements": charsmap(*[0] * 256, texts=b"a" * 100_000 + b"\0"),
    "words of any length": with_model(max_input_chars_per_word=10**9),
    "no unknown token": with_model(unk_token="[NOPE]"),
    "pieces of 28 MB": lambda folder: with_model(type="Unigram", unk_id=0, vocab=UNIGRAM)(folder),
    "merges without the prefix": with_model(
        type="BPE",
        vocab={"a": 0, "b": 1, "ab": 2},
        merges=["a b"],
        continuing_subword_prefix="##",
        unk_token=None,
    ),
    "words of length 0": tokenizer_json(pre_tokenizer={"type": "FixedLength", "length": 0}),
    "an id far away": tokenizer_json(
        added_tokens=[
            {
                "id": 10**9,
                "content": "far",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ]
    ),
    "special tokens of other ids": tokenizer_json(
        added_tokens=[
            {
                "id": 3,
                "content": "[PAD]",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ]
    ),
    "an added token of two million characters": tokenizer_json(
        added_tokens=[
            {
                "id": 10**3,
                "content": "x" * 2_000_000,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ]
    ),
}
VOCABULARY: dict[str, Callable[[Path], None]] = {
    "vocab.txt is endless": linked("vocab.txt", "/dev/zero"),
    "vocab.txt of one line": written("vocab.txt", lambda: b"x" * 200_000_000),
    "vocab.txt of many lines": written(
        "vocab.txt", lambda: b"".join(b"%x\n" % n for n in range(3_000_000))
    ),
    "vocab.txt that is a pickle": written("vocab.txt", pickle.dumps(Bomb())),
    "added tokens that are none": written(
        "special_tokens_map.json", '{"additional_special_tokens": 5}'
    ),
    "added tokens that are lists": written(
        "special_tokens_map.json", '{"additional_special_tokens": [["a"]]}'
    ),
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
    "a million labels": changed(
        "config.json", id2label={str(n): str(n) for n in range(10**6)}, label2id=...
    ),
}
VECTORS: dict[str, Callable[[Path], None]] = {
    "modules.json is endless": linked("modules.json", "/dev/zero"),
    "a module above": written(
        "modules.json",
        '[{"type": "x.Transformer", "path": "../other"}, {"type": "x.Pooling", "path": '
        '"1_Pooling"}]',
    ),
    "a module at the root": written(
        "modules.json",
        '[{"type": "x.Transformer", "path": "/etc"}, {"type": "x.Pooling", "path": "1_Pooling"}]',
    ),
    "a module of theirs": written("modules.json", '[{"type": "evil.Program", "path": ""}]'),
    "modules that are numbers": written("modules.json", "[1, 2]"),
    "pooling that is a list of lists": written(
        "1_Pooling/config.json", '{"pooling_mode": [["mean"]]}'
    ),
    "prompts that are numbers": written(
        "config_sentence_transformers.json", '{"prompts": {"a": 1}}'
    ),
    "a default prompt that is a list": written(
        "config_sentence_transformers.json", '{"default_prompt_name": ["a"]}'
    ),
    "a length below all": written("sentence_bert_config.json", '{"max_seq_length": -5}'),
}
EXPORTED: dict[str, Callable[[Path], None]] = {
    "an export that is a pickle": written("model.onnx", pickle.dumps(Bomb())),
    "an export that is an archive": written("model.onnx", b"PK\x03\x04" + bytes(1000)),
    "an export of nothing": written("model.onnx", b""),
    "an export of zeros": written("model.onnx", bytes(10_000)),
    "an export is endless": linked("model.onnx", "/dev/zero"),
    "a graph that lies about its output": onnx_of(
        ("Cast", ["input_ids"], ["a"], {"to": 1}),
        ("Slice", ["a", "zero", "one", "one"], ["logits"], {}),
        zero=[0],
        one=[1],
    ),
    "a graph of a terabyte": onnx_of(
        ("ConstantOfShape", ["shape"], ["logits"], {}), shape=[500_000, 500_000]
    ),
    "a graph that grows": onnx_of(
        ("Cast", ["input_ids"], ["a"], {"to": 1}),
        ("Tile", ["a", "times"], ["logits"], {}),
        times=[1, 10**10],
    ),
    "a graph without end": endless,
    "a graph of unknown nodes": onnx_of(("Sorcery", ["input_ids"], ["logits"], {})),
}
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
    "model": MODEL,
    "tokenizer": TOKENIZER,
    "vocabulary": VOCABULARY,
    "task": TASK,
    "their task": THEIR_TASK,
    "vectors": VECTORS,
    "exported": EXPORTED,
    "index": INDEX,
}


def good_folder(kind: str, folder: Path) -> tuple[Path, Callable[[Path], object]]:
    """A good folder of a kind, and what is done with it."""
    import bertworks as bw
    from tests.interop.test_export import write_head
    from tests.support.fine import write_model

    def predict(folder: Path) -> object:
        return bw.Predictor(folder).predict(["a good film"] * 3)

    def embed(folder: Path) -> object:
        return bw.load(folder, device="cpu").embed(["a"])

    match kind:
        case "model" | "tokenizer" | "vocabulary":
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
            resource.setrlimit(
                resource.RLIMIT_AS, (memory("VmSize") + 4096 << 20, resource.RLIM_INFINITY)
            )
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
                found = {
                    "outcome": outcome,
                    "megabytes": megabytes,
                    "seconds": seconds,
                    "words": words,
                }
                print(json.dumps({"case": f"{kind}: {case}", **found}), flush=True)
                shutil.rmtree(folder)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of each case; nothing of those after one that hung or killed the process."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("no /proc: the peak of memory cannot be read here")
    pytest.importorskip("onnxruntime")
    paths = str(ROOT)
    ran = subprocess.run(
        [sys.executable, "-m", "tests.scenarios.test_hostile_files"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path_factory.mktemp("hostile"),
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    return {line["case"]: line for line in lines} | {"stderr": ran.stderr}


@pytest.mark.parametrize(
    "case", [f"{kind}: {case}" for kind, cases in CASES.items() for case in cases]
)
def test_it_ends_in_an_error_of_ours(case: str, found: dict[str, Any]):
    assert case in found, f"the process ended here, or before: {found['stderr'][-1000:]}"
    assert found[case]["outcome"] == "BertworksError", found[case]
    assert len(found[case]["words"]) < 1000
    assert found[case]["megabytes"] <= MOST
    assert found[case]["seconds"] < 10
    assert "panicked" not in found["stderr"]  # a message of a library, which no one understands


# --- random damage
# --------------------------------------------------------------------------------------------------


def damage(content: bytes, draw: random.Random) -> bytes:
    """The content with one random change: a bit, a byte, a digit, a part left out, doubled or
    filled with zeros, or the end cut off."""
    at, length = draw.randrange(len(content)), draw.choice((1, 2, 10, 100))
    head, part, tail = content[:at], content[at : at + length], content[at + length :]
    digits = [place for place, byte in enumerate(content) if 48 <= byte < 58]
    match draw.randrange(7):
        case 0:
            return head + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]
        case 1:
            return head + draw.randbytes(1) + content[at + 1 :]
        case 2 if digits:
            at = draw.choice(digits)
            return (
                content[:at]
                + str(draw.randrange(10)).encode() * draw.choice((1, 1, 9))
                + content[at + 1 :]
            )
        case 3:
            return head + tail
        case 4:
            return head + part + part + tail
        case 5:
            return head + bytes(len(part)) + tail
        case _:
            return head


def damages(folder: Path, names: Sequence[str], count: int) -> Iterator[tuple[str, bool]]:
    """Damages files of a folder, one after the other; yields the file, and whether it was cut; then
    it is as before."""
    draw = random.Random(28)
    for number in range(count):
        path = folder / names[number % len(names)]
        content = path.read_bytes()
        changed = damage(content, draw)
        if changed != content:
            path.write_bytes(changed)
            yield path.name, content.startswith(changed)
            path.write_bytes(content)


@pytest.mark.parametrize("count", [90, pytest.param(270, marks=pytest.mark.slow)])
def test_damaged_models_are_refused_or_read_as_they_are(
    count: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """Settings without a hash may change their value. No weights are taken for others, no cut file
    for a whole one, and every error is one of ours."""
    import torch

    import bertworks as bw
    from bertworks.checkpoints.model_folder import ModelFolder
    from bertworks.errors import BertworksError
    from tests.interop.test_export import write_head
    from tests.support.fine import write_model

    folder = write_head(tmp_path / "model", "classification")
    bw.Embedder(write_model(tmp_path / "plain"), device="cpu").save(tmp_path / "vectors")
    whole = ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json")
    pooling = "1_Pooling/config.json"
    (folder / "1_Pooling").mkdir()
    for name in (*whole, pooling):
        shutil.copy(tmp_path / "vectors" / name, folder / name)
    weights = ModelFolder(folder).load().state
    settings = (
        "config.json",
        "task.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
    )
    refused = Counter[bool]()
    for name, is_cut in damages(folder, (*settings, *whole, pooling), count):
        try:
            opened = ModelFolder(folder)
            assert opened.sentence_transformer.weights_folder == folder, name
            assert opened.task_config.task == "classification", name
            model = opened.load()
            assert all(torch.equal(value, weights[key]) for key, value in model.state.items()), name
            model.tokenizer.encode("a good film", "two", max_length=16)
            # all but the last line end
            assert not is_cut or (folder / name).read_bytes().strip()[-1:] == b"}", name
            refused[False] += 1
        except BertworksError:
            refused[True] += 1
    assert refused[True] > 4 / 9 * count
    assert "panicked" not in capfd.readouterr().err


@pytest.mark.parametrize("count", [60, pytest.param(150, marks=pytest.mark.slow)])
def test_damaged_headers_of_weights_are_no_other_weights(count: int, tmp_path: Path):
    import torch

    from bertworks.checkpoints.model_folder import ModelFolder
    from bertworks.errors import BertworksError
    from tests.support.fine import write_model

    folder = write_model(tmp_path / "model")
    weights, path = ModelFolder(folder).load().state, folder / "model.safetensors"
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    draw, refused = random.Random(28), 0
    for number in range(count):
        if number % 3:
            path.write_bytes(damage(content[:header], draw) + content[header:])
        else:
            path.write_bytes(content[: draw.randrange(len(content))])
        try:
            state = ModelFolder(folder).load().state
        except BertworksError:
            refused += 1
        else:
            assert state.keys() == weights.keys()
            assert all(torch.equal(value, weights[key]) for key, value in state.items())
    assert refused > 0.8 * count


def test_a_damaged_checkpoint_is_never_taken(tmp_path: Path):
    """Every byte of a checkpoint is under a hash: what is not as it was written is renamed, and the
    one before is taken."""
    import torch

    from bertworks.checkpoints.training_state import latest_checkpoint, save_checkpoint

    tensors = {"a": torch.arange(300.0), "b": torch.ones(5, dtype=torch.int64)}
    for step in (1, 2):
        save_checkpoint(tmp_path, step, tensors, {"seed": step, "loss": [0.5, "x"]})
    newest, taken = tmp_path / "step-00000002", Counter[int]()
    for name, _ in damages(newest, ("state.safetensors", "checkpoint.json"), 150):
        found, _ = latest_checkpoint(tmp_path)
        assert found is not None
        taken[found.step] += 1
        assert found.facts == {"seed": found.step, "loss": [0.5, "x"]}, name
        assert all(torch.equal(value, tensors[key]) for key, value in found.tensors.items()), name
        for renamed in tmp_path.glob("*.corrupt*"):
            renamed.rename(newest)
    assert taken[1] > 140
    assert taken[1] + taken[2] <= 150


def test_damaged_recipes_are_errors_of_the_user(tmp_path: Path):
    from bertworks.errors import UsageError
    from bertworks.training.recipe import load_finetune_recipe, load_recipe, packaged_recipes

    path = tmp_path / "recipe.toml"
    for load, kind in ((load_recipe, ""), (load_finetune_recipe, "finetuning")):
        texts = packaged_recipes(kind) if kind else packaged_recipes()
        path.write_text(max(texts.values(), key=len))
        recipe, refused = load(str(path)), 0
        for _ in damages(tmp_path, ["recipe.toml"], 60):
            try:
                assert type(load(str(path))) is type(recipe)
            except UsageError:
                refused += 1
        assert refused > 20


ENCODED = {
    "utf-8-sig": "",
    "utf-16": "not a text in UTF-8",
    "utf-16-le": "not TOML",
    "utf-32": "not a text in UTF-8",
}


@pytest.mark.parametrize("encoding", ENCODED)
def test_recipes_of_other_encodings(encoding: str, tmp_path: Path):
    from bertworks.errors import UsageError
    from bertworks.training.recipe import load_finetune_recipe, packaged_recipes

    text, path = packaged_recipes("finetuning")["paper"], tmp_path / "recipe.toml"
    path.write_bytes(text.replace("\n", "\r\n").encode(encoding))
    if ENCODED[encoding]:
        with pytest.raises(UsageError, match=ENCODED[encoding]):
            load_finetune_recipe(str(path))
    else:
        assert load_finetune_recipe(str(path)) == load_finetune_recipe("paper")
    path.write_bytes(text.encode() + "# caf\xe9".encode("latin-1"))
    with pytest.raises(UsageError, match="save it as UTF-8"):
        load_finetune_recipe(str(path))


HOSTILE_RECIPES = {
    "lists in lists": b"epochs = " + b"[" * 7000,
    "tables in tables": b"[" + b"a." * 3000 + b"a]",
    "keys in keys": b"a." * 3000 + b"a = 1",
    "a number of many digits": b"epochs = " + b"9" * 9000,
    "many fields": b"\n".join(b"k%d=1" % n for n in range(1500)),
    "a large file": b"#" * 100_000,
}


@pytest.mark.parametrize("kind", HOSTILE_RECIPES)
def test_recipes_that_take_too_much(kind: str, tmp_path: Path):
    from bertworks.errors import BertworksError
    from bertworks.training.recipe import load_finetune_recipe

    path, start = tmp_path / "recipe.toml", time.process_time()
    path.write_bytes(HOSTILE_RECIPES[kind])
    with pytest.raises(BertworksError) as caught:
        load_finetune_recipe(str(path))
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert time.process_time() - start < 5


if __name__ == "__main__":
    main(sys.argv[1:2] or list(CASES), sys.argv[2:])


LFS_POINTER = """version https://git-lfs.github.com/spec/v1
oid sha256:53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
size 90868376
"""


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("model", "model.safetensors"),
        ("model", "tokenizer.json"),
        ("model", "config.json"),
        ("model", "vocab.txt"),
        ("task", "task.json"),
        ("exported", "model.onnx"),
        ("index", "index.json"),
        ("index", "segment-000001.safetensors"),
    ],
)
def test_a_pointer_of_git_lfs_is_called_so(kind: str, name: str, tmp_path: Path):
    from bertworks.errors import BertworksError

    folder, use = good_folder(kind, tmp_path / "it")
    if name == "vocab.txt":
        (folder / "tokenizer.json").unlink()
    path = folder / name
    assert path.exists()
    path.write_text(LFS_POINTER)
    with pytest.raises(BertworksError) as raised:
        use(folder)
    assert raised.value.what.startswith("this is not the file itself but a pointer of Git LFS")
    assert raised.value.where == str(path)
    assert "git lfs pull" in str(raised.value.hint)


@pytest.mark.parametrize("name", ["d.csv", "d.parquet", "d.jsonl", "d.txt.gz"])
def test_data_that_are_a_pointer_of_git_lfs(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from bertworks.cli.main import main
    from bertworks.datasets.reader import RowReader
    from bertworks.errors import BertworksError

    (tmp_path / name).write_text(LFS_POINTER)
    with pytest.raises(BertworksError, match="a pointer of Git LFS"):
        list(RowReader(tmp_path / name))
    assert main(["vocab", str(tmp_path / name), "-o", str(tmp_path / "v")]) == 1
    assert "a pointer of Git LFS" in capsys.readouterr().err

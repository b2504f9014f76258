"""`convert --trust-pickle`: weights in pytorch_model.bin become safetensors with the same numbers,
and nothing that a hostile file wants is done.

Each hostile file would write a file, the canary, or take memory and time without end.
"""

import builtins
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file

from bertworks.checkpoints import pickle_reader, pickled_weights
from bertworks.checkpoints.resolve import resolve_model
from bertworks.errors import BertworksError
from bertworks.inference.embedder import Embedder
from bertworks.inference.predictor import Predictor
from bertworks.interop.convert import convert
from tests.checkpoints.test_resolve import cached, here as here
from tests.interop.test_convert import (
    TOKENS,
    contents,
    settings_changed,
    theirs_of as bert_of,
    with_copies_and_counters,
    with_gamma_and_beta,
    write_tokenizer,
)
from tests.scenarios import test_xlm
from tests.scenarios.test_families import theirs_of
from tests.support.refusals import refusal

PICKLE = "pytorch_model.bin"
REBUILD = torch._utils._rebuild_tensor_v2


def converted(folder: Path, output: Path) -> str:
    """What `convert --trust-pickle` says."""
    return "\n".join(event.text for event in convert(folder, output, trust_pickle=True))


def pickled(folder: Path) -> dict[str, torch.Tensor]:
    """Replace the safetensors file of a folder by a pickle, and return the tensors."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / PICKLE)
    return tensors


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's work without its process, which takes a second to begin. Its limits do not
    hold."""

    def read_here(file: Path, target: Path) -> list[str]:
        return pickle_reader.convert_pickle(file, target, is_zip=pickle_reader.check_format(file))

    monkeypatch.setattr(pickled_weights, "_convert", read_here)


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """The folder of a classifier."""
    folder = tmp_path / "theirs"
    bert_of("BertForSequenceClassification").save_pretrained(folder)
    write_tokenizer(folder)
    return folder


# --- the same numbers

KINDS = (
    "Model",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
WITH_HEADS = [
    *(
        (family, kind)
        for family in ("bert", "roberta", "distilbert", "albert", "electra")
        for kind in KINDS
    ),
    *((family, "ForMaskedLM") for family in ("bert", "roberta", "distilbert", "albert", "electra")),
    *((family, "ForPreTraining") for family in ("bert", "albert", "electra")),
    *((family, kind) for family in ("gpt2", "openai-gpt") for kind in ("Model", "LMHeadModel")),
    ("electra-wide", "ForSequenceClassification"),
    ("bert-ltr", "LMHeadModel"),
    ("xlm", "Model"),
    ("xlm", "WithLMHeadModel"),
]


def network_of(family: str, kind: str) -> torch.nn.Module:
    if family != "xlm":
        return theirs_of(family, kind)
    network = test_xlm.theirs()
    return network if kind == "WithLMHeadModel" else network.transformer


def write_family(folder: Path, network: Any, *, legacy: bool) -> None:
    """A folder as transformers wrote it until 2023: all that the state dict has, also copies and
    buffers."""
    network.config.architectures = [type(network).__name__]
    network.config.save_pretrained(folder)
    torch.save(network.state_dict(), folder / PICKLE, _use_new_zipfile_serialization=not legacy)
    tokens = [*TOKENS[:5], *map(chr, range(192, 277))]
    pad = network.config.pad_token_id or 0
    tokens[0], tokens[pad] = tokens[pad], tokens[0]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": False,
        "tokenize_chinese_chars": True,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "special_tokens_map.json").write_text('{"mask_token": "[MASK]"}')


@pytest.mark.parametrize(("family", "kind"), WITH_HEADS)
def test_every_family_computes_the_same_in_transformers(
    family: str, kind: str, tmp_path: Path, in_this_process: None
):
    network = network_of(family, kind)
    write_family(tmp_path / "theirs", network, legacy=len(kind) % 2 == 0)
    converted(tmp_path / "theirs", tmp_path / "ours")
    original = type(network).from_pretrained(tmp_path / "theirs").eval()
    again, report = type(network).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    expected, found = original.state_dict(), again.eval().state_dict()
    assert found.keys() == expected.keys() == network.state_dict().keys()
    for name, value in network.state_dict().items():
        assert torch.equal(found[name], value), name
        assert torch.equal(expected[name], value), name
    ids = torch.randint(
        5, 90, (2, 3, 8) if "Choice" in kind else (3, 8), generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        theirs, ours = original(ids), again(ids)
    assert theirs.keys() == ours.keys()
    for name, value in theirs.items():
        if isinstance(value, torch.Tensor):
            # The weights are equal bit for bit; where they lie in memory decides the last bit of a
            # product.
            torch.testing.assert_close(ours[name], value, atol=1e-6, rtol=0, msg=name)
    for path in (tmp_path / "theirs").iterdir():
        if path.name not in (PICKLE, "config.json"):
            assert (tmp_path / "ours" / path.name).read_bytes() == path.read_bytes()
    assert not {"tokenizer.json", PICKLE} & contents(tmp_path / "ours").keys()


def test_a_classifier_says_the_command_and_then_predicts(
    bert: Path, tmp_path: Path, in_this_process: None
):
    expected = Predictor(bert, device="cpu").predict(["a b c", "d"])
    pickled(bert)
    with pytest.raises(BertworksError, match="a pickle, which can run any program") as raised:
        Predictor(bert, device="cpu")
    assert f"bertworks convert {bert} -o ANOTHER-FOLDER --trust-pickle" in str(raised.value.hint)
    converted(bert, tmp_path / "ours")
    assert Predictor(tmp_path / "ours", device="cpu").predict(["a b c", "d"]) == expected


def test_old_names_and_copies_are_read_as_in_safetensors(
    bert: Path, tmp_path: Path, in_this_process: None
):
    with_gamma_and_beta(bert)
    with_copies_and_counters(bert)
    list(convert(bert, tmp_path / "safe"))
    pickled(bert)
    said = converted(bert, tmp_path / "ours")
    assert "left out of the weights, as counters or copies: bert.embeddings.position_ids" in said
    assert (
        contents(tmp_path / "ours")["model.safetensors"]
        == contents(tmp_path / "safe")["model.safetensors"]
    )


@pytest.mark.parametrize("legacy", [False, True])
def test_a_child_process_reads_it(bert: Path, legacy: bool, tmp_path: Path):
    """Half-precision weights, saved with the state of a training, by a network on several GPUs."""
    tensors = pickled(bert)
    half = OrderedDict((f"module.{name}", value.half()) for name, value in tensors.items())
    training = {"epoch": 3, "state_dict": half, "optimizer": {"state": {0: torch.ones(3)}}}
    torch.save(training, bert / PICKLE, _use_new_zipfile_serialization=not legacy)
    (bert / "README.md").write_text("# my card\n")
    said = converted(bert, tmp_path / "ours")
    assert f"left out of {PICKLE}: epoch, optimizer\n" in said
    assert "'module.' is removed from the names of all tensors\n" in said
    assert "the weights are float32 now; they were float16\n" in said
    assert "left out of the folder" not in said
    found = load_file(tmp_path / "ours" / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], value.half().float()) for name, value in tensors.items())
    assert (tmp_path / "ours" / "README.md").read_text() == "# my card\n"
    # no file of the work is left
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "theirs"]
    list(convert(tmp_path / "ours", tmp_path / "again"))
    assert (
        contents(tmp_path / "again")["model.safetensors"]
        == contents(tmp_path / "ours")["model.safetensors"]
    )


def shard(folder: Path) -> None:
    """Weights in two pickles, with an index."""
    names = "pytorch_model-1.bin", "pytorch_model-2.bin"
    tensors = pickled(folder)
    (folder / PICKLE).unlink()
    places = {name: names[number % 2] for number, name in enumerate(sorted(tensors))}
    for file in names:
        torch.save(
            {name: value for name, value in tensors.items() if places[name] == file}, folder / file
        )
    (folder / f"{PICKLE}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def test_weights_in_several_pickles(bert: Path, tmp_path: Path, in_this_process: None):
    list(convert(bert, tmp_path / "safe"))
    shard(bert)
    converted(bert, tmp_path / "ours")
    assert (
        contents(tmp_path / "ours")["model.safetensors"]
        == contents(tmp_path / "safe")["model.safetensors"]
    )


@pytest.mark.parametrize(
    "name", ["../x.bin", "/etc/x.bin", "a/x.bin", "..", "", "x.safetensors", "absent.bin"]
)
def test_an_index_cannot_lead_out_of_its_folder(
    bert: Path, name: str, tmp_path: Path, in_this_process: None
):
    shard(bert)
    (bert.parent / "x.bin").write_bytes((bert / "pytorch_model-1.bin").read_bytes())
    index = bert / f"{PICKLE}.index.json"
    index.write_text(index.read_text().replace("pytorch_model-1.bin", name))
    with pytest.raises(
        BertworksError, match=r"is not the name of a bin file in this folder|cannot be read"
    ):
        converted(bert, tmp_path / "ours")


def test_an_index_that_disagrees_with_its_files(bert: Path, tmp_path: Path, in_this_process: None):
    shard(bert)
    index = bert / f"{PICKLE}.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["more"] = "pytorch_model-1.bin"
    index.write_text(json.dumps(content))
    with pytest.raises(BertworksError, match="disagree about more"):
        converted(bert, tmp_path / "ours")


def test_a_folder_of_sentence_transformers(bert: Path, tmp_path: Path, in_this_process: None):
    """In the layout of its first versions, with the network in a subfolder."""
    Embedder(bert, pooling="cls", device="cpu").save(tmp_path / "old")
    (tmp_path / "old" / "0_BERT").mkdir()
    for path in [*(tmp_path / "old").iterdir()]:
        if path.is_file() and path.name not in (
            "modules.json",
            "config_sentence_transformers.json",
            "README.md",
        ):
            path.rename(tmp_path / "old" / "0_BERT" / path.name)
    modules = json.loads((tmp_path / "old" / "modules.json").read_text())
    modules[0]["path"] = "0_BERT"
    (tmp_path / "old" / "modules.json").write_text(json.dumps(modules))
    expected = Embedder(tmp_path / "old", device="cpu").embed(["a b c", "d"])
    pickled(tmp_path / "old" / "0_BERT")
    with pytest.raises(BertworksError, match=r"only pytorch_model\.bin") as raised:
        Embedder(tmp_path / "old", device="cpu")
    assert f"bertworks convert {tmp_path / 'old'} -o" in str(raised.value.hint)
    converted(tmp_path / "old", tmp_path / "new")
    assert (Embedder(tmp_path / "new", device="cpu").embed(["a b c", "d"]) == expected).all()


# --- which folders


def test_other_weights_are_read_first(bert: Path, tmp_path: Path):
    (bert / PICKLE).write_bytes(pickle.dumps(Bomb(tmp_path / "canary")))
    said = converted(bert, tmp_path / "ours")
    assert "the weights are not in a pickle: nothing has to be trusted" in said
    assert f"left out of the folder: {PICKLE}" in said


def test_another_family_is_refused_before_the_pickle_is_read(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pickled(bert)
    monkeypatch.setattr(pickled_weights, "_convert", lambda *_: pytest.fail("the pickle was read"))
    settings_changed(bert, model_type="t5", architectures=["T5Model"])
    with pytest.raises(BertworksError, match="the family 't5' is not supported yet"):
        converted(bert, tmp_path / "ours")
    settings_changed(bert, model_type="bert")
    (bert / "vocab.txt").unlink()
    with pytest.raises(BertworksError, match=r"tokenizer|vocabulary"):
        converted(bert, tmp_path / "ours")
    (bert / "config.json").unlink()
    with pytest.raises(BertworksError, match=r"there is no config\.json"):
        converted(bert, tmp_path / "ours")


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("adapter_model.bin", "an adapter, not a whole model"),
        ("adapter_model.safetensors", "an adapter, not a whole model"),
        ("tf_model.h5", "TensorFlow"),
        ("flax_model.msgpack", "Flax"),
        ("other.bin", r"there is no model\.safetensors"),
    ],
)
def test_weights_of_other_programs_are_named(bert: Path, file: str, said: str, tmp_path: Path):
    (bert / "model.safetensors").rename(bert / file)
    with pytest.raises(BertworksError, match=said):
        converted(bert, tmp_path / "ours")


def test_a_name_on_the_hub(here: Path, monkeypatch: pytest.MonkeyPatch):
    """Pickles are fetched only when they are trusted and there are no other weights."""
    requests: list[list[str]] = []

    def fetch(hub_id: str, allow_patterns: list[str], local_files_only: bool) -> str:
        requests.append(allow_patterns)
        snapshot = here.parent / "cache" / "models--owner--old" / "snapshots" / ("c" * 40)
        if len(requests) == 1:
            return str(cached(here, hub_id, "config.json"))
        if any(pattern.endswith(".bin") for pattern in allow_patterns):
            (snapshot / PICKLE).write_bytes(b"a pickle")
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    with pytest.raises(
        BertworksError, match=r"no model\.safetensors on the Hugging Face hub"
    ) as raised:
        resolve_model("owner/old")
    assert "bertworks convert owner/old -o FOLDER --trust-pickle" in str(raised.value.hint)
    assert not any(pattern.endswith(".bin") for pattern in requests[0])
    folder = resolve_model("owner/old", trust_pickle=True)
    assert (folder / PICKLE).exists()
    assert [pattern for pattern in requests[-1] if "/" not in pattern] == [
        PICKLE,
        f"{PICKLE}.index.json",
        "pytorch_model-*.bin",
    ]
    (folder / "model.safetensors").write_bytes(b"weights")
    count = len(requests)
    resolve_model("owner/old", trust_pickle=True)
    assert len(requests) == count + 1


def test_a_pickle_of_a_module_on_the_hub(here: Path, monkeypatch: pytest.MonkeyPatch):
    """It is fetched if it is trusted, and the pickle of a network with other weights is not."""
    requests: list[list[str]] = []
    folder = cached(here, "owner/old", "config.json", "model.safetensors")
    (folder / "2_Dense").mkdir()

    def fetch(hub_id: str, allow_patterns: list[str], local_files_only: bool) -> str:
        requests.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    resolve_model("owner/old")
    assert len(requests) == 1
    resolve_model("owner/old", trust_pickle=True)
    assert f"[0-9]_[A-Z]*/{PICKLE}" in requests[-1]
    assert PICKLE not in requests[-1]
    (folder / "2_Dense/model.safetensors").write_bytes(b"weights")
    resolve_model("owner/old", trust_pickle=True)
    assert len(requests) == 4


def test_files_in_the_cache_of_the_hub_are_links(bert: Path, tmp_path: Path, in_this_process: None):
    pickled(bert)
    snapshot = tmp_path / "models--owner--name" / "snapshots" / ("c" * 40)
    blobs = tmp_path / "models--owner--name" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in bert.iterdir():
        path.rename(blobs / path.name)
        (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    converted(snapshot, tmp_path / "ours")
    (snapshot / PICKLE).unlink()
    (blobs / PICKLE).rename(tmp_path / "secret.bin")
    (snapshot / PICKLE).symlink_to(tmp_path / "secret.bin")
    with pytest.raises(BertworksError, match="a link that leads out of the model folder"):
        converted(snapshot, tmp_path / "again")


# --- hostile files


class Call:
    """A value whose pickle calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: object):
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


class Bomb(Call):
    """A value whose pickle makes a file."""

    def __init__(self, canary: Path):
        super().__init__(os.system, f"touch {canary}")


def saved(content: object, *, legacy: bool = False, protocol: int = 2) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, pickle_protocol=protocol, _use_new_zipfile_serialization=not legacy)
    return file.getvalue()


def archive(
    program: bytes, storages: dict[str, bytes] | None = None, compression: int = zipfile.ZIP_STORED
) -> bytes:
    """A zip archive as of torch.save, with any pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as parts:
        parts.writestr("archive/data.pkl", program)
        parts.writestr("archive/byteorder", "little")
        for name, content in (storages or {"0": bytes(64)}).items():
            parts.writestr(f"archive/data/{name}", content)
        parts.writestr("archive/version", "3\n")
    return file.getvalue()


def claim(numel: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    """The pickle of a tensor over the storage "0", of which it claims `numel` numbers."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: object) -> Any:
            return (
                ("storage", torch.FloatStorage, "0", "cpu", numel) if value == "STORAGE" else None
            )

    file = io.BytesIO()
    Pickler(file, 2).dump({"a": Call(REBUILD, "STORAGE", 0, shape, stride, False, OrderedDict())})
    return file.getvalue()


def legacy_claim(numel: int) -> bytes:
    """The older format with the storage of one number, which is called longer."""
    content = saved({"a": torch.zeros(77)}, legacy=True)
    # the operation for the number 77: of the storage, and in the shape
    assert content.count(b"KM") >= 2
    return content.replace(b"KM", b"J" + struct.pack("<i", numel))


def hashed_twice(depth: int) -> bytes:
    """A dict with a key that is a pair of a pair twice, and so on: hashing it takes 2 ** depth
    steps."""
    program = b"\x80\x02}()q\x00"
    for number in range(depth):
        program += b"h" + bytes([number]) + b"h" + bytes([number]) + b"\x86q" + bytes([number + 1])
    return program + b"N" * (1 - depth % 2) + b"u."  # SETITEMS takes pairs of a key and a value


def nested(depth: int) -> bytes:
    """A dict with a key that is a tuple in a tuple, and so on."""
    return b"\x80\x02})" + b"\x85" * depth + b"K\x01s."


def compressed(content: dict[str, torch.Tensor]) -> bytes:
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(saved(content))) as old,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for part in old.infolist():
            new.writestr(part.filename, old.read(part))
    return file.getvalue()


def two_pickles() -> bytes:
    file = io.BytesIO(archive(claim(16, (4, 4), (4, 1))))
    with zipfile.ZipFile(file, "a") as parts:
        parts.writestr("other/DATA.PKL", pickle.dumps(Call(os.system, "true"), 2))
    return file.getvalue()


def tar_of(content: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in ("storages", "tensors", "pickle"):
            part = tarfile.TarInfo(name)
            part.size = len(content)
            tar.addfile(part, io.BytesIO(content))
    return file.getvalue()


def scripted() -> bytes:
    file = io.BytesIO()
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), file)
    return file.getvalue()


ONES = torch.ones(4, 4)
NAMED = r"the pickle names '\S+', which dense tensors are not made of"
TABLE = "a table of tensors is expected"
# What is seen before torch is imported: by the child, in a moment.
SEEN_AT_ONCE: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "os.system": (lambda canary: saved({"a": ONES, "b": Bomb(canary)}), "names 'posix.system'"),
    "os.system, older format": (
        lambda canary: saved({"b": Bomb(canary)}, legacy=True),
        "names 'posix.system'",
    ),
    "eval": (
        lambda canary: saved({"a": Call(builtins.eval, f"open({str(canary)!r}, 'w')")}),
        "__builtin__.eval",
    ),
    "os.system in the keys of the older format": (
        lambda canary: saved({"a": ONES}, legacy=True).replace(
            b"\x80\x02]q\x00", b"\x80\x02cposix\nsystem\nq\x00"
        ),
        "posix.system|damaged",
    ),
    "a pickle": (lambda canary: pickle.dumps(Bomb(canary)), r"not a file of torch\.save"),
    "names of protocol 4": (lambda canary: saved({"b": Bomb(canary)}, protocol=4), "in a way that"),
    "an old way to name classes": (
        lambda canary: archive(b"(S'touch %s'\nios\nsystem\n." % str(canary).encode()),
        "in a way that",
    ),
    "a number of a registered class": (lambda _: archive(b"\x80\x02\x82\x01."), "in a way that"),
    "torch.load": (lambda _: saved(Call(torch.load, "x")), NAMED),
    "a pickle in a storage": (lambda _: saved(Call(torch.storage._load_from_bytes, b"x")), NAMED),
    "torch.hub": (lambda _: saved(Call(torch.hub.set_dir, "x")), NAMED),
    "torch.set_num_threads": (lambda _: saved(Call(torch.set_num_threads, 99)), NAMED),
    "a library": (lambda _: archive(b"\x80\x02ctorch._ops\n_Ops.load_library\n."), NAMED),
    "getattr": (lambda _: archive(b"\x80\x02c__builtin__\ngetattr\n."), NAMED),
    "a name with a space": (lambda _: archive(b"\x80\x02ccollections OrderedDict\n\n."), NAMED),
    "bytearray": (
        lambda _: archive(b"\x80\x02c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R."),
        NAMED,
    ),
    "sparse": (lambda _: saved({"a": ONES.to_sparse()}), NAMED),
    "complex numbers": (lambda _: saved({"a": torch.ones(4, dtype=torch.complex64)}), NAMED),
    "quantized": (lambda _: archive(b"\x80\x02ctorch._utils\n_rebuild_qtensor\n."), NAMED),
    "a tensor without storage": (lambda _: saved({"a": ONES.to("meta")}), NAMED),
    "a network": (lambda _: saved(torch.nn.Linear(2, 2)), NAMED),
    "a script": (lambda _: scripted(), "is compressed"),
    "tar": (lambda canary: tar_of(pickle.dumps(Bomb(canary))), r"not a file of torch\.save"),
    "compressed": (lambda _: compressed({"a": torch.zeros(1000, 1000)}), "is compressed"),
    "two pickles": (lambda _: two_pickles(), "does not have one data.pkl"),
    "no pickle": (
        lambda _: archive(b"").replace(b"data.pkl", b"data.pki"),
        "does not have one data.pkl",
    ),
    "cut": (lambda _: saved({"a": ONES})[:-100], "damaged"),
    "cut, older format": (lambda _: saved({"a": ONES}, legacy=True)[:60], "damaged"),
    "empty": (lambda _: b"", r"not a file of torch\.save"),
    "text": (lambda _: b"404: Not Found", r"not a file of torch\.save"),
    "a pointer of Git LFS": (lambda _: b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
    "very many operations": (
        lambda _: archive(b"\x80\x02" + b"0N" * 1_100_000 + b"."),
        "more operations",
    ),
}
SEEN_LATER: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "a row repeated": (
        lambda _: saved({"a": torch.ones(1).expand(1 << 30)}),
        "elements of its storage several times",
    ),
    "rows that overlap": (
        lambda _: saved({"a": torch.ones(99).as_strided((50, 50), (1, 1))}),
        "several times",
    ),
    "a shape larger than its storage": (
        lambda _: archive(claim(16, (1 << 30,), (1,))),
        "restricted loader",
    ),
    "a storage larger than the file": (
        lambda _: archive(claim(1 << 30, (1 << 30,), (1,))),
        "restricted loader|claim",
    ),
    "a negative size": (lambda _: archive(claim(-5, (2,), (1,))), "restricted loader|claim"),
    "a negative shape": (lambda _: archive(claim(16, (-2,), (1,))), "restricted loader"),
    "a storage that is not there": (
        lambda _: archive(claim(4, (4,), (1,)), {"7": bytes(9)}),
        "restricted loader",
    ),
    "a longer storage, older format": (lambda _: legacy_claim(1 << 28), "restricted loader"),
    "one storage many times": (
        lambda _: saved(dict.fromkeys(map("a{}".format, range(99)), torch.ones(9999))),
        "the tensors claim",
    ),
    "a list": (lambda _: saved([ONES]), f"{TABLE}, not a list"),
    "a tensor": (lambda _: saved(ONES), f"{TABLE}, not a Tensor"),
    "nested too deeply": (
        lambda _: saved({"state_dict": {"state_dict": {"a": ONES}}}),
        "state_dict is a dict",
    ),
    "a number": (lambda _: saved({"a": 3}), "a is a int, not a tensor"),
    "a number as a name": (lambda _: saved({3: ONES}), "has names, not a int"),
    "many axes": (lambda _: saved({"a": torch.ones((1,) * 9)}), "9 axes"),
    **{
        f"the name {name!r}": (
            lambda _, name=name: saved({name: ONES}),
            "is not a valid name of a tensor",
        )
        for name in (
            "a/b",
            "../a",
            "a..b",
            "",
            ".a",
            "a\nb",
            "\x1b[2J",
            "a b",
            "é",
            "__metadata__",
            "a" * 301,
        )
    },
}


def refused(bert: Path, content: bytes, said: str) -> None:
    """A hostile file is refused, nothing is written, and nothing that it wants is done."""
    (bert / "model.safetensors").unlink()
    (bert / PICKLE).write_bytes(content)
    before = contents(bert)
    with pytest.raises(BertworksError, match=said) as raised:
        converted(bert, bert.parent / "ours")
    assert raised.value.where == str(bert / PICKLE)
    assert raised.value.hint
    assert contents(bert) == before
    # no canary, no output, no file of the work
    assert [path.name for path in bert.parent.iterdir()] == ["theirs"]


@pytest.mark.parametrize("kind", SEEN_AT_ONCE)
def test_a_file_that_is_more_than_tensors_is_refused(kind: str, bert: Path, tmp_path: Path):
    write, said = SEEN_AT_ONCE[kind]
    refused(bert, write(tmp_path / "canary"), said)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SEEN_LATER)
def test_the_child_refuses_tensors_that_are_none(kind: str, bert: Path, tmp_path: Path):
    write, said = SEEN_LATER[kind]
    refused(bert, write(tmp_path / "canary"), said)


def test_the_child_has_limits(bert: Path, monkeypatch: pytest.MonkeyPatch):
    """A claim of 2 GB in a small file is more memory than the child may have. Hashing that never
    ends is stopped."""
    refused(bert, legacy_claim(1 << 29), "allocate memory")
    (bert / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr(pickled_weights, "_FIRST_SECONDS", 4)
    refused(bert, archive(hashed_twice(60)), "it takes more than 4 s|signal (9|24)")


@pytest.mark.slow
def test_a_child_that_crashes_is_reported(bert: Path):
    refused(
        bert, archive(nested(1_900_000)), "signal 11|a table of tensors has names|restricted loader"
    )


def test_a_folder_in_place_of_a_pickle_is_refused(tmp_path: Path):
    (tmp_path / PICKLE).mkdir()
    with refusal("a folder, a pipe or a device", "choose a model with safetensors"):
        pickled_weights.read_pickled_weights(tmp_path / PICKLE, tmp_path, tmp_path)


def test_the_end_of_the_process_that_reads_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    torch.save({"a": torch.ones(2)}, tmp_path / PICKLE)
    program = tmp_path / "reader.py"
    program.write_text("import sys; sys.exit('no memory')")
    monkeypatch.setattr(pickled_weights.pickle_reader, "__file__", str(program))
    with refusal(
        "the process that read it has ended (exit code 1 no memory)",
        "choose a model with safetensors",
    ):
        pickled_weights.read_pickled_weights(tmp_path / PICKLE, tmp_path, tmp_path)

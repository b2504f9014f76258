"""Translators as ONNX files: driven by onnxruntime alone, by bertworks, beside the network."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers
from numpy.typing import NDArray

import bertworks as bw
from bertworks.checkpoints.model_files import EXPORTED_TRANSLATOR
from bertworks.errors import BertworksError
from bertworks.events import Event
from bertworks.inference.translation import Translator
from bertworks.interop.export import export
from bertworks.interop.trace import write_translator as write_onnx_files
from tests.support.fine import FILLER, PEOPLE, tokenizer, write_reviews, write_translator
from tests.support.marian import write_marian
from tests.support.refusals import refusal
from tests.support.shell import Shell
from tests.support.translators import marian

TEXTS = [
    "the film was a story",
    "Anna heard some music in this town last night",
    "men and dogs",
    "a",
    "Boris and Clara heard the men of this town",
]
LIMIT = 9
KINDS = ("own", "native", "marian")


def write_marian_folder(folder: Path) -> Path:
    """A folder of Marian as it is published, with random weights and a forbidden token."""
    lines = [" ".join([*FILLER[n:], *PEOPLE, *FILLER[:n]]) for n in range(len(FILLER))] * 3
    write_marian(folder, lines, lines, num_pieces=100)
    numbers = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    pad = numbers["<pad>"]
    end = numbers["</s>"]
    ids = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": end}
    network = marian(vocab_size=len(numbers), forced_eos_token_id=end, **ids)
    # The text decides over the tokens, not the bias of a token.
    network.final_logits_bias.mul_(0.1)
    network.model.shared.weight.data.normal_()
    network.generation_config = transformers.GenerationConfig(
        **ids, forced_eos_token_id=end, bad_words_ids=[[pad]], num_beams=3, length_penalty=0.8
    )
    network.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models of each kind; the exported ones are named "onnx" beside them."""
    root = tmp_path_factory.mktemp("translators")
    models = {
        "own": write_translator(root / "own/model", length=64),
        # With what only encoders of other families have.
        "native": write_translator(
            root / "native/model",
            recipe="summarize",
            t=tokenizer(24),
            type_vocab_size=2,
            embedding_size=16,
            norm_first=True,
        ),
        "marian": write_marian_folder(root / "marian/model"),
    }
    for model in models.values():
        run(model, model.with_name("onnx"))
    return models


def run(model: Path, output: Path, **options: Any) -> list[Event]:
    return list(export(model, output, **options))


class Driver:
    """Greedy translations by three files, without bertworks."""

    def __init__(self, folder: Path):
        self.sessions = [
            onnxruntime.InferenceSession(str(folder / name), providers=["CPUExecutionProvider"])
            for name in EXPORTED_TRANSLATOR
        ]

    def run(self, number: int, **inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        session = self.sessions[number]
        names = [value.name for value in session.get_outputs()]
        return dict(zip(names, session.run(names, inputs), strict=True))

    def read(self, sources: Sequence[Sequence[int]]) -> tuple[NDArray[Any], NDArray[Any]]:
        """The mask and the states of sources, which are padded with the token 1."""
        longest = max(map(len, sources))
        ids = np.array([[*ids, *[1] * (longest - len(ids))] for ids in sources])
        mask = np.array([[1] * len(ids) + [0] * (longest - len(ids)) for ids in sources])
        states = self.run(0, input_ids=ids, attention_mask=mask)["last_hidden_state"]
        return mask, states

    def translate(
        self, translator: Translator, sources: Sequence[Sequence[int]], *, repeats: bool
    ) -> list[list[int]]:
        """The tokens of each translation, fewer than LIMIT, without the one that ends it.

        repeats: whether a token may be in a translation twice.
        """
        mask, states = self.read(sources)
        tokens = np.full((len(sources), 1), translator.start_id)
        outputs = self.run(
            1, input_ids=tokens, encoder_attention_mask=mask, encoder_hidden_states=states
        )
        past: dict[str, NDArray[Any]] = {}
        translations: list[list[int]] = [[] for _ in sources]
        for _ in range(LIMIT - 1):
            logits = outputs.pop("logits")[:, -1]
            logits[:, list(translator.rules().forbidden)] = -np.inf
            for row, ids in enumerate([] if repeats else translations):
                logits[row, ids] = -np.inf
            tokens = logits.argmax(-1)[:, None]
            for ids, token in zip(translations, tokens[:, 0].tolist(), strict=True):
                ids.append(token)
            past |= {
                name.replace("present", "past_key_values"): value for name, value in outputs.items()
            }
            outputs = self.run(2, input_ids=tokens, encoder_attention_mask=mask, **past)
        return [
            ids[
                : min(
                    [ids.index(end) for end in translator.end_ids if end in ids], default=len(ids)
                )
            ]
            for ids in translations
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_onnxruntime_alone_writes_the_same_tokens(kind: str, folders: dict[str, Path]):
    model = folders[kind]
    translator = Translator(model, "cpu", "fp32")
    sources = [ids for text in TEXTS for ids in translator.sources(text, 1, None, cuts=False)]
    driver = Driver(model.with_name("onnx"))
    for repeats in (True, False):
        together = driver.translate(translator, sources, repeats=repeats)
        options = {} if repeats else {"no_repeat_ngram": 1}
        answers = bw.translate(model, TEXTS, beam=1, max_tokens=LIMIT, precision="fp32", **options)
        assert together == [answer["ids"] for answer in answers]
        alone = [driver.translate(translator, [ids], repeats=repeats)[0] for ids in sources]
        assert alone == together
    # else a network that reads nothing would pass
    assert len({tuple(ids) for ids in together}) > len(TEXTS) // 2
    assert len({token for ids in together for token in ids}) > LIMIT


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_translation_has_the_logits_of_its_steps(kind: str, folders: dict[str, Path]):
    """The decoder without a cache reads any number of tokens, as in programs without one."""
    driver = Driver(folders[kind].with_name("onnx"))
    mask, states = driver.read([[3, 9, 7, 5, 2], [4, 6]])
    tokens = np.array([[0, 8, 9, 10, 7], [0, 5, 6, 5, 4]])
    inputs = {"encoder_attention_mask": mask, "encoder_hidden_states": states}
    whole = driver.run(1, input_ids=tokens, **inputs)
    outputs = driver.run(1, input_ids=tokens[:, :2], **inputs)
    past: dict[str, NDArray[Any]] = {}
    for column in range(2, tokens.shape[1] + 1):
        logits = outputs.pop("logits")[:, -1]
        np.testing.assert_allclose(logits, whole["logits"][:, column - 1], atol=1e-4)
        past |= {name.replace("present", "past_key_values"): outputs[name] for name in outputs}
        if column < tokens.shape[1]:
            step = tokens[:, column : column + 1]
            outputs = driver.run(2, input_ids=step, encoder_attention_mask=mask, **past)
    for name, value in whole.items():
        if name != "logits":
            read = past[name.replace("present", "past_key_values")]
            np.testing.assert_allclose(read, value, atol=1e-4)


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_another_program_gets_the_logits_of_transformers(folders: dict[str, Path]):
    model = transformers.MarianMTModel.from_pretrained(folders["marian"]).eval()
    driver = Driver(folders["marian"].with_name("onnx"))
    mask, states = driver.read([[3, 9, 7, 5, 2], [4, 6]])
    tokens = np.array([[0, 8, 9], [0, 5, 6]])
    found = driver.run(
        1, input_ids=tokens, encoder_attention_mask=mask, encoder_hidden_states=states
    )
    with torch.no_grad():
        expected = model(
            input_ids=torch.tensor([[3, 9, 7, 5, 2], [4, 6, 1, 1, 1]]),
            attention_mask=torch.from_numpy(mask),
            decoder_input_ids=torch.from_numpy(tokens),
        )
    np.testing.assert_allclose(found["logits"], expected.logits.numpy(), atol=1e-4)
    # The keys and values are in the order in which transformers gives them.
    layers = [layer for layer in range(model.config.decoder_layers) for _ in range(4)]
    assert [name for name in found if name != "logits"] == [
        f"present.{layer}.{part}"
        for layer, part in zip(
            layers,
            ["decoder.key", "decoder.value", "encoder.key", "encoder.value"] * len(layers),
            strict=False,
        )
    ]
    cache = expected.past_key_values
    for layer in range(model.config.decoder_layers):
        key = cache.self_attention_cache.layers[layer].keys
        np.testing.assert_allclose(found[f"present.{layer}.decoder.key"], key.numpy(), atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_folder_translates_as_the_model(kind: str, folders: dict[str, Path]):
    model = folders[kind]
    onnx_folder = model.with_name("onnx")
    for beam in (1, 3):
        ours = bw.translate(model, TEXTS, beam=beam, max_tokens=LIMIT, precision="fp32")
        exported = bw.translate(onnx_folder, TEXTS, beam=beam, max_tokens=LIMIT)
        for one, other in zip(ours, exported, strict=True):
            assert one["ids"] == other["ids"]
            assert one["translation"] == other["translation"]
            assert abs(one["score"] - other["score"]) < 1e-4
    loaded = bw.load(onnx_folder)
    assert loaded.can == ("translate",)
    assert loaded.translate(TEXTS[:1], max_tokens=LIMIT)
    with refusal("no attributions", "load the model that it was exported from"):
        loaded.explain("a")
    with refusal("it translates texts", "use translate"):
        loaded.embed(["a"])
    with refusal("only encoder_model.onnx", "use the folder that it was exported from"):
        bw.load_model(onnx_folder)


def test_the_folder_explains_itself(folders: dict[str, Path]):
    model = folders["marian"]
    onnx_folder = model.with_name("onnx")
    weights = {"model.safetensors"}
    copied = {path.name for path in model.iterdir()} - weights
    written = {path.name for path in onnx_folder.iterdir()}
    assert written == copied | {"README.md", "export.json", *EXPORTED_TRANSLATOR}
    for name in copied - {"tokenizer_config.json"}:
        assert (onnx_folder / name).read_bytes() == (model / name).read_bytes(), name
    page = (onnx_folder / "README.md").read_text()
    assert "past_key_values.N" in page
    assert "ORTModelForSeq2SeqLM" in page
    for name in EXPORTED_TRANSLATOR:
        assert f"`{name}`" in page
        onnx.checker.check_model(str(onnx_folder / name), full_check=True)
        # The table of positions is a constant.
        graph = onnx.load(str(onnx_folder / name)).graph
        assert "Sin" not in {node.op_type for node in graph.node}


def test_a_finished_export_is_recognised(folders: dict[str, Path], tmp_path: Path):
    model = folders["own"]
    *notes, done = run(model, tmp_path / "onnx", subfolder=True)
    assert done.fields["largest_difference"] < 1e-4
    assert [note.text.split(" on ")[0] for note in notes][1:] == ["speed"]
    files = [tmp_path / "onnx/onnx" / name for name in EXPORTED_TRANSLATOR]
    assert done.fields["bytes"] == sum(path.stat().st_size for path in files)
    assert all(str(path) in done.text for path in files)
    note, _ = run(model, tmp_path / "onnx", subfolder=True)
    assert "already holds the complete export" in note.text
    assert next(iter(bw.translate(tmp_path / "onnx", TEXTS[:1], max_tokens=3)))["ids"]
    content = bytearray(files[1].read_bytes())
    content[len(content) // 2] ^= 1
    files[1].write_bytes(content)
    with refusal("an ONNX file is damaged", "export the model again"):
        Translator(tmp_path / "onnx")
    with refusal("not empty", ""):
        run(model, tmp_path / "onnx", subfolder=True)


def test_eight_bits(folders: dict[str, Path], tmp_path: Path):
    model = folders["marian"]
    *_, done = run(model, tmp_path / "onnx", int8=True)
    cost = done.fields["cost"]
    assert 0 < cost["mean"] < cost["largest"] < cost["deviation"]
    assert done.fields["bytes"] < sum(
        (model.with_name("onnx") / name).stat().st_size for name in EXPORTED_TRANSLATOR
    )
    types = {
        tensor.name: tensor.data_type
        for tensor in onnx.load(str(tmp_path / "onnx" / EXPORTED_TRANSLATOR[2])).graph.initializer
    }
    assert onnx.TensorProto.INT8 in types.values()
    answers = list(bw.translate(tmp_path / "onnx", TEXTS, max_tokens=LIMIT))
    assert all(answer["ids"] for answer in answers)


@pytest.mark.parametrize("part", ["encoder", "decoder", "lm_head"])
def test_files_that_differ_are_not_kept(
    part: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def wrong(paths: Sequence[Path], network: Any) -> None:
        other = copy.deepcopy(network)
        weights = list(getattr(other, part).parameters())
        weights[-1].data += 0.1
        write_onnx_files(paths, other)

    monkeypatch.setattr("bertworks.interop.export.write_translator", wrong)
    with pytest.raises(BertworksError, match=r"differs from the model by .* it is not kept"):
        run(folders["own"], tmp_path / "onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_step_is_not_kept(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Only the third file differs, which computes the last tokens of what is compared."""

    def wrong(paths: Sequence[Path], network: Any) -> None:
        write_onnx_files(paths, network)
        other = copy.deepcopy(network)
        other.lm_head.bias.data += 0.001
        rest = [path.with_name(f"other-{path.name}") for path in paths[:2]]
        write_onnx_files([*rest, paths[2]], other)
        for path in rest:
            path.unlink()

    monkeypatch.setattr("bertworks.interop.export.write_translator", wrong)
    with pytest.raises(BertworksError, match=r"differs from the model by 1\.0e-03 on 1 x 1 tokens"):
        run(folders["own"], tmp_path / "onnx")


def test_what_cannot_be_exported_says_so(folders: dict[str, Path], tmp_path: Path, shell: Shell):
    model = folders["own"]
    recurrent = write_translator(tmp_path / "lstm", recipe="seq2seq-luong")
    target = tmp_path / "onnx"
    for options in ([], ["--encoder"]):
        command: list[object] = ["export", recurrent, "-o", target, *options]
        shell.refuses(command, "are LSTMs", "--recipe transformer-tiny")
    command = ["export", model, "-o", target]
    shell.refuses([*command, "--encoder"], "is not exported without its decoder", "leave --encoder")
    data = write_reviews(tmp_path / "rows.csv")
    shell.refuses(
        [*command, "--data", data], "no head of a task", f"evaluate translation {target} SOURCE"
    )
    shell.refuses(
        ["export", model.with_name("onnx"), "-o", target],
        "this is an exported model",
        "use the model that it was made from",
    )
    shell.refuses(
        ["translate", model.with_name("onnx"), "a film", "--precision", "int8"],
        "in the precision of its file",
        "",
    )
    assert not target.exists()


def test_files_of_another_network_are_refused(folders: dict[str, Path], tmp_path: Path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    for path in folders["own"].with_name("onnx").iterdir():
        if path.name != "export.json":
            (folder / path.name).write_bytes(path.read_bytes())
    name = EXPORTED_TRANSLATOR[2]
    (folder / name).write_bytes((folders["marian"].with_name("onnx") / name).read_bytes())
    with refusal("are not those of the network in config.json", "export the model again with"):
        Translator(folder)
    (folder / name).unlink()
    with pytest.raises(BertworksError, match="cannot be read"):
        Translator(folder)


def test_the_command_translates_and_evaluates_the_folder(
    folders: dict[str, Path], tmp_path: Path, shell: Shell
):
    onnx_folder = folders["own"].with_name("onnx")
    printed = shell.works("translate", onnx_folder, TEXTS[0], "--max-tokens", 5, "--json")
    assert len(json.loads(printed.splitlines()[0])["ids"]) <= 5
    for name in ("source.txt", "target.txt"):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in TEXTS * 4))
    command = ["evaluate", "translation", onnx_folder, tmp_path / "source.txt"]
    assert "BLEU" in shell.works(*command, tmp_path / "target.txt")

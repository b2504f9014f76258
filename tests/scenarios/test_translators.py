"""Translators as a user has them: pairs -> a model; texts and files -> translations.

The networks are tiny and hardly trained: their translations are compared, not read.
"""

import json
import random
import shutil
from collections.abc import Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import transformers

import bertworks as bw
from bertworks.config import parse_as
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation import ablation
from bertworks.evaluation.ablation import NOT_RESOLVED, PACKAGED, Ablation
from bertworks.evaluation.translation import translation_metric
from bertworks.events import Event
from bertworks.inference.translation import Translator
from bertworks.metrics.translation import bleu
from bertworks.runs.pretrain_job import notes_on_pairs
from bertworks.runs.run_folder import write_plans
from bertworks.training.budget import Plan
from tests.support.marian import write_marian
from tests.support.shell import Shell
from tests.support.translators import marian

NOUNS = "dog cat man woman child bird horse boat river house street garden".split()
VERBS = "sees takes leaves finds likes paints".split()
TRANSLATED = dict(
    zip(
        NOUNS + VERBS,
        "Hund Katze Mann Frau Kind Vogel Pferd Boot Fluss Haus Gasse Garten "
        "sieht nimmt verlässt findet mag malt".split(),
        strict=True,
    )
)
SMALL = (
    "vocabulary.size=400",
    "encoder.hidden_size=32",
    "encoder.num_attention_heads=2",
    "encoder.intermediate_size=48",
    "encoder.num_hidden_layers=1",
    "encoder.decoder.num_hidden_layers=1",
    "train.phases.0.num_steps=6",
    "train.phases.0.batch_size=16",
    "train.average=3",
    "train.precision=fp32",
    "optimizer.warmup_steps=3",
)


def pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        words = [draw.choice(NOUNS), draw.choice(VERBS), draw.choice(NOUNS)]
        first, verb, second = (TRANSLATED[word] for word in words)
        rows.append((f"The {words[0]} {words[1]} the {words[2]}.", f"{first} {verb} {second}."))
    return rows


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pairs")
    rows = pairs(400)
    for side, name in enumerate(("train.en", "train.de")):
        (folder / name).write_text("".join(f"{row[side]}\n" for row in rows), encoding="utf-8")
    return folder / "train.en", folder / "train.de"


@pytest.fixture(scope="module")
def model(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translator") / "mt"
    events = bw.pretrain(
        [], folder, parallel=list(map(str, files)), recipe="transformer-tiny", overrides=SMALL
    )
    texts = [event.text for event in events]
    assert any("translate" in text for text in texts[-1:])
    assert any("held-out pairs that are also in the training" in text for text in texts)
    return folder


@pytest.fixture(scope="module")
def marian_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as it is published, with random weights."""
    folder = tmp_path_factory.mktemp("marian")
    rows = pairs(300, seed=1)
    write_marian(folder, [a for a, _ in rows], [b for _, b in rows], num_pieces=120)
    numbers = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    pad, end = numbers["<pad>"], numbers["</s>"]
    ids = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": end}
    network = marian(vocab_size=len(numbers), forced_eos_token_id=end, **ids)
    network.generation_config = transformers.GenerationConfig(
        **ids,
        forced_eos_token_id=end,
        bad_words_ids=[[pad]],
        num_beams=3,
        max_length=12,
        length_penalty=0.8,
        early_stopping=True,
    )
    network.save_pretrained(folder)
    return folder


def translated_by_transformers(folder: Path, texts: list[str]) -> list[str]:
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    network = transformers.MarianMTModel.from_pretrained(folder)
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    decoded: list[str] = tokenizer.batch_decode(
        network.generate(**inputs), skip_special_tokens=True
    )
    return decoded


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_a_marian_folder_translates_as_in_transformers(marian_folder: Path):
    texts = [source for source, _ in pairs(6, seed=2)]
    answers = list(bw.translate(marian_folder, texts, precision="fp32"))
    expected = translated_by_transformers(marian_folder, texts)
    assert [answer["translation"] for answer in answers] == [text.strip() for text in expected]
    assert bw.load(marian_folder, precision="fp32").translate(texts) == answers


@pytest.mark.filterwarnings("ignore")
def test_a_marian_folder_is_converted_and_opens_in_transformers(
    marian_folder: Path, tmp_path: Path
):
    list(bw.convert(marian_folder, tmp_path / "copy"))
    _, info = transformers.MarianMTModel.from_pretrained(
        tmp_path / "copy", output_loading_info=True
    )
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    texts = [source for source, _ in pairs(3, seed=3)]
    expected = translated_by_transformers(marian_folder, texts)
    assert translated_by_transformers(tmp_path / "copy", texts) == expected
    for name in ("generation_config.json", "source.spm", "target.spm", "vocab.json"):
        assert (tmp_path / "copy" / name).read_bytes() == (marian_folder / name).read_bytes(), name


@pytest.mark.filterwarnings("ignore")
def test_a_marian_folder_is_trained_further(
    marian_folder: Path, files: tuple[Path, Path], tmp_path: Path
):
    folder = tmp_path / "further"
    overrides = [
        "train.phases.0.num_steps=3",
        "train.phases.0.batch_size=8",
        "train.phases.0.sequence_length=64",
        "train.precision=fp32",
    ]
    list(
        bw.pretrain(
            [],
            folder,
            parallel=list(map(str, files)),
            init=str(marian_folder),
            recipe="transformer-base",
            overrides=overrides,
        )
    )
    tokenizer = bw.Tokenizer.load(marian_folder)
    shards = bw.Shards.open(folder / "shards")
    source, target = (path.read_text(encoding="utf-8").splitlines()[0] for path in files)
    starts = shards.sentences[shards.documents[:3]].tolist()
    assert shards.tokens[starts[0] : starts[1]].tolist() == tokenizer.ids([source])[0]
    assert shards.tokens[starts[1] : starts[2]].tolist() == tokenizer.target.ids([target])[0]
    texts = [source]
    ours = [answer["translation"] for answer in bw.translate(folder, texts, precision="fp32")]
    assert ours == [text.strip() for text in translated_by_transformers(folder, texts)]


def test_texts_files_and_lines_have_equal_translations(model: Path, tmp_path: Path, shell: Shell):
    texts = ["The dog sees the cat.", "A boat", "", "The man paints the house."]
    answers = list(bw.translate(model, texts, max_tokens=6, precision="fp32"))
    assert [answer["text"] for answer in answers] == texts
    assert answers[2]["translation"] == ""
    assert answers[2]["finish_reason"] == "end_token"
    table = tmp_path / "texts.csv"
    table.write_text("id,text\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(texts)))
    options: dict[str, Any] = {"max_tokens": 6, "precision": "fp32", "text": "text"}
    list(bw.translate_file(model, table, tmp_path / "out.jsonl", **options))
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == texts
    assert [int(row["id"]) for row in rows] == [0, 1, 2, 3]
    for row, answer in zip(rows, answers, strict=True):
        assert row["translation"] == answer["translation"]
        assert row["finish_reason"] == answer["finish_reason"]
    list(bw.translate_file(model, table, tmp_path / "out.txt", **options))
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()
    assert lines == [answer["translation"] for answer in answers]
    command = ["translate", model, table, "--text", "text", "--max-tokens", 6]
    printed = shell.works(*command, "--precision", "fp32")
    assert printed.startswith("".join(f"{line}\n" for line in lines))


def test_a_text_that_reached_the_limit_is_named(model: Path, shell: Shell):
    """A bias makes all tokens but the end likely, so that every text reaches the limit."""
    network = bw.load_model(model)
    state = dict(network.state)
    end = network.tokenizer.template.suffix[-1]
    state["lm_head.bias"] = state["lm_head.bias"].clone()
    state["lm_head.bias"][end] = -1e4
    folder = model.parent / "endless"
    bw.save_model(folder, state, network.config, network.tokenizer, card="")
    config = json.loads((folder / "config.json").read_text())
    config["forced_eos_token_id"] = None
    (folder / "config.json").write_text(json.dumps(config))
    printed = shell.works("translate", folder, "The dog sees the cat.", "--max-tokens", 4, "--json")
    answer = json.loads(printed.splitlines()[0])
    assert answer["finish_reason"] == "max_tokens"
    assert len(answer["ids"]) == 4
    assert "reached the limit of their tokens, and may lack their end: 1 (texts 1)" in printed


def test_a_long_paragraph_is_translated_sentence_by_sentence(model: Path):
    tokenizer = bw.Tokenizer.load(model)
    sentences = [source for source, _ in pairs(60, seed=5)]
    longest = bw.load(model).config.max_position_embeddings
    assert len(tokenizer.encode(" ".join(sentences)).ids) > longest
    (answer,) = bw.translate(model, [" ".join(sentences)], max_tokens=3)
    assert answer["score"] < 0
    word = "x" * 8 * longest
    with pytest.raises(BertworksError, match=r"a sentence of .* tokens: the model reads") as raised:
        list(bw.translate(model, [word]))
    assert "--cut" in str(raised.value.hint)
    assert len(list(bw.translate(model, [word], cut=True, max_tokens=3))) == 1


def test_a_text_is_divided_that_is_longer_than_those_of_the_training(
    files: tuple[Path, Path], model: Path
):
    tokenizer = bw.Tokenizer.load(model)
    sources = files[0].read_text(encoding="utf-8").splitlines()
    lengths = [len(tokenizer.encode(source).ids) for source in sources]
    assert tokenizer.model_max_length in lengths  # the longest one can be held out
    assert tokenizer.model_max_length < bw.load(model).config.max_position_embeddings
    translator = Translator(model)
    sentences = [source for source, _ in pairs(3, seed=6)]
    parts = translator.sources(" ".join(sentences), 1, None, cuts=False)
    assert parts == [tokenizer.encode(sentence).ids for sentence in sentences]
    # A single long sentence is not divided, as long as there are positions for it.
    words = " ".join("dog" for _ in range(2 * tokenizer.model_max_length))
    (part,) = translator.sources(words, 1, None, cuts=False)
    assert len(part) > tokenizer.model_max_length


def test_other_commands_refuse_a_translator_and_name_the_right_one(
    model: Path, tmp_path: Path, shell: Shell
):
    loaded = bw.load(model)
    assert loaded.can == ("explain", "translate")
    for use in (
        lambda: loaded.embed(["a"]),
        lambda: loaded.fill(["a"]),
        lambda: bw.Embedder(model),
    ):
        with pytest.raises(BertworksError, match="translates texts"):
            use()
    labelled = tmp_path / "rows.csv"
    labelled.write_text("text,label\n" + "good,yes\nbad,no\n" * 20)
    command = ["finetune", labelled, "--model", model, "-o", tmp_path / "x"]
    shell.refuses(command, "cannot be fine-tuned", "--init")
    lines = tmp_path / "lines.txt"
    lines.write_text("A text.\n" * 20)
    for words in (
        ["embed", model, "A text"],
        ["generate", model, "A text"],
        ["index", lines, "-o", tmp_path / "i", "--model", model],
        ["evaluate", "mlm", model, lines],
    ):
        shell.refuses(words, "translates texts", "bertworks translate")
    shell.refuses(["translate", "minilm", "A text"], "no decoder", "transformer-tiny")
    for beam in (0, 1000):
        with pytest.raises(UsageError, match=f"beam is {beam}"):
            list(bw.translate(model, ["a"], beam=beam))


def test_bad_pairs_are_refused(files: tuple[Path, Path], tmp_path: Path, shell: Shell):
    source, target = files
    short = tmp_path / "short.de"
    short.write_text("Ein Satz.\n")
    rest = ["-o", tmp_path / "mt", "--recipe", "transformer-tiny"]
    command = ["pretrain", "--parallel", source, short, *rest]
    shell.refuses(command, "has 400 lines", "in each line")
    command = ["pretrain", "--parallel", source, target, *rest]
    shell.refuses([*command[:-1], "bert-tiny"], "learns from text", "--recipe transformer-tiny")
    shell.refuses(["pretrain", source, *rest], "pairs of texts alone", "--parallel")
    settings = ("lowercase=true", "special_tokens=bert", "algorithm=wordpiece")
    lower = [word for setting in settings for word in ("--set", f"vocabulary.{setting}")]
    assert "characters of the text" in shell.fails(*command, *lower)
    assert not (tmp_path / "mt").exists()


def test_pairs_to_look_at_are_counted(model: Path):
    from bertworks.runs.pretrain_job import PretrainJob, Text
    from bertworks.training.recipe import load_recipe

    recipe = load_recipe(str(model / "recipe.toml"))
    shards = bw.Shards.open(model / "shards")
    job = PretrainJob(recipe, shards, texts=[Text((), shards, is_parallel=True)])
    notes = list(notes_on_pairs(job.parts[0], model / "plans", recipe))
    _, documents, held_out = job.parts[0]
    rows = pairs(400)
    training = {rows[number] for number in documents.tolist()}
    repeated = {rows[number] for number in held_out.tolist()} & training
    assert f": {len(repeated):,} of {len(held_out):,} " in notes[0]
    assert len(notes) == 1  # no pair is too long


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"repetition_penalty": 1.2}, "repetition_penalty is 1.2, which is not computed"),
        ({"suppress_tokens": [5]}, "suppress_tokens is .*, which is not computed"),
        ({"do_sample": True}, "do_sample is true: translations are not sampled"),
        ({"num_beams": 0}, "num_beams is 0: expected a whole number from 1"),
        ({"bad_words_ids": [[1, 2]]}, "bad_words_ids is .*: expected a list of lists"),
        ({"early_stopping": "soon"}, "early_stopping is 'soon': expected true, false or never"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>': expected a token"),
        ({"length_penalty": "1"}, "length_penalty is '1': expected a number"),
    ],
)
def test_a_field_of_generation_that_is_not_computed_is_refused_by_name(
    changed: dict[str, Any], error: str, marian_folder: Path, tmp_path: Path
):
    folder = tmp_path / "changed"
    shutil.copytree(marian_folder, folder)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(BertworksError, match=error) as raised:
        list(bw.translate(folder, ["A text"]))
    assert raised.value.hint


def test_one_text_is_no_list_and_portions_need_a_file(model: Path, shell: Shell):
    for use in (
        lambda: list(bw.translate(model, "A text")),
        lambda: bw.load(model).translate("A text"),
    ):
        with pytest.raises(UsageError) as raised:
            use()
        assert "translate(" in str(raised.value.hint)
    command = ["translate", model, "A text", "--on", "local"]
    shell.refuses(command, "chunks are stored next to the output", "-o FILE")


# --- the comparison of translators
# --------------------------------------------------------------------------------------------------

TINY = {
    "vocabulary.size=3000": "vocabulary.size=400",
    "hidden_size=128": "hidden_size=32",
    "batch_size=64": "batch_size=16",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the comparison reads; a third of the sources of the test has 15 words."""
    folder = tmp_path_factory.mktemp("data")
    test = pairs(12, seed=8)
    test += [(" ".join([source] * 3), target) for source, target in test[:6]]
    for name, rows in (("train", pairs(400)), ("test", test)):
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{row[side]}\n" for row in rows)
            (folder / f"{name}.{language}.gz").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.slow
def test_the_comparison_of_translators(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PACKAGED["translators"]
    for published, tiny in TINY.items():
        assert published in text
        text = text.replace(published, tiny)
    budgets = []

    @wraps(bw.pretrain)
    def pretrain(*, output: Path, budget: str, **options: Any) -> Iterator[Event]:
        """Train for four steps, as if they had filled the budget."""
        budgets.append(budget)
        options["overrides"] += ["train.phases.0.num_steps=4"]
        yield from bw.pretrain(output=output, **options)
        write_plans(output, [Plan(0, [9], [1.0], 0.0), Plan(2, [4], [1.0], 0.0)])

    monkeypatch.setattr(ablation, "pretrain", pretrain)
    name = tmp_path / "translators.toml"
    name.write_text(text)
    out = tmp_path / "out"
    *_, last = bw.evaluate_ablation(name, [], out, data=data, seeds=2, device="cpu")
    assert budgets == ["330s"] * 6
    means = last.fields["measures"]
    arms = {"multiplicative", "none", "transformer"}
    assert all({*rows} == arms for rows in means.values())
    table = (out / "table.md").read_text()
    assert f"## BLEU, beam 4: {bleu([''], ['']).signature}" in table
    assert "case:lc" in table
    assert "+0.0 (+0.0 to +0.0)" in table
    assert NOT_RESOLVED in table
    for arm in arms:
        folder = out / "arms" / arm / "seed-1"
        kept = json.loads((folder / "beam-4.json").read_text())
        assert kept["sources"] == lines_of(data / "test.en.gz")
        expected = [
            answer["translation"] for answer in bw.translate(folder / "model", kept["sources"])
        ]
        assert kept["translations"] == expected
        # 95 % of 400 pairs, of which 4 steps of 16 read 64
        assert means["epochs"][arm]["values"][1] == pytest.approx(64 / 380, rel=0.02)


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_figures_of_long_and_short_sources_and_what_a_beam_adds(
    model: Path, data: Path, tmp_path: Path
) -> None:
    files = [str(data / f"test.{language}.gz") for language in ("en", "de")]
    sources, references = map(lines_of, map(Path, files))
    # What is kept is not computed again.
    kept = {beam: [references[(number + beam) % 18] for number in range(18)] for beam in (1, 4)}
    for beam, translations in kept.items():
        path = tmp_path / f"beam-{beam}.json"
        path.write_text(json.dumps({"sources": sources, "translations": translations}))
    is_long = [len(source.split()) > 13 for source in sources]
    assert 0 < sum(is_long) < 18
    figures = {}
    for name, part in (("long", True), ("short", False)):
        rows = [number for number in range(18) if is_long[number] is part]
        expected = bleu([kept[4][row] for row in rows], [references[row] for row in rows])
        options: dict[str, Any] = {"longer_than": 13} if part else {"up_to": 13}
        figures[name] = translation_metric(model, files, tmp_path, **options).value
        assert figures[name] == pytest.approx(expected.value)
    arm = ablation.Arm(str(model), 0, data, tmp_path / "long-short", {}, {}, "cpu")

    def measured(**options: Any) -> float:
        events = ablation.measure_translation(arm, files=files, **options)
        result: list[ablation.Measured] = []

        def follow() -> Iterator[Event]:
            result.append((yield from events))

        list(follow())
        return result[0].value

    minus = {"longer_than": 0, "up_to": 13}
    change = measured(longer_than=13, minus=minus)
    assert change == pytest.approx(figures["long"] - figures["short"])
    greedy = bleu(kept[1], references).value
    assert measured(minus={"beam": 1}) == pytest.approx(bleu(kept[4], references).value - greedy)
    with pytest.raises(UsageError, match="expected one of bleu, chrf"):
        measured(metric="ter")


def test_unknown_options_of_a_translation_are_refused_before_the_training() -> None:
    text = PACKAGED["translators"]
    for old, new in (("{beam = 1}", "{beams = 1}"), ("up_to = 13}", "up_to = 13, folder = 1}")):
        with pytest.raises(UsageError, match="no argument"):
            parse_as(Ablation, text.replace(old, new), "x")

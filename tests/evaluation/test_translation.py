"""`evaluate translation`: its figures are those of sacrebleu, of all pairs and of each length."""

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sacrebleu

import bertworks as bw
from bertworks.evaluation import translation
from bertworks.inference.translation import DecodingRules, Translation
from bertworks.metrics.intervals import middle, paired_difference, resampled
from bertworks.metrics.translation import bleu, chrf
from tests.support.copying import train_copier, write_copies
from tests.support.refusals import refusal
from tests.support.shell import Shell

WORDS = "ein Mann Frau Hund reitet läuft im Schnee am See und lacht sehr laut .".split()


@dataclass
class Damaging:
    """In the place of `Translator`: its translations are the texts, without some of their words.

    Attributes:
        where: the fraction of the words that are missing.
    """

    where: str
    device: str = "cpu"
    precision: str = "fp32"

    def rules(self, beam: int | None, length_penalty: float | None) -> DecodingRules:
        return DecodingRules(beam=beam or 4)

    def __call__(self, texts: list[str], rules: Any, **options: Any) -> Iterator[Translation]:
        draw = random.Random(0)
        for number, text in enumerate(texts):
            words = [word for word in text.split() if draw.random() > float(self.where)]
            yield Translation(
                text=text,
                translation=" ".join(words),
                score=0.0,
                ids=[1],
                finish_reason="end_token" if number % 10 else "max_tokens",
            )


@pytest.fixture
def damaging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "Translator", Damaging)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    draw = random.Random(1)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 26))) for _ in range(90)]


@pytest.fixture
def table(texts: list[str], tmp_path: Path) -> Path:
    """A text and itself in each row."""
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{text}\t{text}\n" for text in texts))
    return path


def result_of(*arguments: Any, **options: Any) -> dict[str, Any]:
    *_, done = bw.evaluate_translation(*arguments, **options)
    assert done.kind == "done"
    return done.fields


def damaged(texts: list[str], fraction: str) -> list[str]:
    return [answer["translation"] for answer in Damaging(fraction)(texts, None)]


@pytest.mark.usefixtures("damaging")
@pytest.mark.parametrize("lowercase", [False, True])
def test_figures_are_those_of_sacrebleu(texts: list[str], table: Path, lowercase: bool) -> None:
    result = result_of("0.2", [table], lowercase=lowercase)
    translations = damaged(texts, "0.2")
    parts = [(result, range(len(texts)))]
    for (low, high), part in zip([(0, 7), (8, 13), (14, 20), (21, 99)], result["lengths"]):
        rows = [row for row, text in enumerate(texts) if low <= len(text.split()) <= high]
        parts.append((part, rows))
    assert [part["length"] for part in result["lengths"]] == [
        "up to 7",
        "8 to 13",
        "14 to 20",
        "more than 20",
    ]
    for part, rows in parts:
        sides = [translations[row] for row in rows], [[texts[row] for row in rows]]
        expected = {
            "bleu": sacrebleu.corpus_bleu(*sides, lowercase=lowercase).score,
            "chrf": sacrebleu.CHRF(lowercase=lowercase).corpus_score(*sides).score,
        }
        assert part["pairs"] == len(rows)
        assert part["figures"] == pytest.approx(expected, abs=1e-9)
        for name, (low, high) in part["intervals"].items():
            assert low < expected[name] < high
    interval = middle(resampled(bleu(translations, texts, lowercase=lowercase)))
    assert result["intervals"]["bleu"] == interval
    assert ("case:lc" in result["signatures"]["bleu"]) == lowercase
    assert result["limited"] == 9


@pytest.mark.usefixtures("damaging")
def test_the_worst_translations_and_the_page(texts: list[str], table: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    *_, done = bw.evaluate_translation("0.2", [table], output=output)
    worst = done.fields["worst"]
    scores = chrf(damaged(texts, "0.2"), texts).sentence_scores
    assert [row["chrf"] for row in worst] == sorted(scores.tolist())[:10]
    for row in worst:
        assert row["source"] == row["reference"] == texts[row["number"] - 1]
        assert row["chrf"] == sacrebleu.sentence_chrf(row["translation"], [row["source"]]).score
    page = output.read_text()
    assert worst[0]["translation"] in page
    assert done.fields["signatures"]["chrf"] in page
    assert "Difference" not in page
    lines = done.text.splitlines()
    assert lines[0] == "90 pairs, beam 4; intervals: 95 %, over pairs"
    assert lines[1].startswith(f"BLEU  {done.fields['figures']['bleu']:.1f} (")
    assert "9 translations of 0.2 reached the limit" in done.text


@pytest.mark.usefixtures("damaging")
def test_two_models_are_compared_on_the_same_pairs(
    texts: list[str], table: Path, tmp_path: Path
) -> None:
    output = tmp_path / "report.html"
    result = result_of("0.1", [table], other="0.3", output=output)
    metrics = [bleu(damaged(texts, fraction), texts) for fraction in ("0.1", "0.3")]
    value, interval = paired_difference(*metrics)
    difference = result["differences"]["bleu"]
    assert difference == {"value": value, "interval": [*interval], "is_resolved": True}
    assert result["other_figures"]["bleu"] == pytest.approx(metrics[1].value, abs=1e-9)
    assert all(part["differences"]["chrf"]["is_resolved"] for part in result["lengths"])
    assert f"Difference to 0.3: BLEU {value:+.1f}" in output.read_text()
    *_, done = bw.evaluate_translation("0.2", [table], other="0.2")
    assert done.fields["differences"]["bleu"]["value"] == 0
    assert done.text.count("difference +0.0 (+0.0 to +0.0), not resolved") == 2


@pytest.mark.usefixtures("damaging")
def test_few_pairs_have_no_intervals(table: Path) -> None:
    *_, done = bw.evaluate_translation("0.1", [table], other="0.2", sample=9)
    assert done.fields["pairs"] == 9
    assert done.fields["intervals"] == done.fields["differences"] == {}
    assert "of too few pairs for an interval" in done.text
    again = result_of("0.1", [table], other="0.2", sample=9)
    assert again == done.fields
    assert result_of("0.1", [table], sample=10)["intervals"]


@pytest.mark.usefixtures("damaging")
def test_texts_without_spaces_are_counted_in_characters(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("彼は馬に乗っている。\t彼は馬に乗っている。\n" * 12)
    events = list(bw.evaluate_translation("0", [path]))
    assert any("use --tokenize zh, ja-mecab or char" in event.text for event in events)
    assert events[-1].fields["lengths"][0]["length"] == "up to 14"
    assert "by length of the source in characters" in events[-1].text
    events = list(bw.evaluate_translation("0", [path], tokenize="char"))
    assert not any("WARNING: 13a" in event.text for event in events)


def test_a_model_is_evaluated_as_it_translates(tmp_path: Path, shell: Shell) -> None:
    overrides = [
        "encoder.hidden_dropout=0",
        "encoder.attention_dropout=0",
        "train.evaluate_every=60",
        "train.phases=[{num_steps=60, batch_size=32, sequence_length=64}]",
    ]
    assert list(train_copier(tmp_path / "mt", write_copies(tmp_path), overrides))
    files = write_copies(tmp_path, 40)
    words = ["evaluate", "translation", tmp_path / "mt", *files, "--beam", 2, "--max-tokens", 4]
    answer = shell.works(*words, "-o", "report.html")
    texts = Path(files[0]).read_text().splitlines()
    answers = list(bw.translate(tmp_path / "mt", texts, beam=2, max_tokens=4))
    translations = [answer["translation"] for answer in answers]
    score = sacrebleu.corpus_chrf(translations, [texts]).score
    assert 0 < score < 100
    assert f"chrF  {score:.1f} (" in answer
    num_limited = sum(answer["finish_reason"] == "max_tokens" for answer in answers)
    assert 0 < num_limited < 40  # some of them have fewer tokens
    assert f"{num_limited:,} translations of " in answer
    assert "The worst translations" in Path("report.html").read_text()
    shell.refuses([*words, "-o", "report.html"], "this file already exists", "--overwrite")
    lines = [line for line in shell.works(*words, "--json").splitlines() if line[0] == "{"]
    done = json.loads(lines[-1])
    assert done["figures"]["chrf"] == pytest.approx(score, abs=1e-9)
    shell.refuses([*words[:5], "--beam", 1000], "beam is 1000: expected a number from 1 to", "")


def test_what_cannot_be_evaluated(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_copies(tmp_path, 40)
    with refusal("this model has no decoder", "pretrain --parallel"):
        result_of(model, files)
    with refusal("a sample of -1 pairs", ""):
        result_of(model, files, sample=-1)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with refusal("BLEU needs a package that is not installed", '"bertworks[translation]"'):
        result_of(model, files)

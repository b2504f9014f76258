"""Schemes of tags: the same entities in all of them, equal to seqeval's; what marks no entity is
said."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import seqeval.metrics
import seqeval.scheme
from hypothesis import given, settings, strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from bertworks.datasets.annotations import tag_scheme
from bertworks.datasets.reader import RowReader
from bertworks.evaluation.evaluate import evaluate_task
from bertworks.inference.predictor import Predictor, predict_file
from bertworks.metrics.classification import Span
from bertworks.runs.finetune import finetune_events, make_finetune_request
from tests.support.fine import FILLER, PEOPLE, PLACES, read_data
from tests.support.schemes import Scheme, convert_tags, tag_spans, tagging

STRICT = {
    "IOB1": seqeval.scheme.IOB1,
    "IOB2": seqeval.scheme.IOB2,
    "BIOES": seqeval.scheme.IOBES,
    "BILOU": seqeval.scheme.BILOU,
}
SCHEMES: tuple[Scheme, ...] = ("IOB1", "IOB2", "BIOES", "BILOU", "BMES", "BMEWO")
LETTERS = {"IOB2": "BI", "BIOES": "BIES", "BILOU": "BILU", "BMES": "BMES", "BMEWO": "BMEW"}
TO_IOBES = str.maketrans("LUMW", "ESIS")
STYLES: dict[str, Callable[[str], str]] = {  # how B-PER may be written
    "B-PER": lambda tag: tag,
    "B_PER": lambda tag: tag.replace("-", "_", 1),
    "b-PER": lambda tag: tag if tag == "O" else tag[0].lower() + tag[1:],
    "PER-B": lambda tag: tag if tag == "O" else f"{tag[2:]}-{tag[0]}",
    "PER_b": lambda tag: tag if tag == "O" else f"{tag[2:]}_{tag[0].lower()}",
}
UNIVERSAL = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X".split()
PENN = (
    "CC CD DT EX FW IN JJ JJR JJS LS MD NN NNS NNP NNPS PDT POS PRP PRP$ RB RBR RP SYM TO UH "
    "VB VBD . , `` ''"
).split()


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[str], list[Span]]:
    """The tags of a sentence in IOB2, and its entities."""
    tags: list[str] = []
    entities: list[Span] = []
    for length, kind, gap in draw(
        st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["PER", "a-b"]), st.integers(0, 2)))
    ):
        entities.append((len(tags), len(tags) + length, kind))
        tags += [f"B-{kind}", *[f"I-{kind}"] * (length - 1), *["O"] * gap]
    return tags, entities


@settings(max_examples=200)
@given(sentences(), st.sampled_from(SCHEMES), st.sampled_from(list(STYLES)))
def test_every_scheme_and_style_has_the_same_entities(
    drawn: tuple[list[str], list[Span]], scheme: Scheme, style: str
):
    plain, entities = drawn
    tags = convert_tags(plain, scheme)
    written = list(map(STYLES[style], tags))
    assert tag_spans(written) == entities
    if scheme in STRICT:
        strict = seqeval.scheme.Entities([tags], STRICT[scheme]).entities[0]
        assert [(entity.start, entity.end, entity.tag) for entity in strict] == entities
        suffixed = seqeval.scheme.Entities(
            [list(map(STYLES["PER-B"], tags))], STRICT[scheme], suffix=True
        ).entities[0]
        assert [(entity.start, entity.end) for entity in suffixed] == [
            entity[:2] for entity in entities
        ]


@settings(max_examples=300)
@given(st.data(), st.sampled_from(list(LETTERS)))
def test_invalid_sequences_are_read_as_those_of_iobes(data: st.DataObject, scheme: str):
    """By the rules of conlleval; each entity that the strict scheme has is one of them."""
    names = ["O", *(f"{letter}-{kind}" for letter in LETTERS[scheme] for kind in ("PER", "LOC"))]
    rows = data.draw(
        st.lists(
            st.lists(st.tuples(*[st.sampled_from(names)] * 2), max_size=9), min_size=1, max_size=3
        )
    )
    gold, predicted = ([[pair[side] for pair in row] for row in rows] for side in (0, 1))
    assert tag_scheme(tuple(names)) is not None
    for tags in (*gold, *predicted):
        found = tag_spans(tags, names)
        as_iobes = [tag if tag == "O" else tag[0].translate(TO_IOBES) + tag[1:] for tag in tags]
        assert [(kind, start, end - 1) for start, end, kind in found] == get_entities(as_iobes)
        if scheme in STRICT:
            strict = seqeval.scheme.Entities([tags], STRICT[scheme]).entities[0]
            assert {(entity.start, entity.end, entity.tag) for entity in strict} <= set(found)
    translated = [
        [
            [tag if tag == "O" else tag[0].translate(TO_IOBES) + tag[1:] for tag in tags]
            for tags in side
        ]
        for side in (gold, predicted)
    ]
    ours = tagging(gold, predicted, names)
    for name in ("precision", "recall", "f1"):
        theirs = getattr(seqeval.metrics, f"{name}_score")(*translated, zero_division=0)
        assert ours[name] == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ("B-PER I-PER O", "IOB"),
        ("I-PER O", "IOB1"),
        ("B-PER O", "IOB"),
        ("B I O", "IOB"),
        ("b-per i-per o", "IOB"),
        ("B-PER I-PER E-PER S-PER O", "IOBES"),
        ("B-PER E-PER O S-LOC", "IOBES"),
        ("I-PER E-PER O", "IOBES"),
        ("B-LOC B-PER I-PER L-LOC L-PER O U-PER", "BILOU"),
        ("B-LOC L-LOC O", "BILOU"),
        ("U-LOC O", "BILOU"),
        ("B-PER M-PER E-PER S-PER O", "BMES"),
        ("B M E S", "BMES"),
        ("B-PER M-PER E-PER W-PER O", "BMEWO"),
        ("PER-B PER-I O", "IOB"),
        ("PER_U LOC_B LOC_L O", "BILOU"),
        ("B_PER E_PER M_PER O", "BMES"),
        ("B-a-b I-a-b O", "IOB"),
        ("O", "IOB1"),
        ("B-PER X-PER O", None),
        ("B-PER L-PER E-PER O", None),
        ("B-PER LOC-I O", None),
        ("B- O", None),
        ("PER LOC O", None),
        (" ".join(UNIVERSAL), None),
        (" ".join(PENN), None),
        ("N V A O", None),
    ],
)
def test_a_scheme_is_known_by_its_tags(labels: str, name: str | None):
    scheme = tag_scheme(tuple(labels.split()))
    assert (scheme and scheme.name) == name


def test_real_entities_are_equal_in_all_schemes(data_folder: Path):
    rows = [
        row.values["tags"] for row in RowReader(data_folder / "ner/wikigold/wikigold.conll.txt")
    ]
    expected = list(map(tag_spans, rows))
    assert sum(map(len, expected)) > 3000
    for scheme in SCHEMES:
        assert [tag_spans(convert_tags(tags, scheme)) for tags in rows] == expected


# --- from a file to answers
# -------------------------------------------------------------------------------------------


def write_tagged(path: Path, rows: Sequence[str], count: int = 60) -> Path:
    """rows: sentences of word/tag."""
    sentences = ["\n".join(word.replace("/", " ") for word in row.split()) for row in rows]
    path.write_text("\n\n".join(sentences[n % len(rows)] for n in range(count)) + "\n")
    return path


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        (
            ["Ada/B-PER Lovelace/L-PER met/O Bob/U-PER in/O New/B-LOC York/L-LOC"],
            "tags: BILOU, 2 types",
        ),
        (["Ada/B Lovelace/M Byron/E met/O Bob/S"], "tags: BMES, 0 types"),
        (
            ["Ada/PER Lovelace/PER was/O in/O New/LOC York/LOC or/O not/O", "it/O is/O"],
            "tags: bare types .*, 2 types",
        ),
        (["Ada/NOUN waits/VERB here/ADV"], "the tags mark no entities: word accuracy"),
        # O: a pronoun
        (["she/O waits/V for/P Ada/^ at/P noon/N"], "the tags mark no entities: word accuracy"),
        (
            ["Ada/B-PER Lovelace/X-PER was/O in/O Rome/X-LOC at/O last/O"],
            "the tags mark no entities: word accuracy",
        ),
    ],
)
def test_what_tags_mark_is_said(rows: list[str], note: str, tmp_path: Path):
    data = read_data(write_tagged(tmp_path / "tags.conll", rows))
    (said,) = [one for one in data.notes if one.startswith(("tags:", "the tags"))]
    assert re.match(note, said)
    assert data.schema.bare_types == ("bare" in note)


def test_bare_types_are_entities_from_training_to_answers(model: Path, tmp_path: Path):
    names = [
        f"{PEOPLE[n % 4]}/person {PEOPLE[(n + 1) % 4]}/person in/O {PLACES[n % 3]}/place"
        for n in range(12)
    ]
    rows = [f"{FILLER[n % 9]}/O {part} with/O some/O" for n, part in enumerate(names)]
    data = write_tagged(tmp_path / "types.conll", rows, 150)
    settings = ("optimizer.learning_rate=2e-3", "epochs=8", "patience=0", "precision=fp32")
    request = make_finetune_request(data, model=model, overrides=settings)
    *_, done = finetune_events(tmp_path / "out", request, device="cpu")
    assert done.fields["metric"] == "f1"
    assert done.fields["score"] >= 0.9
    assert json.loads((tmp_path / "out" / "task.json").read_text())["bare_types"] is True
    (answer,) = Predictor(tmp_path / "out", device="cpu").predict(
        ["the Anna Boris in Oslo with some"]
    )
    found = [(entity["type"], entity["text"]) for entity in answer["entities"]]
    assert found == [("person", "Anna Boris"), ("place", "Oslo")]
    (tmp_path / "texts.txt").write_text("the Anna Boris in Oslo\n")
    *_, _ = predict_file(
        tmp_path / "out", tmp_path / "texts.txt", tmp_path / "a.jsonl", device="cpu"
    )
    (row,) = map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines())
    assert [entity["type"] for entity in row["predicted_entities"]] == ["person", "place"]
    result = evaluate_task(tmp_path / "out", data, device="cpu")
    assert set(result["table"]) == {"person", "place"}
    assert result["table"]["person"]["support"] == 150

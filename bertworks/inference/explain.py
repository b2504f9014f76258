"""One answer of a model, looked into: which words it depends on, who attends to whom, which tokens are alike. Not here:
how that is shown (`explanation`).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertworks.batching.batch import Batch, collate
from bertworks.batching.features import Features
from bertworks.batching.masking import Example
from bertworks.batching.sampling import Ids
from bertworks.checkpoints.hf_mapping import component_names
from bertworks.checkpoints.task_config import TaskConfig, has_task
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.attribution import AttributionTarget, integrated_gradients, log_odds, occlusion
from bertworks.inference.decoding import Answer
from bertworks.inference.engine import compute_logits
from bertworks.inference.explanation import Explanation
from bertworks.inference.lazy_model import LazyModel, open_model
from bertworks.inference.masked_lm import load_masked_lm
from bertworks.inference.predictor import Predictor, item_of
from bertworks.models.encoder import Encoder
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.objectives import PretrainingModel

MOST_ANSWERS = 5
Value = Callable[[Tensor], Tensor]  # [copies, M, outputs] -> [copies]
Rows = tuple[tuple[str, str], ...]


class _Question(NamedTuple):
    """A number that a network says of one sequence; without name and value nothing is asked."""

    example: Example
    name: str = ""
    value: Value | None = None


class _Reader(NamedTuple):
    """A loaded model and what it said."""

    encoder: Encoder
    logits: Callable[[Batch], Tensor] | None  # of its head, if it has one
    question: _Question
    answer: Rows
    notes: Sequence[str]
    frozen: bool = False  # the encoder lets no gradients through


def explain(
    model: str | Path | LazyModel,
    *texts: str,
    target: str | None = None,
    baseline: Literal["mask", "pad"] = "mask",
    device: str = "auto",
) -> Explanation:
    """Why a model answers what it answers: integrated gradients and occlusion of the words, attention of every head,
    and how alike the tokens are after every layer.

    What is attributed: the log-odds of the label; the value of a regression; the tag of a word; the score of the given
    answer or choice; of a pre-trained model the log-odds of the word in the place of the first [MASK]. Without a
    [MASK], or without a head, there are no attributions.

    Args:
        model: a folder or a name, pre-trained or fine-tuned; or one that is open, which stays where it is.
        texts: one; or a pair, a question and its context, a prompt and its choices.
        target: another label than the one that is given; of tags, the word in question; of a [MASK], another word.
        baseline: which token stands for "nothing is said here": [MASK], or [PAD].

    Raises:
        UsageError: texts that the model does not read, or a target that it does not have.
        BertworksError: no such model.
    """
    if baseline not in ("mask", "pad"):
        raise UsageError(f"the baseline {baseline!r} is not known", hint="name mask or pad")
    source = open_model(model, device)
    read = _finetuned if has_task(source.within) else _pretrained
    r = read(source, texts, target)
    example, t = r.question.example, source.tokenizer
    batch = collate([example]).to(r.encoder.embeddings.token.weight.device)
    with torch.no_grad():
        states = r.encoder(batch.input_ids, batch.layout, batch.token_type_ids)
        directions = F.normalize(torch.stack(states).float(), dim=-1)
    blank = t.mask_id if baseline == "mask" else t.pad_id
    spans, other = _words(example.input_ids, t, blank)
    gradients = fallen = None
    notes = tuple(r.notes)
    if r.question.value is not None and r.logits is not None:
        asked = AttributionTarget(r.logits, r.encoder.embeddings.token, r.question.value)
        fallen = occlusion(asked, example, spans, other)
        if not r.frozen:
            gradients = integrated_gradients(asked, example, other)
        else:
            notes += ("the encoder of this model is frozen and lets no gradients through: there is only occlusion",)
    return Explanation(
        model=source.name,
        texts=texts,
        answer=r.answer,
        asked=r.question.name,
        baseline=t.tokens[blank],
        tokens=tuple(t.tokens[n] for n in example.input_ids),
        words=tuple(t.decode(example.input_ids[a:b], skip_special_tokens=False).strip() for a, b in spans),
        spans=spans,
        gradients=gradients,
        occlusion=fallen,
        attention=tuple(one[0].float().cpu().numpy() for one in r.encoder.attention_maps(states, batch.layout)),
        similarity=(directions @ directions.transpose(1, 2)).cpu().numpy(),
        notes=notes,
    )


def _words(ids: Ids, t: Tokenizer, blank: int) -> tuple[tuple[tuple[int, int], ...], Ids]:
    """First token and the one behind the last of each word, and the ids with everything blank that somebody said:
    [CLS], [SEP] and what is asked for stay."""
    frame = np.isin(ids, [t.cls_id, t.sep_id, t.mask_id])
    edges = np.flatnonzero(frame | np.roll(frame, 1) | t.starts_word[ids]).tolist()
    return tuple(pairwise([*edges, len(ids)])), np.where(frame, ids, blank)


# --- a pre-trained model


def _pretrained(source: LazyModel, texts: Sequence[str], target: str | None) -> _Reader:
    if not 1 <= len(texts) <= 2:
        raise UsageError(f"{len(texts)} texts: a pre-trained model reads one, or a pair")
    t = source.tokenizer
    network = load_masked_lm(source)[0] if "lm_head" in component_names(source.state) else None
    encoder = network.encoder if network else source.network(Encoder, "encoder", prefix="encoder.")
    encoding = t.encode(*texts, max_length=source.config.max_position_embeddings)
    ids, types = (np.array(one, np.int64) for one in (encoding.ids, encoding.type_ids))
    masks = np.flatnonzero(ids == t.mask_id)[:1]
    question = _Question(Example(ids, types, masks, np.zeros_like(masks), -1))
    answer: Rows = ()
    notes = [f"{encoding.num_truncated} tokens were too many and were cut off"] if encoding.num_truncated else []
    if network is None:
        notes.append("this model has no head: there is no answer whose words could be weighed")
    elif not len(masks):
        mask = t.special_tokens["mask_token"]
        if target is not None:
            cut = f": {notes[0]}" if notes else ""
            raise UsageError(
                f"there is no {mask} that could be {target!r}{cut}", hint=f"put {mask} where it could stand"
            )
        notes.append(f"nothing is asked: put {mask} where a word is missing, and the words that decide on it are shown")
    else:
        question, answer = _masked(network, t, question.example, target)
    return _Reader(encoder, network and network.scores, question, answer, notes)


def _masked(network: PretrainingModel, t: Tokenizer, example: Example, target: str | None) -> tuple[_Question, Rows]:
    batch = collate([example]).to(network.encoder.embeddings.token.weight.device)
    with torch.no_grad():
        words = network.scores(batch)[0].float().softmax(-1)[: t.vocab_size]  # the model may have more
    best = words.topk(min(MOST_ANSWERS, len(words)))
    token = int(best.indices[0])
    if target is not None:
        ids = t.ids([target])[0]
        if len(ids) != 1:
            raise UsageError(f"{target!r} is {len(ids)} tokens: expected a word that the vocabulary holds whole")
        (token,) = ids
        if token == t.unk_id:
            raise UsageError(f"{target!r} is no word of the vocabulary", hint="name another one")
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    name = f"“{_said_by(t, token)}” in the place of {t.tokens[t.mask_id]} (log-odds)"
    question = _Question(example, name, lambda x: log_odds(x[:, 0], token))
    return question, tuple((_said_by(t, n), f"{p:.1%}") for n, p in rows)


def _said_by(t: Tokenizer, token: int) -> str:
    """A token as people read it."""
    return t.decode([token], skip_special_tokens=False)


# --- a fine-tuned one


def _finetuned(source: LazyModel, texts: Sequence[str], target: str | None) -> _Reader:
    predictor = Predictor(source, precision="fp32")
    d, network = predictor.description, predictor.network
    if network is None:
        hint = "name the folder that it was exported from"
        raise BertworksError("nobody can look into an exported model", where=str(source.within), hint=hint)
    item = item_of(texts[0] if len(texts) == 1 else texts, 1, d)
    ((encoded, answer),) = predictor.answers([item])
    if target is not None and d.task in ("regression", "choice", "qa"):
        raise UsageError(f"a model for {d.task} has one answer to explain", hint="leave the target out")
    notes = [f"{encoded.num_truncated} tokens were too many and were cut off"] if encoded.num_truncated else []
    if d.task != "choice" and len(encoded.unit) > 1:
        notes.append("the text is longer than the model reads at once: the part with this answer is explained")
    match d.task:
        case "tagging" | "spans":
            logits = compute_logits(network, [encoded.unit])[0]
            question = _tag(d, encoded, [d.labels[n] for n in logits.argmax(-1)], target)
        case "qa":
            question = _answered(encoded, answer)
        case _:
            question = _whole(d, encoded, answer, target)
    frozen = network.features is not None
    return _Reader(network.encoder, network.logits, question, _said(d, encoded, answer), notes, frozen)


def _said(d: TaskConfig, encoded: Features, answer: Answer) -> Rows:
    match d.task:
        case "classification" | "multilabel":
            best = sorted(answer["scores"].items(), key=lambda pair: -pair[1])
            return tuple((label, f"{p:.1%}") for label, p in best[:MOST_ANSWERS])
        case "regression":
            return (("value", f"{answer['value']:.4g}"),)
        case "choice":
            return tuple(zip(encoded.item.texts[1:], (f"{p:.1%}" for p in answer["scores"]), strict=True))
        case "tagging":
            return tuple(zip(answer["words"], answer["tags"], strict=True))
        case "spans":
            return tuple((one["text"], one["type"]) for one in answer["entities"])
        case "qa":
            return ((answer["answer"] or "(no answer)", f"{answer['score']:.1%}"),)


def _whole(d: TaskConfig, encoded: Features, answer: dict[str, Any], target: str | None) -> _Question:
    """An answer for the whole sequence."""
    if d.task == "regression":
        return _Question(encoded.unit[0], "the value", lambda x: x[:, 0, 0])
    if d.task == "choice":
        number = answer["choice"]
        return _Question(encoded.unit[number], f"choice {number + 1} (its score)", lambda x: x[:, 0, 0])
    label = target or answer.get("label") or max(answer["scores"], key=answer["scores"].get)
    if label not in d.labels:
        raise UsageError(f"the model has no label {label!r}", hint=f"name one of {', '.join(d.labels[:20])}")
    output = d.labels.index(label)
    alone = d.task == "multilabel"  # each label is a yes or no of its own, whose logit is its log-odds
    name = f"the label “{label}” (log-odds)"
    return _Question(encoded.unit[0], name, lambda x: x[:, 0, output] if alone else log_odds(x[:, 0], output))


def _tag(d: TaskConfig, encoded: Features, tags: Sequence[str], target: str | None) -> _Question:
    """The tag of one word, or of one token of spans: the one asked for, the first with a tag that is not O, the first.

    tags: of everything that is asked, in its order."""
    text = encoded.item.texts[0]
    words = [text[slice(*encoded.offsets[place])] for place in encoded.places]
    if not words:
        return _Question(encoded.unit[0])
    if target is not None and target not in words:
        raise UsageError(f"the word {target!r} is not in the text, as the tokenizer parts it",
                         hint=f"name one of {', '.join(words[:20])}")  # fmt: skip
    found = words.index(target) if target is not None else next((n for n, tag in enumerate(tags) if tag != "O"), 0)
    ends = np.cumsum([len(example.masked_positions) for example in encoded.unit])
    number = int(np.searchsorted(ends, found, side="right"))
    place, output = found - int(ends[number]), d.labels.index(tags[found])  # from the end, negative
    name = f"the tag {tags[found]} of “{words[found]}” (log-odds)"
    return _Question(encoded.unit[number], name, lambda x: log_odds(x[:, place], output))


def _answered(encoded: Features, answer: Answer) -> _Question:
    """The start and the end of an answer in the window that gave it, or [CLS] where there is none."""
    if not answer["answer"]:
        return _Question(encoded.unit[0], "that there is no answer (its score)", lambda x: x[:, 0].sum(-1))
    start = int(np.flatnonzero(encoded.offsets[:, 1] > answer["start"])[0])
    stop = int(np.flatnonzero(encoded.offsets[:, 0] < answer["end"])[-1])
    begin = 0
    for example in encoded.unit:
        places = encoded.places[begin : begin + len(example.input_ids)]
        own = encoded.own[begin : begin + len(places)]
        begin += len(places)
        firsts, lasts = np.flatnonzero((places == start) & own), np.flatnonzero(places == stop)
        if len(firsts) and len(lasts):
            return _Question(
                example, f"the answer “{answer['answer']}” (its score)", _ends(int(firsts[0]), int(lasts[0]))
            )
    raise BertworksError("the answer stands in no window")  # it came from one


def _ends(first: int, last: int) -> Value:
    return lambda x: x[:, first, 0] + x[:, last, 1]

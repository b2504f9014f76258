"""transformers' training step on the same tokens, and sentence-transformers' vectors of the same
texts."""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from common import Part, batch_of, config, new_model, peak, step_seconds
from corpus import sentences, write_minilm

import bertworks.inference.engine as engine
from bertworks.inference.embedder import Embedder
from bertworks.training.device import time_when_done

os.environ["TOKENIZERS_PARALLELISM"] = "true"


def main() -> None:
    part = Part("peers")
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_minilm(Path(scratch) / "minilm")
        texts = list(sentences(200 if part.quick else 20_000, 4, 60))

        part.ready()
        size, tokens = ("tiny", 512) if part.quick else ("base", 1 << 16)
        for lengths in ("mixed", "equal"):
            part.attempt(f"training, {lengths}", training, part, size, tokens, lengths)
        part.attempt("embed", embed, part, folder, texts)
        part.attempt("sentence-transformers", encode, part, folder, texts)
        part.attempt("one text", one_text, part, folder)


def embed(part: Part, folder: Path, texts: list[str]) -> None:
    embedder = Embedder(folder, device=str(part.device), precision="bf16")
    embedder.embed(texts[:100])
    for tokens in (1 << 16, 1 << 14):
        engine.GPU_BATCH_TOKENS = tokens
        begin = time.perf_counter()
        units, _ = embedder.units(texts)
        prepared = time.perf_counter()
        vectors = embedder.finish(embedder.raw(units))
        end = time.perf_counter()
        count = sum(len(example.input_ids) for unit in units for example in unit)
        part.line(
            "embed",
            batch_tokens=tokens,
            texts=len(texts),
            tokens=count,
            tokenizer_seconds=prepared - begin,
            seconds=end - prepared,
            texts_per_second=len(texts) / (end - begin),
            tokens_per_second=count / (end - prepared),
            memory_gb=peak(part.device),
        )
    np.save(part.out / "vectors.npy", vectors[:1000])


def encode(part: Part, folder: Path, texts: list[str]) -> None:
    from sentence_transformers import SentenceTransformer

    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16))[
        : 1 if part.quick else 2
    ]:
        model = SentenceTransformer(
            str(folder), device=str(part.device), model_kwargs={"dtype": dtype}
        )
        model.max_seq_length = 512
        model.encode(texts[:100], batch_size=64)
        for size in (256, 1024)[: 1 if part.quick else 2]:
            begin = time.perf_counter()
            vectors = model.encode(texts, batch_size=size, show_progress_bar=False)
            took = time.perf_counter() - begin
            ours, theirs = np.load(part.out / "vectors.npy"), np.asarray(vectors[:1000], np.float32)
            cosines = (
                (ours * theirs).sum(1)
                / np.linalg.norm(ours, axis=1)
                / np.linalg.norm(theirs, axis=1)
            )
            part.line(
                f"sentence-transformers {name}",
                batch=size,
                seconds=took,
                texts_per_second=len(texts) / took,
                cosine=float(cosines.min()),
            )


def training(part: Part, size: str, tokens: int, lengths: str) -> None:
    """The same tokens in both; transformers pads to the longest."""
    c, draw = config(size, 0.1), np.random.default_rng(0)
    if lengths == "equal":
        chosen = [128] * (tokens // 128)
    else:
        chosen = sorted(draw.integers(32, 129, tokens // 80).tolist())
    batch = batch_of(chosen, c).to(part.device)
    seconds, real = 0.3 if part.quick else 1.0, len(batch.input_ids)
    model = new_model(c, part.device)
    for fixed in (True, False):
        took = step_seconds(model, lambda _: [batch], part.device, seconds, fixed=fixed)
        part.line(
            f"bertworks, {lengths}",
            fixed_order=fixed,
            tokens=real,
            tokens_per_second=real / took,
            memory_gb=peak(part.device),
        )
    del model
    took = their_step(part, c, batch, seconds)
    part.line(
        f"transformers sdpa, {lengths}",
        tokens=real,
        tokens_per_second=real / took,
        memory_gb=peak(part.device),
    )


def their_step(part: Part, c: Any, batch: Any, seconds: float) -> float:
    """The mean time of a step: autocast, fused AdamW, clipping."""
    with torch.device(part.device):
        model = transformers.BertForPreTraining(
            transformers.BertConfig(
                vocab_size=c.vocab_size,
                hidden_size=c.hidden_size,
                num_hidden_layers=c.num_hidden_layers,
                num_attention_heads=c.num_attention_heads,
                intermediate_size=c.ffn_size,
                attn_implementation="sdpa",
            )
        ).train()
    layout, target = batch.layout, batch.targets["masked_lm"]
    labels = torch.full_like(batch.input_ids, -100).index_copy(0, target.positions, target.labels)
    inputs = {
        "input_ids": layout.pad(batch.input_ids),
        "attention_mask": layout.present.long(),
        "token_type_ids": layout.pad(batch.token_type_ids),
        "labels": layout.pad(labels + 100) - 100,
        "next_sentence_label": batch.targets["next_sentence"].labels,
    }
    if layout.is_uniform:
        del inputs["attention_mask"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with torch.autocast(part.device.type, torch.bfloat16):
            model(**inputs).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    begin, count = time_when_done(part.device), 0
    while True:
        for _ in range(3 if part.is_gpu else 1):
            step()
            count += 1
        now = time_when_done(part.device)
        if now - begin > seconds:
            return (now - begin) / count


def one_text(part: Part, folder: Path) -> None:
    """The time of one short text: that of the launches."""
    embedder, took = Embedder(folder, device=str(part.device), precision="bf16"), []
    for number in range(20 if part.quick else 200):
        begin = time.perf_counter()
        embedder.embed([f"one short text number {number}"])
        took.append(time.perf_counter() - begin)
    part.line(
        "one text",
        median_ms=1000 * float(np.median(took)),
        p99_ms=1000 * float(np.quantile(took, 0.99)),
    )


main()

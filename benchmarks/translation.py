"""Translated tokens per second: random networks in the shape of Marian, greedy and with four beams.

    python benchmarks/translation.py [--tokens 32] [--threads 1 2] [--rounds 3] [--peer PYTHON]
    [--contenders NAME ...] [--quick]

32 sources of 8 to 40 tokens, 32 new tokens for each: the token that ends a text is forbidden.
"base" is the Transformer of Vaswani et al. 2017 with the vocabulary of OPUS-MT (58,101 tokens),
"tiny" that of Wu et al. 2021 with 6,000. bertworks in fp32, bf16 and int8, and `generate` of
transformers in fp32, also without its cache, search by the same rules; in fp32 both must find the
same tokens. CTranslate2 (`make bench-peers`, the environment "convert") has a search of its own.
Every figure is that of a process of its own, which translates once before the clock
starts; all take turns. "memory" is what the process needs at its peak above the loaded model. The
table goes to docs/concepts/performance.md.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from provenance import HERE, process, provenance, publish

SOURCES = 32
LENGTHS = 8, 40
SHAPES = {
    "tiny": {"vocab_size": 6000, "d_model": 128, "layers": 4, "heads": 4, "ffn_dim": 256},
    "base": {"vocab_size": 58101, "d_model": 512, "layers": 6, "heads": 8, "ffn_dim": 2048},
}
END = 0
# in the order of the columns; the first one of transformers is what the others are compared with
CONTENDERS = (
    "transformers",
    "transformers, no cache",
    "CTranslate2",
    "CTranslate2, int8",
    "fp32",
    "bf16",
    "int8",
)
PEER = HERE / ".peers" / "convert" / "bin" / "python"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS, choices=CONTENDERS)
    parser.add_argument("--peer", default=str(PEER), help="a Python that has CTranslate2")
    parser.add_argument(
        "--quick", action="store_true", help="does it run? four tokens, nothing is kept"
    )
    parser.add_argument("--contender", nargs=3, help="of one process: contender, beam, folder")
    a = parser.parse_args()
    if a.contender:
        contender, beam, folder = a.contender
        torch.set_num_threads(a.threads[0])
        print(json.dumps(measured(contender, int(beam), Path(folder), a.tokens)))
        return
    from bertworks.models.layers import cpu_supports_bf16
    from bertworks.models.transformer import cpu_supports_int8

    about = provenance(("torch", "transformers"))
    contenders = [
        name
        for name in a.contenders
        if (name != "bf16" or cpu_supports_bf16())
        and (name != "int8" or cpu_supports_int8())
        and (not name.startswith("CTranslate2") or Path(a.peer).exists())
    ]
    tokens = 4 if a.quick else a.tokens
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in a.shapes:
            write_model(Path(folder, shape), shape)
        for _ in range(1 if a.quick else a.rounds):
            for shape in a.shapes:
                for beam in a.beams:
                    for threads in a.threads:
                        for contender in contenders:
                            words = ["--contender", contender, str(beam), f"{folder}/{shape}"]
                            words += ["--tokens", str(tokens), "--threads", str(threads)]
                            is_peer = contender.startswith("CTranslate2")
                            python = a.peer if is_peer else sys.executable
                            result = process(__file__, words, threads, python=python)
                            cell = {"shape": shape, "beam": beam, "threads": threads}
                            rows.append({**cell, "contender": contender, **result})
    for shape in a.shapes:
        for beam in a.beams:
            kinds = ("transformers", "fp32")
            ids = [next(r["ids"] for r in rows if matches(r, shape, beam, kind)) for kind in kinds]
            same = sum(x == y for x, y in zip(*ids, strict=True))
            print(f"{shape}, beam {beam}: {same} of {SOURCES} have the same tokens in fp32")
    lines = table(rows, contenders)
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    load = f"load {about['load_average'][0]}"
    lines += [
        "",
        f"`{about['command']}` at {about['commit']}, {about['time'][:10]}; {about['cpu']}; "
        f"{load}; {versions}.",
    ]
    if not a.quick:
        kept = [{name: row[name] for name in row if name != "ids"} for row in rows]
        publish("translation", {**about, "rows": kept}, "\n".join(lines))
    print("\n".join(lines))


def matches(row: dict[str, Any], shape: str, beam: int, contender: str) -> bool:
    """Return whether a row is of this network, beam and contender."""
    return (row["shape"], row["beam"], row["contender"]) == (shape, beam, contender)


def table(rows: list[dict[str, Any]], contenders: list[str]) -> list[str]:
    """Return Markdown: medians of tokens per second, with the ratio to transformers, and memory."""
    lines = [
        f"| network, beam, threads | {' | '.join(contenders)} | memory of fp32, of transformers |",
        "|---" * (len(contenders) + 2) + "|",
    ]
    cells = dict.fromkeys((row["shape"], row["beam"], row["threads"]) for row in rows)
    for cell in cells:
        own = [r for r in rows if (r["shape"], r["beam"], r["threads"]) == cell]
        speed, memory = (
            {
                name: statistics.median(r[figure] for r in own if r["contender"] == name)
                for name in contenders
            }
            for figure in ("tokens_per_second", "memory_mb")
        )
        texts = [
            f"{speed[name]:,.0f} ({speed[name] / speed['transformers']:.2f} x)"
            for name in contenders
        ]
        shape, beam, threads = cell
        lines.append(
            f"| {shape}, {beam}, {threads} | {' | '.join(texts)} | "
            f"{memory['fp32']:,.0f}, {memory['transformers']:,.0f} MB |"
        )
    return lines


def measured(contender: str, beam: int, folder: Path, tokens: int) -> dict[str, Any]:
    """Return the tokens per second of a translation of all sources, its tokens and its memory."""
    sizes = json.loads((folder / "config.json").read_text())
    draw = random.Random(0)
    shortest, longest = LENGTHS
    lengths = [round(shortest + (longest - shortest) * (n + 0.5) / SOURCES) for n in range(SOURCES)]
    most = sizes["vocab_size"] - 2
    sources = [[*(draw.randint(1, most) for _ in range(n - 1)), END] for n in lengths]
    if contender.startswith("transformers"):
        translates = with_transformers(contender, beam, folder, sources)
    elif contender.startswith("CTranslate2"):
        translates = with_ctranslate2(contender, beam, folder, sources)
    else:
        translates = with_bertworks(contender, beam, folder, sources)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
    before = kilobytes("VmRSS")
    translates(min(4, tokens))
    start = time.perf_counter()
    ids = translates(tokens)
    seconds = time.perf_counter() - start
    assert all(len(one) == tokens for one in ids)
    memory = (kilobytes("VmHWM") - before) / 1024
    return {"tokens_per_second": SOURCES * tokens / seconds, "memory_mb": memory, "ids": ids}


def kilobytes(name: str) -> int:
    """Return a figure of the memory of this process, as Linux counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def with_bertworks(contender: str, beam: int, folder: Path, sources: list[list[int]]) -> Any:
    from safetensors.torch import load_file

    from bertworks.checkpoints.hf_config import config_from_huggingface
    from bertworks.checkpoints.hf_mapping import from_huggingface
    from bertworks.inference.engine import prepared_encoder
    from bertworks.inference.translation import DecodingRules, TranslationNetwork, beam_search
    from bertworks.models.transformer import to_int8_inference
    from bertworks.training.objectives import PretrainingModel

    settings = json.loads((folder / "config.json").read_text())
    config = config_from_huggingface(settings)
    network = PretrainingModel(config, {"translation": 1.0}).eval()
    state = from_huggingface(load_file(folder / "model.safetensors"), config)
    network.load_state_dict(state)
    assert network.decoder is not None
    parts = [
        to_int8_inference(part) if contender == "int8" else prepared_encoder(part, contender)[0]  # type: ignore[arg-type]
        for part in (network.encoder, network.decoder)
    ]
    pad = settings["pad_token_id"]
    rules = DecodingRules(beam=beam, forbidden=(pad, END))
    encoder, decoder = parts
    translating = TranslationNetwork(network, encoder, decoder, contender)

    def translates(count: int) -> list[list[int]]:
        limits = [count] * len(sources)
        hypotheses = beam_search(translating, sources, pad, [], limits, rules)
        return [hypothesis.ids for hypothesis in hypotheses]

    return translates


def with_transformers(contender: str, beam: int, folder: Path, sources: list[list[int]]) -> Any:
    import transformers

    network = transformers.MarianMTModel.from_pretrained(folder).eval()
    pad = network.config.pad_token_id
    rows = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(source) for source in sources], batch_first=True, padding_value=pad
    )

    def translates(count: int) -> list[list[int]]:
        made = network.generate(
            rows,
            attention_mask=(rows != pad).long(),
            max_new_tokens=count,
            min_new_tokens=count,
            num_beams=beam,
            bad_words_ids=[[pad]],
            forced_eos_token_id=None,
            use_cache=contender == "transformers",
            do_sample=False,
        )
        ids: list[list[int]] = made[:, 1 : count + 1].tolist()
        return ids

    return translates


def with_ctranslate2(contender: str, beam: int, folder: Path, sources: list[list[int]]) -> Any:
    import ctranslate2

    converted = folder / "ctranslate2"
    if not converted.exists():
        write_ctranslate2(folder, converted)
    translator = ctranslate2.Translator(
        str(converted),
        compute_type="int8" if contender.endswith("int8") else "float32",
        intra_threads=torch.get_num_threads(),
        inter_threads=1,
    )
    tokens = [list(map(str, source)) for source in sources]

    def translates(count: int) -> list[list[int]]:
        results = translator.translate_batch(
            tokens, beam_size=beam, min_decoding_length=count, max_decoding_length=count
        )
        return [list(map(int, result.hypotheses[0])) for result in results]

    return translates


def write_ctranslate2(folder: Path, converted: Path) -> None:
    """Write the network of a folder of Marian as CTranslate2 reads it, with numbers for tokens."""
    import transformers
    from ctranslate2.converters.transformers import MarianMTLoader

    network = transformers.MarianMTModel.from_pretrained(folder)
    spec = MarianMTLoader().get_model_spec(network)
    tokens = list(map(str, range(network.config.vocab_size - 1)))  # without the pad token
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.eos_token = str(END)
    spec.config.unk_token = tokens[-1]
    spec.config.decoder_start_token = str(END)  # the decoder starts from zeros
    spec.validate()
    spec.optimize(quantization=None)
    converted.mkdir()
    spec.save(str(converted))


def marian_config(shape: str, **settings: Any) -> Any:
    """Return the settings of a network of Marian's shape, as transformers has them.

    settings: in addition, or in place of the others.
    """
    import transformers

    sizes = SHAPES[shape]
    both = {
        f"{side}_{name}": sizes[size]
        for side in ("encoder", "decoder")
        for name, size in (("layers", "layers"), ("attention_heads", "heads"), ("ffn_dim",) * 2)
    }
    pad = sizes["vocab_size"] - 1
    values = {
        "vocab_size": sizes["vocab_size"],
        "d_model": sizes["d_model"],
        **both,
        "activation_function": "swish",
        "scale_embedding": True,
        "max_position_embeddings": 512,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
        "eos_token_id": END,
        "forced_eos_token_id": END,
    }
    return transformers.MarianConfig(**(values | settings))


def write_model(folder: Path, shape: str) -> None:
    """Write a random network of Marian's shape."""
    import transformers

    torch.manual_seed(0)
    config = marian_config(shape, init_std=0.05)
    transformers.MarianMTModel(config).save_pretrained(folder)


if __name__ == "__main__":
    main()

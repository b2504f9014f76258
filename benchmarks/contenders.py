"""What inference.py compares: programs that turn texts into vectors or probabilities, each run in
an environment of its own (peers.txt, `make bench-peers`), which has no bertworks. Not here: texts,
rounds, tables.

    python contenders.py '{"contender": ..., "work": ...}'    one job; what was measured is the last
    line, as JSON

    transformers            AutoModel in batches of 32, as they come or sorted by length, with its
                            default attention
    zentorch                the sorted batches, compiled by AMD's backend of `torch.compile`, which
                            optimizes nothing without AVX-512, and is left out there
    sentence-transformers   `encode` with its defaults
    ONNX Runtime            the network as `torch.onnx.export` writes it; int8: after
                            `quantize_dynamic`
    OpenVINO                the same file; fp32, or the precision that it chooses itself
    CTranslate2             the network as its converter writes it; int8: its `compute_type`

All but sentence-transformers, which does it itself, tokenize with `tokenizers`, all texts at once
and on all threads, and pool in numpy. The last three read sorted texts. All give their answers in
the order of the input.
"""

import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

FINISHED = "finished"  # a file next to what was converted
BATCH = 32  # as sentence-transformers takes it
# texts -> float32 [texts, hidden], or [texts, labels] of probabilities
Answering = Callable[[Sequence[str]], Any]
Rectangle = Callable[[Any, Any], Any]  # ids and mask, int64 [texts, length] -> the same


@dataclass(frozen=True)
class Job:
    """One thing to do. The last fields have defaults, for not every one of them is needed by every
    work."""

    contender: str
    work: str  # speed, query, start; convert
    model: str  # a model folder
    files: str = ""  # what `convert` made of it
    classify: bool = False
    threads: int = 1
    texts: str = ""  # a JSON list
    output: str = ""  # where the answers go, as .npy
    seconds: float = 5.0  # of queries


@dataclass(frozen=True)
class Contender:
    environment: str  # "": ours
    load: Callable[[Job], Answering]
    classifies: bool = True
    needs: frozenset[str] = frozenset()  # instructions, one of which the processor must have


def main(text: str) -> None:
    job = Job(**json.loads(text))
    if job.work == "convert":
        convert(Path(job.model), Path(job.files))
        print(json.dumps({}))
        return
    texts = json.loads(Path(job.texts).read_text())
    answer = CONTENDERS[job.contender].load(job)
    loaded = memory_mb()
    found = WORKS[job.work](answer, texts, job)
    print(json.dumps({**found, "loaded_mb": loaded, "memory_mb": memory_mb()}))


def memory_mb() -> float:
    """The most that this process had; `getrusage` would tell that of its parent, if that had
    more."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:"))


# --- what is done with a contender


def speed(answer: Answering, texts: list[str], job: Job) -> dict[str, Any]:
    """Once over all texts, after some of all lengths that are not timed."""
    import numpy as np

    answer(texts[:: max(1, len(texts) // 64)])
    begin = time.perf_counter()
    found = answer(texts)
    seconds = time.perf_counter() - begin
    if job.output:
        np.save(job.output, np.asarray(found, np.float32))
    return {"seconds": seconds}


def query(answer: Answering, texts: list[str], job: Job) -> dict[str, Any]:
    """One text after the other; milliseconds."""
    for text in texts[:20]:
        answer([text])
    times: list[float] = []
    end = time.perf_counter() + job.seconds
    while time.perf_counter() < end or len(times) < 20:
        begin = time.perf_counter()
        answer([texts[len(times) % len(texts)]])
        times.append(1000 * (time.perf_counter() - begin))
    return {
        "p50": statistics.median(times),
        "p95": statistics.quantiles(times, n=20)[18],
        "count": len(times),
    }


def start(answer: Answering, texts: list[str], job: Job) -> dict[str, Any]:
    """One text; the process that started this one has a clock."""
    answer(texts[:1])
    return {}


WORKS = {"speed": speed, "query": query, "start": start}


# --- the contenders


def load_bertworks(job: Job, *, precision: str = "auto") -> Answering:
    import numpy as np

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    if job.classify:
        from bertworks.inference.predictor import Predictor

        predictor = Predictor(job.model, device="cpu", precision=precision)

        def probabilities(texts: Sequence[str]) -> Any:
            return np.array(
                [
                    list(one["scores"].values())
                    for one in predictor.predict(texts, probabilities=True)
                ]
            )

        return probabilities
    from bertworks.inference.embedder import Embedder

    return Embedder(job.model, device="cpu", precision=precision).embed


def load_transformers(
    job: Job, *, by_length: bool, bf16: bool = False, backend: str = ""
) -> Answering:
    """backend: of `torch.compile`, in a package of the same name; "": none."""
    import torch
    import transformers

    torch.set_num_threads(job.threads)
    quiet(transformers)
    kind = (
        transformers.AutoModelForSequenceClassification if job.classify else transformers.AutoModel
    )
    model = kind.from_pretrained(job.model, dtype=torch.bfloat16 if bf16 else torch.float32).eval()
    if backend:
        import_module(backend)
        model = torch.compile(model, backend=backend, dynamic=True)

    @torch.inference_mode()
    def compute(ids: Any, mask: Any) -> Any:
        read = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        out = model(**read)
        if job.classify:
            return softmax(out.logits.float().numpy())
        return mean(out.last_hidden_state.float().numpy(), mask)

    return in_rectangles(job, compute, by_length=by_length)


def quiet(transformers: Any) -> None:
    """What it says of weights that are not needed, and its bars, are no figures."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def load_sentence_transformers(job: Job) -> Answering:
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(job.threads)
    quiet(transformers)
    return SentenceTransformer(job.model, device="cpu").encode


def load_onnxruntime(job: Job, *, file: str) -> Answering:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = job.threads, 3
    path = str(Path(job.files, file))
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    wanted = [session.get_outputs()[0].name]  # not the pooler, which is not used

    def compute(ids: Any, mask: Any) -> Any:
        return finished(
            session.run(wanted, {"input_ids": ids, "attention_mask": mask})[0], mask, job
        )

    return in_rectangles(job, compute)


def load_openvino(job: Job, *, precision: str | None) -> Answering:
    import openvino

    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": str(job.threads)}
    settings |= {"INFERENCE_PRECISION_HINT": precision} if precision else {}
    request = openvino.compile_model(
        str(Path(job.files, "model.onnx")), "CPU", settings
    ).create_infer_request()

    def compute(ids: Any, mask: Any) -> Any:
        return finished(request.infer({"input_ids": ids, "attention_mask": mask})[0], mask, job)

    return in_rectangles(job, compute)


def load_ctranslate2(job: Job, *, precision: str) -> Answering:
    import ctranslate2
    import numpy as np

    path = str(Path(job.files, "ctranslate2"))
    encoder = ctranslate2.Encoder(
        path, compute_type=precision, inter_threads=1, intra_threads=job.threads
    )
    head = np.load(Path(job.files, "head.npz")) if job.classify else {}

    def compute(ids: Any, mask: Any) -> Any:
        out = encoder.forward_batch(
            [row[:length].tolist() for row, length in zip(ids, mask.sum(1), strict=True)]
        )
        if job.classify:
            return softmax(np.array(out.pooler_output) @ head["weight"].T + head["bias"])
        return mean(np.array(out.last_hidden_state), mask)

    return in_rectangles(job, compute)


def in_rectangles(job: Job, compute: Rectangle, *, by_length: bool = True) -> Answering:
    """Texts -> batches, padded to their longest -> answers."""
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(job.model, "tokenizer.json")))
    tokenizer.no_padding()  # whatever the file says
    tokenizer.enable_truncation(512)

    def answer(texts: Sequence[str]) -> Any:
        encoded = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
        order = (
            sorted(range(len(texts)), key=lambda n: len(encoded[n]))
            if by_length
            else range(len(texts))
        )
        found: list[Any] = [None] * len(texts)
        for begin in range(0, len(texts), BATCH):
            part = order[begin : begin + BATCH]
            longest = max(len(encoded[n]) for n in part)
            ids, mask = np.zeros((2, len(part), longest), np.int64)
            for row, n in enumerate(part):
                ids[row, : len(encoded[n])] = encoded[n]
                mask[row, : len(encoded[n])] = 1
            for n, vector in zip(part, compute(ids, mask), strict=True):
                found[n] = vector
        return np.stack(found)

    return answer


def finished(out: Any, mask: Any, job: Job) -> Any:
    """Of states their mean, of scores their probabilities."""
    return softmax(out) if job.classify else mean(out, mask)


def mean(states: Any, mask: Any) -> Any:
    """[texts, length, hidden] -> [texts, hidden]."""
    return (states * mask[:, :, None].astype(states.dtype)).sum(1) / mask.sum(1, keepdims=True)


def softmax(scores: Any) -> Any:
    import numpy as np

    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


BF16 = frozenset(("avx512_bf16", "amx_bf16"))
CONTENDERS = {
    "bertworks": Contender("", load_bertworks),
    "bertworks, int8": Contender(
        "", lambda job: load_bertworks(job, precision="int8"), needs=frozenset(("avx512_vnni",))
    ),
    "transformers, input order": Contender(
        "transformers", lambda job: load_transformers(job, by_length=False)
    ),
    "transformers, sorted": Contender(
        "transformers", lambda job: load_transformers(job, by_length=True)
    ),
    "transformers, sorted, bf16": Contender(
        "transformers", lambda job: load_transformers(job, by_length=True, bf16=True), needs=BF16
    ),
    "zentorch": Contender(
        "zentorch",
        lambda job: load_transformers(job, by_length=True, backend="zentorch"),
        needs=frozenset(("avx512f",)),
    ),
    "sentence-transformers": Contender(
        "sentence-transformers", load_sentence_transformers, classifies=False
    ),
    "ONNX Runtime": Contender("onnxruntime", lambda job: load_onnxruntime(job, file="model.onnx")),
    "ONNX Runtime, int8": Contender(
        "onnxruntime", lambda job: load_onnxruntime(job, file="int8.onnx")
    ),
    "OpenVINO": Contender("openvino", lambda job: load_openvino(job, precision="f32")),
    "OpenVINO, its own precision": Contender(
        "openvino", lambda job: load_openvino(job, precision=None), needs=BF16
    ),
    "CTranslate2": Contender("ctranslate2", lambda job: load_ctranslate2(job, precision="float32")),
    "CTranslate2, int8": Contender(
        "ctranslate2", lambda job: load_ctranslate2(job, precision="int8")
    ),
}
REFERENCE = "transformers, input order"  # its answers are right


# --- what three of them read, made once by the environment `convert`


def convert(model: Path, files: Path) -> None:
    """model.onnx, int8.onnx, ctranslate2/ and head.npz out of a model folder."""
    import numpy as np
    import onnx
    import torch
    import transformers
    from ctranslate2.converters import TransformersConverter
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quiet(transformers)
    config = transformers.AutoConfig.from_pretrained(model)
    classify = config.architectures == ["BertForSequenceClassification"]
    head_or_body = (
        transformers.AutoModelForSequenceClassification if classify else transformers.AutoModel
    )
    network = head_or_body.from_pretrained(model, dtype=torch.float32).eval()
    files.mkdir(parents=True, exist_ok=True)
    read = {name: torch.ones(2, 7, dtype=torch.int64) for name in ("input_ids", "attention_mask")}
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    torch.onnx.export(
        network,
        (),
        files / "model.onnx",
        kwargs=read,
        dynamic_shapes=dict.fromkeys(read, axes),
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    graph = onnx.load(files / "model.onnx")
    del graph.graph.value_info[:]  # shapes of matrices that are turned round now
    # Products of signed weights overflow on processors without instructions for them.
    kind = QuantType.QInt8 if "vnni" in Path("/proc/cpuinfo").read_text() else QuantType.QUInt8
    quantize_dynamic(graph, files / "int8.onnx", weight_type=kind)
    body = network.bert if classify else network
    if classify:
        head = network.classifier
        np.savez(
            files / "head.npz", weight=head.weight.detach().numpy(), bias=head.bias.detach().numpy()
        )
    # the converter needs it; transformers 5 has nothing else
    body.config.position_embedding_type = "absolute"
    body.save_pretrained(files / "body")
    transformers.AutoTokenizer.from_pretrained(model).save_pretrained(files / "body")
    TransformersConverter(str(files / "body")).convert(str(files / "ctranslate2"), force=True)
    shutil.rmtree(files / "body")
    (files / FINISHED).touch()


if __name__ == "__main__":
    for text in sys.argv[1:]:
        main(text)

"""Metrics of the server for Prometheus, with the names of Text Embeddings Inference (TEI)."""

import re
from collections.abc import Callable
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536)


class ServerMetrics:
    """Counters and histograms of requests and batches."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        count = partial(Counter, registry=self.registry)
        seconds = partial(Histogram, buckets=_SECONDS, registry=self.registry)
        sizes = partial(Histogram, buckets=_SIZES, registry=self.registry)
        self.count = count("te_request_count", "Requests", ["method"])
        self.success = count("te_request_success", "Requests answered", ["method"])
        self.failure = count("te_request_failure", "Requests refused, by status", ["err"])
        self.duration = seconds("te_request_duration", "Seconds")
        self.tokens = sizes("te_request_input_length", "Tokens of a request")
        self.tokenization = seconds("te_request_tokenization_duration", "Seconds")
        self.inference = seconds("te_request_inference_duration", "Seconds")
        self.batch_size = sizes("te_batch_next_size", "Texts of a batch")
        self.batch_tokens = sizes("te_batch_next_tokens", "Tokens of a batch")

    def watch(self, name: str, what: str, value: Callable[[], float]) -> None:
        """Report the present value of something."""
        Gauge(name, what, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """Return all metrics in the format of Prometheus.

        Its library appends `_total` to the names of counters, TEI does not.
        """
        return re.sub(rb"\b(te_request_\w+?)_total\b", rb"\1", generate_latest(self.registry))

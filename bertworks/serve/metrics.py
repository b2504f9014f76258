"""Metrics of the server for Prometheus, with the names of Text Embeddings Inference (TEI)."""

import re
from collections.abc import Callable

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
        self.registry = r = CollectorRegistry()
        self.count = Counter("te_request_count", "Requests", ["method"], registry=r)
        self.success = Counter("te_request_success", "Requests answered", ["method"], registry=r)
        self.failure = Counter(
            "te_request_failure", "Requests refused, by status", ["err"], registry=r
        )
        self.duration = Histogram("te_request_duration", "Seconds", buckets=_SECONDS, registry=r)
        self.tokens = Histogram(
            "te_request_input_length", "Tokens of a request", buckets=_SIZES, registry=r
        )
        self.tokenization = Histogram(
            "te_request_tokenization_duration", "Seconds", buckets=_SECONDS, registry=r
        )
        self.inference = Histogram(
            "te_request_inference_duration", "Seconds", buckets=_SECONDS, registry=r
        )
        self.batch_size = Histogram(
            "te_batch_next_size", "Texts of a batch", buckets=_SIZES, registry=r
        )
        self.batch_tokens = Histogram(
            "te_batch_next_tokens", "Tokens of a batch", buckets=_SIZES, registry=r
        )

    def watch(self, name: str, what: str, value: Callable[[], float]) -> None:
        """Report the present value of something."""
        Gauge(name, what, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """Return all metrics in the format of Prometheus.

        Its library appends `_total` to the names of counters, TEI does not.
        """
        return re.sub(rb"\b(te_request_\w+?)_total\b", rb"\1", generate_latest(self.registry))

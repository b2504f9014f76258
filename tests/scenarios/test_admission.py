"""Which requests a server accepts: before it reads them, with equal shares for clients, and nothing
for closed ones."""

import asyncio
import gc
import json
import math
import subprocess
import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings, strategies as st
from uvicorn.server import ServerState

from bertworks.cli.main import main
from bertworks.serve.application import HEAD_SECONDS, KEPT_HEAD, Connection
from bertworks.serve.batching import (
    Admission,
    Batcher,
    InferenceJob,
    Limits,
    OverloadedError,
    Place,
)
from bertworks.serve.pipeline import LANES
from bertworks.serve.server import _SETTINGS as SETTINGS, MIN_TOKEN, NEW_TOKEN
from tests.serve.test_server import answered, connected
from tests.support.served import Local, process, write_head

SMALL = min(LANES)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_head(
        tmp_path_factory.mktemp("model") / "m",
        task="classification",
        labels=("neg", "pos"),
        text=("text",),
    )


@pytest.fixture
def local(model: Path) -> Iterator[Local]:
    with Local(model) as made:
        yield made


class Client:
    """A request as an ASGI server passes it on: its body comes when the test says so."""

    def __init__(self, local: Local, body: bytes = b"", address: str = "10.0.0.1", **headers: str):
        self.local, self.body, self.sent, self.reads = local, body, list[dict[str, Any]](), 0
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        named = {
            "host": "localhost",
            "content-type": "application/json",
            "content-length": str(len(body)),
            **headers,
        }
        self.headers = [(name.encode(), value.encode()) for name, value in named.items() if value]
        self.address, self.extensions = address, dict[str, Any]()

    def start(self, path: str = "/predict") -> "Client":
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
        }
        scope |= {"headers": self.headers, "client": (self.address, 1), **self.extensions}
        self.task = asyncio.create_task(self.local.application(scope, self.receive, self.send))
        return self

    async def receive(self) -> dict[str, Any]:
        self.reads += 1
        return await self.messages.get()

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    def give(self, body: bytes | None = None, *, more: bool = False) -> "Client":
        self.messages.put_nowait(
            {"type": "http.request", "body": self.body if body is None else body, "more_body": more}
        )
        return self

    def close(self) -> None:
        self.messages.put_nowait({"type": "http.disconnect"})

    async def status(self) -> int:
        await asyncio.wait_for(self.task, 20)
        return int(self.sent[0]["status"])

    def json(self) -> Any:
        return json.loads(self.sent[1]["body"])


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


def text(size: int) -> bytes:
    """The body of a request, `size` bytes long."""
    return b'{"inputs": "' + b"a " * ((size - 14) // 2) + b'"}' + b" " * (size % 2)


# --- shares
# --------------------------------------------------------------------------------------------------


class Task:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 8),
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.booleans()),
        min_size=1,
        max_size=40,
    ),
)
def test_a_refused_client_has_no_less_than_others(slots: int, steps: list[tuple[str, int, bool]]):
    """Requests arrive (or the oldest ends): the room is never exceeded, and no client is refused
    while another one could give it room and still have as much."""
    admission, total = Admission(slots, 80), 80
    for client, size, ends in steps:
        before, free = (
            {name: sum(p.size for p in admission.places if p.client == name) for name in "abc"},
            admission._free,
        )
        places = list(admission.places)
        if ends and admission.places:
            admission._count(next(iter(admission.places)), 0)
        else:
            place, size = Place(client, Task()), max(size, 80 // slots)
            try:
                admission.grow(place, size)
            except OverloadedError:
                assert max(before.values()) - (size - free) < before[client] + size
                assert list(admission.places) == places  # nobody was ended for nothing
        sizes = Counter[str]()
        for place in admission.places:
            sizes[str(place.client)] += place.size
            assert not place.task.cancelled
        assert sizes == admission._sizes
        assert sizes.total() + admission._free == total
        assert admission._free >= 0
        assert len(admission.places) <= slots


def test_a_client_with_less_gets_the_room_of_the_last_request_of_the_one_with_most():
    admission = Admission(4, 400)
    places = [Place(client, Task()) for client in "aaab"]
    for place in places:
        admission.grow(place, 100)
    with pytest.raises(OverloadedError):
        admission.grow(Place("a", Task()), 100)
    other = Place("c", Task())
    admission.grow(other, 100)
    assert [place.task.cancelled for place in places] == [False, False, True, False]
    with pytest.raises(OverloadedError):  # a has 200, b and c have 100: nobody can give c more
        admission.grow(Place("c", Task()), 100)
    admission.grow(Place("d", Task()), 100)
    assert [place.task.cancelled for place in places] == [False, True, True, False]


def test_slow_bodies_of_one_client_hold_no_slot_that_another_needs(model: Path):
    async def go(local: Local) -> None:
        slow = [Client(local, text(100)).start() for _ in range(4)]
        await until(lambda: all(client.reads for client in slow))
        same = Client(local, text(100)).start()
        assert await same.status() == 429
        assert same.reads == 0
        other = Client(local, text(100), address="10.0.0.2").give().start()
        assert await other.status() == 200
        assert await slow[-1].status() == 429
        assert slow[-1].json()["error_type"] == "Overloaded"
        assert dict(slow[-1].sent[0]["headers"])[b"retry-after"] == b"1"
        for client in slow[:-1]:
            client.give()
            assert await client.status() == 200
        assert (
            len(local.application.pipeline.admission.places),
            local.application.pipeline.admission._free,
        ) == (
            0,
            Limits().total_bytes,
        )

    with Local(model, limits=Limits(requests=4)) as local:
        asyncio.run(go(local))


def test_a_body_of_unknown_length_counts_as_it_comes(model: Path):
    async def go(local: Local) -> None:
        admission = local.application.pipeline.admission
        unknown = {"content-length": ""}
        first, second = (Client(local, **unknown).start() for _ in range(2))
        first.give(b'{"inputs": ' + b" " * 1300, more=True)
        second.give(b" " * 300, more=True)
        await until(lambda: admission._free == 2000 - 1311 - 300)
        small = Client(local, text(300), address="10.0.0.2").give().start()
        assert await small.status() == 200
        second.give(b" " * 600, more=True)
        assert await second.status() == 429
        assert admission._free == 2000 - 1311
        assert await first.give(b'"good"}').status() == 200
        long = (
            Client(local, **unknown).start().give(b" " * 900, more=True).give(b" " * 900, more=True)
        )
        assert await long.status() == 413

    with Local(model, limits=Limits(body_bytes=1500, total_bytes=2000)) as local:
        asyncio.run(go(local))


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ({"address": "10.0.0.1"}, {"address": "10.0.0.2"}, False),
        ({"address": "2001:db8::1"}, {"address": "2001:db8::2"}, True),
        ({"address": "fe80::1%eth0"}, {"address": "fe80:0:0:1::1%eth0"}, False),
    ],
)
def test_a_client_is_an_address_or_a_network_of_ipv6(
    first: dict[str, str], second: dict[str, str], is_same: bool, model: Path
):
    assert shares(model, first, second, "") == (1 if is_same else 2)


def test_a_client_is_a_token_if_there_are_several(model: Path):
    one, other = ({"authorization": f"Bearer {name}"} for name in ("first token", "other token"))
    both = "first token\nother token\n"
    assert shares(model, {**one, "address": "10.0.0.1"}, {**one, "address": "10.0.0.2"}, both) == 1
    assert (
        shares(model, {**one, "address": "10.0.0.1"}, {**other, "address": "10.0.0.1"}, both) == 2
    )
    assert (
        shares(model, {**one, "address": "10.0.0.1"}, {**one, "address": "10.0.0.2"}, "first token")
        == 2
    )


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer ", "Bearer x", "Bearer a\x85b"])
def test_no_empty_line_is_a_token(given: str, model: Path):
    async def go(local: Local) -> int:
        return await Client(local, text(100), authorization=given).give().start().status()

    with Local(model, token="\n\nsesame\n\n") as local:
        assert asyncio.run(go(local)) == 401


def shares(model: Path, first: dict[str, str], second: dict[str, str], token: str) -> int:
    """How many clients two requests are from."""

    async def go(local: Local) -> int:
        clients = [Client(local, text(100), **settings).start() for settings in (first, second)]
        await until(lambda: all(client.reads for client in clients))
        found = len(local.application.pipeline.admission._sizes)
        assert [await client.give().status() for client in clients] == [200, 200]
        return found

    with Local(model, token=token) as local:
        return asyncio.run(go(local))


# --- turns
# --------------------------------------------------------------------------------------------------


def test_clients_are_served_in_turn_whatever_their_number_of_jobs():
    batches, begun, go = list[list[str]](), threading.Event(), threading.Event()

    def compute(units: Any) -> list[str]:
        begun.set()
        assert go.wait(10)
        batches.append(list(units))
        return list(units)

    batcher = Batcher(10, patience=100)
    batcher.speed = 1e6
    jobs = [InferenceJob([f"a{n}"], [10], compute, "a") for n in range(5)]
    futures = [batcher.submit(jobs[0])]
    assert begun.wait(10)
    jobs += [InferenceJob([f"b{n}"], [10], compute, "b") for n in range(2)]
    jobs += [InferenceJob(["c0", "c1"], [10, 10], compute, "c")]
    futures += [batcher.submit(job) for job in jobs[1:]]
    go.set()
    wait(futures, 10)
    assert [unit for batch in batches for unit in batch] == [
        "a0",
        "a1",
        "b0",
        "c0",
        "a2",
        "b1",
        "c1",
        "a3",
        "a4",
    ]
    assert not batcher.costs
    assert not batcher.loads
    batcher.threads.shutdown()


def test_a_small_job_is_in_a_small_batch_beside_another_client():
    batches, begun, go = list[list[int]](), threading.Event(), threading.Event()

    def compute(units: Any) -> Any:
        begun.set()
        assert go.wait(10)
        batches.append(list(units))
        return units

    batcher = Batcher(4096, patience=100)
    batcher.speed = 1e6
    futures = [batcher.submit(InferenceJob([256] * 40, [256] * 40, compute, "many"))]
    assert begun.wait(10)
    futures.append(batcher.submit(InferenceJob([9], [9], compute, "few")))
    go.set()
    wait(futures, 10)
    assert batches[1] == [256, 9]  # in turn, and a small one beside it
    assert max(sum(batch) for batch in batches[2:]) > 500  # then throughput counts again
    batcher.threads.shutdown()


def test_the_queue_of_one_client_refuses_no_other():
    batcher = Batcher(100, patience=1, speed=100)  # 100 in a second
    held = InferenceJob([0], [100], client="many")
    batcher.reserve(held)
    batcher.reserve(InferenceJob([0], [100], client="many"))
    with pytest.raises(OverloadedError) as raised:
        batcher.reserve(InferenceJob([0], [10], client="many"))
    assert int(raised.value.headers["retry-after"]) == 1
    few = InferenceJob([0], [10], client="few")
    assert batcher.overloaded(few) is None  # it waits for as much of the other client's work
    for number in range(20):
        batcher.reserve(InferenceJob([0], [2], client=number))
    assert batcher.overloaded(InferenceJob([0], [90], client="few")) is not None
    held.future.cancel()
    assert batcher.loads["many"] == 100
    batcher.threads.shutdown()


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_job_is_freed_without_a_collection_of_garbage(is_cancelled: bool) -> None:
    """Else the texts of abandoned requests fill the memory until the next one."""
    batcher = Batcher(100, patience=5)
    gc.collect()
    gc.disable()
    try:
        job = InferenceJob(["a text"], [1])
        reference = weakref.ref(job)
        future = batcher.reserve(job)
        if is_cancelled:
            assert future.cancel()
        else:
            batcher.start(job)
            assert future.result(10) == ["a text"]
        batcher.threads.shutdown()
        del job
        assert reference() is None
        assert not batcher.loads
        assert not batcher.costs
    finally:
        gc.enable()


@pytest.mark.parametrize("in_order", [True, False])
def test_the_jobs_of_a_client_are_computed_in_order_or_in_turn(in_order: bool):
    """Answers in turn would all be in memory until the last one is finished."""
    batcher = Batcher(1, patience=1, turn_cost=0 if in_order else math.inf)
    blocked = threading.Event()
    first = batcher.submit(InferenceJob([0], [1], lambda units: blocked.wait(20) and list(units)))
    computed = list[str]()

    def compute(units: Sequence[str]) -> list[str]:
        computed.extend(units)
        return list(units)

    waiting = [InferenceJob([f"{name}1", f"{name}2"], [1, 1], compute) for name in "ab"]
    waiting.append(InferenceJob(["c1", "c2"], [1, 1], compute, client="another"))
    futures = [batcher.submit(job, math.inf) for job in waiting]
    blocked.set()
    wait([first, *futures], 20)
    batcher.threads.shutdown()
    expected = ["a1", "a2", "b1", "b2"] if in_order else ["a1", "b1", "a2", "b2"]
    assert [unit for unit in computed if unit[0] != "c"] == expected
    assert computed.index("c2") < 4  # clients have turns in any case


# --- patience
# --------------------------------------------------------------------------------------------------


def hold_network(
    local: Local, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> threading.Event:
    """The network computes only after the event, or at the end of the test: else each job that a
    failed test leaves would wait for it."""
    event = threading.Event()
    request.addfinalizer(event.set)
    logits = local.abilities._network._predictor.logits

    def held(units: Sequence[Any]) -> Any:
        assert event.wait(120)
        return logits(units)

    monkeypatch.setattr(local.abilities._network._predictor, "logits", held)
    return event


def batch_of_texts(words: int = 40) -> bytes:
    return json.dumps({"inputs": [["cat " * words]] * 32}).encode()


@pytest.mark.parametrize("ratio", [0.25, 4.0])
def test_many_requests_of_one_client_wait_however_slow_the_network_is(
    ratio: float, local: Local, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    """32 requests of 32 texts. ratio: tokens per byte that the server expects of a body; 4 are too
    many."""
    application = local.application
    go_on = hold_network(local, monkeypatch, request)
    for name in application.pipeline.ratios:
        application.pipeline.ratios[name] = ratio

    async def go() -> None:
        application.pipeline.batchers["network"].speed = 0.01
        clients = [Client(local, batch_of_texts()).give().start() for _ in range(32)]
        await until(lambda: application.pipeline.batchers["network"].costs.total() >= 32 * 32 * 40)
        go_on.set()
        assert [await client.status() for client in clients] == [200] * 32

    asyncio.run(go())
    assert not application.pipeline.waiting_tokens.places


def test_what_would_wait_longer_than_the_patience_is_refused_with_the_seconds(model: Path):
    async def go(local: Local) -> None:
        local.application.pipeline.batchers["network"].speed = 10
        local.application.pipeline.batchers["network"].costs["another", SMALL] = 10**4
        client = Client(local, text(100)).give().start()
        assert await client.status() == 200  # it has its turn beside another client's
        network = local.application.pipeline.batchers["network"]
        network.speed = 10
        network.loads["10.0.0.1", SMALL] = 450
        network.costs["10.0.0.1", SMALL] = 450
        client = Client(local, text(100)).give().start()
        assert await client.status() == 429
        assert 10 <= int(dict(client.sent[0]["headers"])[b"retry-after"]) <= 20

    with Local(model, limits=Limits(client_tokens=32)) as local:
        asyncio.run(go(local))


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.1, "1"), (7.2, "8"), (60, "60"), (1000, "60"), (math.inf, "60")]
)
def test_clients_are_told_to_try_again_within_a_minute(seconds: float, expected: str):
    assert OverloadedError(seconds).headers == {"retry-after": expected}


def test_tokens_that_wait_are_limited_and_shared(
    model: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    """Each request of 32 short texts counts 32 times 64 tokens."""
    each = 32 * 64

    async def go(local: Local) -> None:
        go_on = hold_network(local, monkeypatch, request)
        admission = local.application.pipeline.waiting_tokens
        many = [Client(local, batch_of_texts()).give().start() for _ in range(8)]
        await until(lambda: sum(client.task.done() for client in many) == 4)
        other = Client(local, batch_of_texts(), address="10.0.0.2").give().start()
        await until(lambda: sum(client.task.done() for client in many) == 5)
        assert admission._free >= 0
        assert admission._sizes["10.0.0.2"] > 0
        go_on.set()
        assert await other.status() == 200
        assert sorted([await client.status() for client in many]) == [200] * 3 + [429] * 5
        assert admission._free == 4 * each
        assert not admission.places

    with Local(model, limits=Limits(waiting_tokens=4 * each, requests=64)) as local:
        asyncio.run(go(local))


def test_the_results_of_few_large_jobs_are_in_memory():
    """Jobs of a client that fit into a turn together share it; others follow one by one."""
    computed, go = list[str](), threading.Event()

    def compute(units: Sequence[str]) -> list[str]:
        assert go.wait(20)
        computed.extend(units)
        return list(units)

    batcher = Batcher(1, patience=1, turn_cost=5)
    jobs = {name: InferenceJob([name] * 2, [1, 1], compute) for name in "abcd"}
    first = batcher.submit(InferenceJob(["first"], [1], compute))
    futures = {name: batcher.submit(job) for name, job in jobs.items()}
    futures.pop("b").cancel()  # its place in the turn is for the next one
    go.set()
    wait([first, *futures.values()], 20)
    batcher.threads.shutdown()
    assert computed == ["first", "a", "c", "a", "c", "d", "d"]


def test_the_speed_is_unknown_until_a_typical_batch():
    batcher = Batcher(4096, patience=1)
    assert batcher.overloaded(InferenceJob([0], [10**9])) is None
    batcher.submit(InferenceJob([0], [1])).result(10)
    assert math.isinf(batcher.speed)
    batcher.submit(
        InferenceJob([0], [300], lambda units: threading.Event().wait(0.1) or units)
    ).result(10)
    assert 0 < batcher.speed < 3000
    batcher.threads.shutdown()


def test_the_speed_is_measured_before_the_first_request(local: Local):
    local.application.pipeline.measure_speed()
    network = local.application.pipeline.batchers["network"]
    assert 0 < network.speed < math.inf
    assert not network.costs


def test_what_waits_is_refused_when_the_server_stops(
    local: Local, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    """What is computed is answered."""
    go_on = hold_network(local, monkeypatch, request)
    network = local.application.pipeline.batchers["network"]
    long = json.dumps({"inputs": [["cat " * 60]]}).encode()

    async def go() -> None:
        begun = Client(local, long).give().start()
        await until(lambda: network.busy)
        clients = [Client(local, batch_of_texts()).give().start() for _ in range(12)]
        await until(lambda: network.costs.total() > 12 * 32 * 40)
        waiting = [
            place
            for place in local.application.pipeline.admission.places
            if place.job and not place.job.num_started
        ]
        assert len(waiting) >= 9  # a few are in the batches of other threads
        local.application.pipeline.end_waiting()
        # At once: nothing is computed yet. Requests are parsed side by side, so the others are not
        # always the first.
        await until(lambda: sum(client.task.done() for client in clients) == len(waiting))
        ended = [client for client in clients if client.task.done()]
        assert [await client.status() for client in ended] == [503] * len(waiting)
        go_on.set()
        assert await begun.status() == 200

    asyncio.run(go())


def test_small_batches_do_not_slow_the_estimate_down():
    batcher = Batcher(4096, patience=2, speed=2048)
    for _ in range(20):
        batcher.submit(
            InferenceJob([0], [1], lambda units: threading.Event().wait(0.005) or units)
        ).result(10)
    assert batcher.speed == 2048
    batcher.submit(
        InferenceJob([0], [300], lambda units: threading.Event().wait(0.2) or units)
    ).result(10)
    assert batcher.speed < 2048
    batcher.threads.shutdown()


def test_a_body_is_freed_when_its_request_has_ended(local: Local, monkeypatch: pytest.MonkeyPatch):
    """An error keeps the variables of the functions that it has left: without a collection of
    garbage, the bodies of refused requests would fill the memory."""
    bodies = list["weakref.ref[memoryview]"]()
    application = local.application
    parse = application.pipeline._parse

    def recorded(name: str, body: memoryview, lane: int) -> Any:
        bodies.append(weakref.ref(body))
        return parse(name, body, lane)

    async def go() -> None:
        monkeypatch.setattr(application.pipeline, "_parse", recorded)
        requests = (b'{"inputs": "a"}', text(1_000_000), b"no JSON", b'{"inputs": 1}')
        for number, (body, status) in enumerate(zip(requests, (200, 200, 400, 422), strict=True)):
            client = Client(local, body).start().give()
            assert await client.status() == status
            del client
            # threads let go of it a little later
            await until(lambda number=number: bodies[number]() is None)

    gc.collect()
    gc.disable()
    try:
        asyncio.run(go())
    finally:
        gc.enable()
    assert len(bodies) == 4


# --- before the body is read, and after the client has gone
# -----------------------------------------------------------


REFUSED: dict[str, tuple[dict[str, str], int]] = {
    "too long": ({"content-length": "2000001"}, 413),
    "no JSON": ({"content-type": "text/plain"}, 415),
    "foreign page": ({"origin": "http://evil.example"}, 403),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_reads_no_body(name: str, local: Local):
    headers, status = REFUSED[name]

    async def go() -> None:
        client = Client(local, text(100), **headers).give().start()
        assert (await client.status(), client.reads) == (status, 0)

    asyncio.run(go())


def hold_parsing(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> tuple[threading.Event, list[int]]:
    """Bodies are parsed only after the event. Returns it, and the sizes of the bodies that reached
    the parser."""
    parse, go_on, parsed = local.application.pipeline._parse, threading.Event(), list[int]()

    def held(name: str, body: bytes, lane: int) -> Any:
        parsed.append(len(body))
        assert go_on.wait(20)
        return parse(name, body, lane)

    monkeypatch.setattr(local.application.pipeline, "_parse", held)
    return go_on, parsed


@pytest.mark.parametrize("path", ["/predict", "/tokenize"])
def test_what_would_wait_too_long_is_refused_before_its_body_is_read(
    path: str, local: Local, monkeypatch: pytest.MonkeyPatch
):
    """Also if nothing was parsed yet: bodies count by the length that their headers announce."""
    go_on, parsed = hold_parsing(local, monkeypatch)

    async def go() -> None:
        lane = local.application.pipeline.lanes[1 << 18]
        lane.speed = 100_000
        lane._always_waits = 0
        flood = [Client(local, text(60_000)).start(path) for _ in range(30)]
        await until(lambda: sum(client.reads or client.task.done() for client in flood) == 30)
        read = [client for client in flood if client.reads]
        assert 1 <= len(read) <= 4  # two seconds of work, and one more
        assert {await client.status() for client in flood if not client.reads} == {429}
        for client in read:
            client.give()
        await until(lambda: parsed)
        small = Client(local, text(40), address="10.0.0.2").give().start(path)
        await until(lambda: 40 in parsed)  # another lane
        go_on.set()
        assert await small.status() == 200
        assert [await client.status() for client in read] == [200] * len(read)
        assert not lane.costs

    asyncio.run(go())


def test_a_closed_client_is_neither_parsed_nor_computed(
    local: Local, monkeypatch: pytest.MonkeyPatch
):
    go_on, parsed = hold_parsing(local, monkeypatch)
    jobs = list[InferenceJob]()
    batcher = local.application.pipeline.batchers["network"]
    start = batcher.start
    monkeypatch.setattr(batcher, "start", lambda job: (jobs.append(job), start(job))[1])

    async def go() -> None:
        reading = Client(local, text(1000)).give(b"{", more=True).start()
        clients = [Client(local, text(1001 + n)).give().start() for n in range(8)]
        await until(lambda: len(parsed) == 2)  # in the two threads of the lane
        await until(lambda: all(client.reads == 2 for client in [reading, *clients]))
        for client in [reading, *clients]:
            client.close()
        # at once: the threads are still held
        statuses = [await client.status() for client in [reading, *clients]]
        assert statuses == [400] + [499] * 8
        assert not local.application.pipeline.admission.places
        go_on.set()
        small = Client(local, text(40)).give().start()
        assert await small.status() == 200
        assert parsed == [1001, 1002, 40]
        assert len(jobs) == 1  # of the last
        await until(lambda: not local.application.pipeline.lanes[SMALL].costs)
        assert not local.application.pipeline.lanes[SMALL].loads
        assert not batcher.costs
        assert not batcher.loads

    asyncio.run(go())


def test_a_body_that_does_not_come_ends_the_connection(
    local: Local, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("bertworks.serve.pipeline.BODY_SECONDS", 0.05)

    async def go() -> None:
        client = Client(local, text(100)).give(b"{", more=True).start()
        assert await client.status() == 408
        assert dict(client.sent[0]["headers"])[b"connection"] == b"close"

    asyncio.run(go())


def test_tokens_are_estimated_from_what_came_before(local: Local):
    """Words of two bytes are 0.5 tokens a byte, up to 64 tokens that the model reads."""
    ratios = local.application.pipeline.ratios

    async def go() -> None:
        for _ in range(30):
            assert await Client(local, text(100)).give().start().status() == 200

    asyncio.run(go())
    assert ratios["predict", SMALL] == pytest.approx((43 + 2) / 100, abs=0.01)
    assert ratios["predict", 1 << 18] == 0.25


# --- headers and tokens
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["host", "origin", "authorization", "content-length", "content-type"]
)
@pytest.mark.parametrize("token", ["", "sesame"])
def test_a_header_that_is_there_twice_is_refused(name: str, token: str, model: Path):
    async def go(local: Local) -> None:
        given = {"origin": "http://localhost", "authorization": "Bearer sesame"}
        client = Client(local, text(100), **given).give()
        assert await client.start().status() == 200
        for path, kind in (("/predict", str), ("/v1/embeddings", dict)):
            client = Client(local, text(100), **given).give()
            client.headers.append(
                next(header for header in client.headers if header[0] == name.encode())
            )
            assert (await client.start(path).status(), client.reads) == (400, 0)
            assert isinstance(client.json()["error"], kind)
            assert "twice" in str(client.json()["error"])
        client = Client(local, text(100), **given, accept="a").give()
        client.headers.append((b"accept", b"b"))
        assert await client.start().status() == 200

    with Local(model, token=token) as local:
        asyncio.run(go(local))


def test_headers_that_contradict_each_other_over_a_socket(model: Path):
    """The token is short, which is allowed on this machine."""
    head = b"POST /tokenize HTTP/1.1\r\nContent-Type: application/json\r\nHost: localhost\r\n"
    head += b"Authorization: Bearer short\r\n"
    body = b'\r\n\r\n{"inputs": "a"}'
    with process(str(model), BERTWORKS_API_KEY="short") as (_, url):
        for lines, status in (
            (b"Content-Length: 15", b" 200 "),
            (b"Content-Length: 15\r\nHost: localhost", b" 400 "),
            (b"Content-Length: 15\r\nhOST: evil.example", b" 400 "),
            (b"Content-Length: 15\r\nAuthorization: Bearer other", b" 400 "),
            (
                b"Content-Length: 15\r\nOrigin: http://localhost\r\nOrigin: http://evil.example",
                b" 400 ",
            ),
            (b"Content-Length: 15\r\nContent-Length: 15", b" 400 "),
            (b"Content-Length: 15\r\nTransfer-Encoding: chunked", b" 400 "),
            (b"Transfer-Encoding: chunked\r\nContent-Length: 15", b" 400 "),
        ):
            with connected(url) as connection:
                connection.sendall(head + lines + body)
                assert status in answered(connection), lines


@pytest.mark.parametrize("token", ["x" * (MIN_TOKEN - 1), f"{'x' * MIN_TOKEN}\nshort", " "])
def test_a_short_token_is_refused_on_a_public_address(
    token: str, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("BERTWORKS_API_KEY", token)
    assert main(["serve", str(model), "--host", "0.0.0.0", "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert NEW_TOKEN in error
    assert token.strip() not in error or not token.strip()


def test_the_hint_makes_a_token_that_is_long_enough():
    command = ["sh", "-c", f'{NEW_TOKEN}; printf %s "$BERTWORKS_API_KEY"']
    tokens = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)
    ]
    assert tokens[0] != tokens[1]
    assert all(len(token.split()) == 1 and len(token) >= MIN_TOKEN for token in tokens)


# --- without a task
# --------------------------------------------------------------------------------------------------


class Wire(asyncio.Transport):
    """What a connection writes."""

    def __init__(self, address: str = "10.0.0.1"):
        super().__init__({"peername": (address, 1), "sockname": ("127.0.0.1", 80)})
        self.written, self.closed = b"", False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def connection(local: Local, address: str = "10.0.0.1") -> tuple[Connection, Wire]:
    config = uvicorn.Config(local.application, http=Connection, **SETTINGS)
    made, wire = Connection(config, ServerState(), {}), Wire(address)
    made.connection_made(wire)
    return made, wire


def head(size: int, method: str = "POST", path: str = "/predict", lines: str = "") -> bytes:
    lines += "Content-Type: application/json\r\n" + (f"Content-Length: {size}\r\n" if size else "")
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode()


async def comes(wire: Wire, count: int) -> list[int]:
    """The statuses of the answers, when `count` have come."""
    await until(lambda: wire.written.count(b"HTTP/1.1 ") >= count)
    return [int(answer[:3]) for answer in wire.written.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize("loop", ["asyncio", pytest.param("uvloop", marks=pytest.mark.slow)])
def test_a_large_body_comes_in_parts_and_the_connection_goes_on(loop: str, local: Local):
    config = uvicorn.Config(local.application, http=Connection, **SETTINGS)

    async def go() -> None:
        running = asyncio.get_running_loop()
        server = await running.create_server(
            lambda: Connection(config, ServerState(), {}), "127.0.0.1"
        )
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            for _ in range(2):  # the connection goes on
                writer.write(head(900_000) + text(900_000))
                assert b" 200 " in await asyncio.wait_for(reader.readline(), 20)
                lines = [line async for line in until_empty(reader)]
                (length,) = [
                    int(line.split()[1]) for line in lines if line.startswith(b"content-length")
                ]
                assert json.loads(await reader.readexactly(length))
            writer.close()
            await writer.wait_closed()

    factory = (
        pytest.importorskip("uvloop").new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    )
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(go())


async def until_empty(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a head."""
    while line := (await asyncio.wait_for(reader.readline(), 20)).strip():
        yield line


def test_a_refusal_is_written_at_once_and_the_connection_goes_on(local: Local):
    async def go() -> None:
        lane = local.application.pipeline.lanes[SMALL]
        lane._always_waits = 0
        lane.loads["another", SMALL] = lane.loads["10.0.0.1", SMALL] = 10**9
        made, wire = connection(local)
        made.data_received(head(100))
        await asyncio.sleep(0)
        assert wire.written.startswith(b"HTTP/1.1 429 ")  # no body has come
        assert b"retry-after: " in wire.written
        lane.loads.clear()
        made.data_received(text(100) + head(100) + text(100))
        assert await comes(wire, 2) == [429, 200]
        assert not wire.closed
        made.data_received(head(0, "HEAD", "/info", "Connection: close\r\n"))
        await asyncio.sleep(0)
        assert wire.written.endswith(b"connection: close\r\n\r\n")
        assert wire.closed

    asyncio.run(go())


def test_a_connection_with_many_requests_does_not_delay_another_client(local: Local):
    """The next request of a connection begins in another turn of the event loop."""

    async def go() -> None:
        (many, long), (few, short) = connection(local), connection(local, "10.0.0.2")
        many.data_received(head(0, "GET", "/health") * 300)
        few.data_received(head(0, "GET", "/none"))
        while not short.written:
            await asyncio.sleep(0)
        assert long.written.count(b"HTTP/1.1 ") < 30
        assert await comes(short, 1) == [404]
        assert await comes(long, 300) == [200] * 300

    asyncio.run(go())


def test_what_a_closed_connection_sent_is_answered_to_nobody(local: Local):
    async def go() -> None:
        connections = [connection(local) for _ in range(30)]
        for made, _ in connections:
            made.data_received(head(100))
        connections[-1][0].connection_lost(None)
        for made, _ in connections[:-1]:
            made.data_received(text(100))
        assert [await comes(wire, 1) for _, wire in connections[:-1]] == [[200]] * 29
        assert not connections[-1][1].written

    asyncio.run(go())


@pytest.mark.parametrize("part", [b"a" * 1000, b"a: b\r\n" * 200])
def test_an_endless_head_is_not_kept(part: bytes, local: Local):
    async def go() -> None:
        made, wire = connection(local)
        made.data_received(head(0, "GET", "/health")[:-2])
        count = 0
        while not wire.closed and count < 100:
            made.data_received(part)
            count += 1
        assert KEPT_HEAD - 1000 < count * len(part) < KEPT_HEAD + 1000
        assert wire.written.startswith(b"HTTP/1.1 400 ")

    asyncio.run(go())


def test_a_head_has_a_time_and_a_body_has_none_of_it(local: Local):
    async def go() -> None:
        made, wire = connection(local)
        timer = made._timer
        assert timer is not None
        assert HEAD_SECONDS - 1 < timer.when() - made.loop.time() <= HEAD_SECONDS
        made.data_received(head(100)[:-2])
        assert made._timer is timer  # a part of a head gives it no more time
        made.data_received(b"\r\n")
        assert timer.cancelled()
        assert made._timer is None
        made.data_received(text(100))
        assert await comes(wire, 1) == [200]

    asyncio.run(go())


def test_a_body_that_is_not_read_yet_is_not_received_further(
    local: Local, monkeypatch: pytest.MonkeyPatch
):
    calls = list[str]()
    for name in ("pause_reading", "resume_reading"):
        monkeypatch.setattr(Wire, name, lambda wire, name=name: calls.append(name))

    async def go() -> None:
        made, wire = connection(local)
        made.data_received(head(200_000))
        assert not calls
        made.data_received(text(200_000)[:100_000])
        assert calls == ["pause_reading"]
        made.data_received(text(200_000)[100_000:])
        assert await comes(wire, 1) == [200]
        assert calls[-1] == "resume_reading"

    asyncio.run(go())


def test_a_batch_is_small_if_the_network_is_slow():
    batches, go = list[int](), threading.Event()

    def compute(units: Any) -> Any:
        assert go.wait(10)
        batches.append(sum(units))
        return units

    batcher = Batcher(4096, patience=100)
    batcher.speed = 10_000
    futures = [batcher.submit(InferenceJob([64] * 200, [64] * 200, compute))]
    go.set()
    wait(futures, 10)
    assert batches[0] == 384  # 0.04 seconds: 400 tokens
    batcher.threads.shutdown()


def test_many_requests_behind_one_that_is_computed_are_answered_in_order(local: Local):
    async def go() -> None:
        made, wire = connection(local)
        made.data_received(
            head(100) + text(100) + head(0, "GET", "/health") * 1500 + head(0, "GET", "/none")
        )
        assert await comes(wire, 1502) == [200] * 1501 + [404]

    asyncio.run(go())


def test_a_request_may_lose_its_place_before_its_task_begins(model: Path):
    async def go(local: Local) -> None:
        first, second, other = (
            connection(local, address) for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2")
        )
        for made, _ in (first, second, other):
            made.data_received(head(100) + text(100))
        found = [await comes(wire, 1) for _, wire in (first, second, other)]
        assert found == [[200], [429], [200]]
        await until(lambda: not local.application.pipeline.admission.places)
        assert local.application.pipeline.admission._free == Limits().total_bytes

    with Local(model, limits=Limits(requests=2)) as local:
        asyncio.run(go(local))


def test_refusals_share_a_line_of_the_log_and_are_counted(
    local: Local, monkeypatch: pytest.MonkeyPatch
):
    lines = list[dict[str, Any]]()
    monkeypatch.setattr(
        "bertworks.serve.application._LOG.info", lambda _, extra: lines.append(extra["fields"])
    )

    async def go() -> None:
        lane = local.application.pipeline.lanes[SMALL]
        lane._always_waits = 0
        lane.loads["10.0.0.1", SMALL] = 10**9
        for _ in range(30):
            made, _ = connection(local)
            made.data_received(head(100))
        await until(lambda: lines)

    asyncio.run(go())
    assert lines == [{"path": "/predict", "status": 429, "count": 30}]
    assert 'te_request_failure{err="429"} 30.0' in local.send("GET", "/metrics").text

from time import perf_counter_ns

from observe.client import Client
from observe.event_loop import sleep_until, start_clock
from observe.http import get_bytes, parse_server
from observe.requests import Dispatcher, PlannedRequest, PreparedRequest, SentRequest
from tests.patience import PATIENCE_S, attempts


def plan(*times_us: int) -> list[PlannedRequest]:
    return [PlannedRequest(at_us=each, input_tokens=1, output_tokens=1) for each in times_us]


class Sending:
    """Requests for the health of a server, and what became of them."""

    def __init__(self, url: str, plan: list[PlannedRequest], *, max_concurrency: int = 0) -> None:
        self.ended: list[SentRequest] = []
        self.built: list[int] = []
        self.client = Client(parse_server(url), timeout_s=PATIENCE_S, num_spare=4)
        self.dispatcher = Dispatcher(
            self.client, plan, self.prepare, self.ended.append, max_concurrency=max_concurrency
        )

    def prepare(self, request_id: int, planned: PlannedRequest) -> PreparedRequest:
        self.built.append(request_id)
        request = get_bytes(self.client.server, "/health", {})
        return PreparedRequest(
            request_id=request_id, planned=planned, x_request_id="", request=request, streaming=False
        )

    async def run(self) -> int:
        origin = perf_counter_ns() + 5_000_000
        await self.dispatcher.run(origin)
        await self.client.close()
        return origin


async def test_requests_are_sent_at_their_times_and_never_early(server_url: str) -> None:
    for _ in attempts():
        sending = Sending(server_url, plan(*range(0, 300_000, 3_000)))
        origin = await sending.run()
        assert len(sending.ended) == 100
        late_ns = [sent.outcome.sent - origin - sent.prepared.planned.at_us * 1000 for sent in sending.ended]
        assert min(late_ns) >= 0
        # Most may be late on a busy machine, but not all of them.
        if min(late_ns) < 1_000_000:
            break


async def test_a_burst_is_sent_in_order_and_whole(server_url: str) -> None:
    sending = Sending(server_url, plan(*[0] * 200))
    await sending.run()
    in_order = sorted(sending.ended, key=lambda sent: sent.outcome.sent)
    assert sorted(sent.prepared.request_id for sent in in_order) == list(range(200))


async def test_all_bytes_are_built_before_the_first_request(server_url: str) -> None:
    sending = Sending(server_url, plan(*range(0, 20_000, 1_000)))
    sending.dispatcher.build_ahead()
    assert sending.built == list(range(20))
    await sending.run()
    assert sending.built == list(range(20))
    assert sending.dispatcher.num_sent == 20


async def test_a_request_in_line_is_allowed_when_another_ends(server_url: str) -> None:
    sending = Sending(server_url, plan(0, 0, 0), max_concurrency=1)
    await sending.run()
    first, second, third = sorted(sending.ended, key=lambda sent: sent.prepared.request_id)
    assert first.allowed == first.due == second.due == third.due
    assert (second.allowed, third.allowed) == (first.outcome.ended, second.outcome.ended)
    assert second.outcome.sent >= second.allowed


async def test_a_plan_without_requests_is_done_at_once(server_url: str) -> None:
    sending = Sending(server_url, [])
    await sending.run()
    assert sending.ended == []


async def test_waking_is_never_early() -> None:
    for early_ns in (0, 100_000, 3_000_000):
        due = perf_counter_ns() + early_ns
        await sleep_until(due)
        assert perf_counter_ns() >= due


def test_the_clock_gives_unix_microseconds_and_keeps_never() -> None:
    clock = start_clock()
    assert clock.epoch_us(0) == 0
    assert clock.epoch_us(clock.counter_ns + 5_000_000) == clock.epoch_ns // 1000 + 5000

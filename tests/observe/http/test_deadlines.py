import asyncio
from time import perf_counter_ns

from observe.client import Deadlines, Exchange
from tests.patience import PATIENCE_S


def exchange(timeout_s: float) -> Exchange:
    return Exchange(
        b"", streaming=False, finished=lambda _: None, on_settled=lambda _, __: None, timeout_s=timeout_s, heads=None
    )


class Watch:
    """Deadlines that note each one that has passed, with its time."""

    def __init__(self) -> None:
        self.on_timeout: list[tuple[Exchange, int]] = []
        self.deadlines = Deadlines(asyncio.get_running_loop(), self._note)

    def _note(self, each: Exchange) -> None:
        self.on_timeout.append((each, perf_counter_ns()))

    async def wait_for(self, count: int) -> list[Exchange]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.on_timeout) < count:  # noqa: ASYNC110 - no event marks that a time has passed
                await asyncio.sleep(0.005)
        return [each for each, _ in self.on_timeout]


async def test_deadlines_pass_in_the_order_of_beginning_and_never_early() -> None:
    watch = Watch()
    each, began = [exchange(0.02) for _ in range(3)], []
    for one in each:
        began.append(perf_counter_ns())
        watch.deadlines.watch(one)
        await asyncio.sleep(0.005)
    assert await watch.wait_for(3) == each
    taken = [at - begin for (_, at), begin in zip(watch.on_timeout, began, strict=True)]
    assert min(taken) >= 20_000_000


async def test_an_ended_request_is_not_given_up() -> None:
    watch = Watch()
    ended, late = exchange(0.01), exchange(0.01)
    watch.deadlines.watch(ended)
    watch.deadlines.watch(late)
    watch.deadlines.unwatch(ended)
    assert await watch.wait_for(1) == [late]


async def test_requests_with_less_time_do_not_wait_for_others() -> None:
    watch = Watch()
    patient, hasty = exchange(60), exchange(0.01)
    watch.deadlines.watch(patient)
    watch.deadlines.watch(hasty)
    assert await watch.wait_for(1) == [hasty]
    watch.deadlines.close()


async def test_after_all_have_passed_or_ended_others_are_watched_again() -> None:
    watch = Watch()
    first, second, third = (exchange(0.01) for _ in range(3))
    watch.deadlines.watch(first)
    watch.deadlines.unwatch(first)
    await asyncio.sleep(0.03)
    watch.deadlines.watch(second)
    assert await watch.wait_for(1) == [second]
    watch.deadlines.watch(third)
    assert await watch.wait_for(2) == [second, third]

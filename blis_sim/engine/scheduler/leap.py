"""Many decode-only steps at once: their times, and their place in the step log."""

from bisect import bisect_right
from itertools import accumulate

from blis_sim.engine.batch_shape import decodes
from blis_sim.engine.context import EngineContext
from blis_sim.engine.latency.decode_steps import few_decodes_timer
from blis_sim.engine.latency.decode_sums import STEPS_OF_A_RUN, decode_sums
from blis_sim.engine.units import Micros

MIN_LEAP_STEPS = 4
"""Least steps of a leap: fewer are cheaper one by one."""
FEW_STEPS = 48
"""Fewer steps are cheaper in a list than in an array, where their sums are not kept."""
MAX_LEAP_STEPS = 1 << 16


class MultiStep:
    """Takes steps of an engine in which no request joins or leaves. About 3 us, however many, where few decode."""

    __slots__ = ("_context", "_find_run", "_latency", "_times_of_few")

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._latency = context.latency
        self._find_run = decode_sums(context.latency).find
        self._times_of_few = few_decodes_timer(context.latency)

    def take(
        self, at: Micros, last: Micros, num_sequences: int, context_tokens: int, most: int
    ) -> tuple[int, Micros, Micros]:
        """Take up to `most` steps from `at` on, the first with so many context tokens, each of which starts by `last`.

        Returns how many, and start and end of the last one.
        """
        find_run = self._find_run
        run, first = find_run(self._latency, num_sequences, context_tokens)
        if run is None:
            return self._take_unknown(at, last, num_sequences, context_tokens, most)
        sums, instants = run
        shift = at - sums[first]
        end = first + most
        if end > STEPS_OF_A_RUN:
            end = STEPS_OF_A_RUN
        ends_at = sums[end] + shift
        if ends_at > last:
            end = bisect_right(sums, last - shift, first + 1, end)
            ends_at = sums[end] + shift
        self._context.steps.extend_touching(instants[first : end + 1] + shift)
        return end - first, sums[end - 1] + shift, ends_at

    def _take_unknown(
        self, at: Micros, last: Micros, num_sequences: int, context_tokens: int, most: int
    ) -> tuple[int, Micros, Micros]:
        times_of_few = self._times_of_few
        if most < FEW_STEPS and times_of_few is not None:
            times = times_of_few(num_sequences, context_tokens, most)
            instants = list(accumulate(times, initial=at))
            if instants[-1] > last:
                del instants[bisect_right(instants, last, 1) + 1 :]
            count, started_at, ends_at = len(instants) - 1, instants[-2], instants[-1]
            self._context.steps.move_touching(instants)
            return count, started_at, ends_at
        ends = self._latency.decode_times(decodes(num_sequences, context_tokens), most).cumsum()
        ends += at
        ends = ends[: int(ends.searchsorted(last, side="right")) + 1]
        self._context.steps.extend(at, ends)
        count = len(ends)
        return count, int(ends[-2]) if count > 1 else at, int(ends[-1])

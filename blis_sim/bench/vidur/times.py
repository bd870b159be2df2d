"""The time of a batch in one stage, from the times of operators."""

import math
from bisect import bisect_right

from blis_sim.engine.latency.operators.steps import OperatorTimes
from blis_sim.engine.scheduler.batch_rules import KV_GRANULE, Batch

_MOST_FOLLOWING = 1 << 16


class BatchTimes:
    """Times in seconds. The original rounds contexts up to the points of its tables; here lines join these points."""

    def __init__(self, times: OperatorTimes, *, is_original: bool) -> None:
        self._times = times
        self._is_original = is_original
        self._at_points: dict[tuple[int, int], float] = {}
        """Decodes alone, by their number and the granules of context that each has."""
        self._lines: dict[tuple[int, int], tuple[float, float, float]] = {}
        """Decodes alone, by their number and the place among the points: context, seconds, seconds for each token."""
        self.of_following_decodes = self._rounded if is_original else self._exact

    def of(self, batch: Batch, sends: bool) -> float:
        """Return the time of a batch; with `sends` it goes on to another stage."""
        decodes, context = batch.decodes, batch.decode_context_tokens
        if not batch.prefills and not sends:
            return self.of_decodes(decodes, context)
        if self._is_original:
            kv_tokens: float = -(-(context // decodes) // KV_GRANULE) * KV_GRANULE if decodes else 0
            prefill_kv, chunk = batch.prefill_granule_tokens, float(round(math.sqrt(batch.prefill_squares)))
        else:
            kv_tokens = context / decodes if decodes else 0
            prefill_kv, chunk = batch.prefill_context_tokens, math.sqrt(batch.prefill_squares)
        return self._times.seconds(batch.num_tokens, decodes, kv_tokens, batch.prefills, prefill_kv, chunk, sends)

    def of_decodes(self, decodes: int, context: int) -> float:
        """Return the time of a batch of decodes with so many tokens of context together."""
        return self.of_following_decodes(decodes, context)[0]

    def _rounded(self, decodes: int, context: int) -> tuple[float, float, int]:
        each = context // decodes
        granules = -(-each // KV_GRANULE)
        found = self._at_points.get((decodes, granules))
        if found is None:
            found = self._times.seconds(decodes, decodes, granules * KV_GRANULE)
            self._at_points[decodes, granules] = found
        return found, 0.0, granules * KV_GRANULE - each + 1

    def _exact(self, decodes: int, context: int) -> tuple[float, float, int]:
        places, each = self._times.tables.decode.columns, context / decodes
        place = min(max(bisect_right(places, each) - 1, 0), max(len(places) - 2, 0))
        line = self._lines.get((decodes, place))
        if line is None:
            seconds, slope = self._times.seconds(decodes, decodes, places[place]), 0.0
            if len(places) > 1:
                slope = self._times.seconds(decodes, decodes, places[place + 1]) - seconds
                slope /= places[place + 1] - places[place]
            line = self._lines[decodes, place] = (places[place], seconds, slope)
        number = math.ceil(places[place + 1] - each) if place < len(places) - 2 else _MOST_FOLLOWING
        return line[1] + (each - line[0]) * line[2], line[2], max(number, 1)

"""The time of a batch in one stage, from the times of operators."""

import math
from bisect import bisect_right

from blis_sim.engine.latency.operators.steps import OperatorTimes
from blis_sim.engine.scheduler.batch_rules import KV_GRANULE, Batch

_MOST_FOLLOWING = 1 << 16
OPERATIONS = (
    "mlp_up_proj",
    "mlp_activation",
    "mlp_down_proj",
    "mlp_down_proj_all_reduce",
    "attn_pre_proj",
    "attn_post_proj",
    "attn_post_proj_all_reduce",
    "attn_prefill",
    "attn_kv_cache_save",
    "attn_decode",
    "attn_rope",
    "pipeline_send_recv",
    "add",
    "input_layernorm",
    "post_attention_layernorm",
)
"""Operators of a layer as operation_metrics.csv names them."""


class BatchTimes:
    """Times in seconds. The original rounds contexts up to the points of its tables; here lines join these points."""

    def __init__(self, times: OperatorTimes, *, is_original: bool) -> None:
        self._times = times
        self._is_original = is_original
        self._cpu = times.tables.cpu
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
        prefill_kv = batch.prefill_granule_tokens if self._is_original else batch.prefill_context_tokens
        kv_tokens, chunk = self._kv_tokens(decodes, context), self._chunk(batch.prefill_squares)
        seconds = self._times.seconds(batch.num_tokens, decodes, kv_tokens, batch.prefills, prefill_kv, chunk, sends)
        return seconds + self._cpu_s(decodes + batch.prefills)

    def operations_ms(
        self,
        prefill_tokens: int,
        decodes: int,
        context: int,
        prefills: int,
        prefill_kv_tokens: int,
        prefill_squares: int,
        *,
        sends: bool,
    ) -> tuple[float, ...]:
        """Return the milliseconds of `OPERATIONS` in one layer; NaN for attention that no request needs."""
        kv_tokens, chunk = self._kv_tokens(decodes, context), self._chunk(prefill_squares)
        num_tokens = prefill_tokens + decodes
        decode_ms, prefill_ms = self._times.attention_ms(decodes, kv_tokens, prefills, prefill_kv_tokens, chunk)
        each = self._times.operators_ms(num_tokens)
        exchange_ms = each["exchange"]
        return (
            each["mlp_up_proj"],
            each["mlp_act"],
            each["mlp_down_proj"],
            exchange_ms,
            each["attn_pre_proj"],
            each["attn_post_proj"],
            exchange_ms,
            prefill_ms if prefills else math.nan,
            each["attn_kv_cache_save"],
            decode_ms if decodes else math.nan,
            each["attn_rope"],
            each["send_recv"] if sends else 0.0,
            2 * each["add"],  # Vidur says so, and adds it once
            each["input_layernorm"],
            each["post_attention_layernorm"],
        )

    def _cpu_s(self, num_requests: int) -> float:
        """Return what the CPU takes for a batch."""
        return 0.0 if self._cpu is None else self._cpu.at(num_requests) * 1e-3

    def _kv_tokens(self, decodes: int, context: int) -> float:
        """Return the context of a decode."""
        if not decodes:
            return 0
        return -(-(context // decodes) // KV_GRANULE) * KV_GRANULE if self._is_original else context / decodes

    def _chunk(self, squares: int) -> float:
        return float(round(math.sqrt(squares))) if self._is_original else math.sqrt(squares)

    def of_decodes(self, decodes: int, context: int) -> float:
        """Return the time of a batch of decodes with so many tokens of context together."""
        return self.of_following_decodes(decodes, context)[0]

    def _rounded(self, decodes: int, context: int) -> tuple[float, float, int]:
        each = context // decodes
        granules = -(-each // KV_GRANULE)
        found = self._at_points.get((decodes, granules))
        if found is None:
            found = self._times.seconds(decodes, decodes, granules * KV_GRANULE) + self._cpu_s(decodes)
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
            line = self._lines[decodes, place] = (places[place], seconds + self._cpu_s(decodes), slope)
        number = math.ceil(places[place + 1] - each) if place < len(places) - 2 else _MOST_FOLLOWING
        return line[1] + (each - line[0]) * line[2], line[2], max(number, 1)

"""Times set request by request instead of computed step by step: to the first token, and from each to the next.

The formulas are those of llm-d-inference-sim. Means grow with the number of running requests. Noise never strays
further than 70 % from the mean.
"""

from dataclasses import dataclass, fields

from blis_sim.engine.draws import splitmix64, standard_normal
from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros

MAX_NOISE_FRACTION = 0.7
"""Farthest that noise goes, as a fraction of the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTiming:
    """All times in microseconds, means and standard deviations. Raises EngineError for one below 0.

    With `per_token` the time to the first token is `prefill_overhead_us` plus `prefill_per_token_us` for each prompt
    token that is not in the cache. Otherwise it is `first_token_us`. A prompt that another instance has computed takes
    `transfer_us`, or `transfer_per_token_us` for each of its tokens, instead, whatever the load.
    """

    first_token_us: float = 0
    first_token_std_us: float = 0
    token_gap_us: float = 0
    token_gap_std_us: float = 0
    per_token: bool = False
    prefill_overhead_us: float = 0
    prefill_per_token_us: float = 0
    prefill_std_us: float = 0
    transfer_us: float = 0
    transfer_std_us: float = 0
    transfer_per_token_us: float = 0
    transfer_per_token_std_us: float = 0
    load_factor: float = 1.0
    """Times as long everything takes with all slots in use as with one, growing linearly in between."""
    num_slots: int = 1
    """Requests that may run at once."""
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_us") and value < 0:
                raise EngineError(f"{field.name} must be at least 0, got {value}")
        if self.load_factor < 1:
            raise EngineError(f"load_factor must be at least 1, got {self.load_factor}")
        if self.num_slots < 1:
            raise EngineError(f"num_slots must be at least 1, got {self.num_slots}")

    def first_token_time(self, request_number: int, num_tokens: int, num_cached: int, num_running: int) -> Micros:
        """Return the time from the start of a request with `num_cached` cached prompt tokens to its first token."""
        load = self._load(num_running)
        if not self.per_token:
            return self._noisy(self.first_token_us * load, self.first_token_std_us, request_number, 0)
        mean = self.prefill_overhead_us + (num_tokens - num_cached) * self.prefill_per_token_us
        return self._noisy(mean * load, self.prefill_std_us, request_number, 0)

    def transfer_time(self, request_number: int, num_tokens: int) -> Micros:
        """Return the time to the first token of a prompt whose KV cache comes from another instance."""
        if self.transfer_us or not self.transfer_per_token_us:
            return self._noisy(self.transfer_us, self.transfer_std_us, request_number, 0)
        mean = num_tokens * self.transfer_per_token_us
        return self._noisy(mean, self.transfer_per_token_std_us, request_number, 0)

    def token_gap(self, request_number: int, token_number: int, num_running: int) -> Micros:
        """Return the time from the previous token to token `token_number`, which is not the first."""
        mean = self.token_gap_us * self._load(num_running)
        return self._noisy(mean, self.token_gap_std_us, request_number, token_number)

    @property
    def even_gap(self) -> Micros | None:
        """The time between any two tokens, at least 1; None when it is not always the same."""
        if self.token_gap_std_us or self.load_factor != 1:
            return None
        return max(1, round(self.token_gap_us))

    def _load(self, num_running: int) -> float:
        if self.num_slots == 1:
            return 1.0
        return 1 + (self.load_factor - 1) * (num_running - 1) / (self.num_slots - 1)

    def _noisy(self, mean: float, std: float, request_number: int, token_number: int) -> Micros:
        if std == 0:
            return round(mean)
        draw = standard_normal(splitmix64(splitmix64(self.seed) + request_number) + token_number)
        reach = MAX_NOISE_FRACTION * mean
        return round(mean + max(-reach, min(reach, draw * std)))

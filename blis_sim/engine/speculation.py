"""Speculative decoding: number of drafted tokens, reservations of a drafter, and acceptance of drafts."""

from collections.abc import Mapping
from dataclasses import dataclass

from blis_sim.engine.draws import DRAW_RANGE, splitmix64
from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """Reservations of vLLM for one way of drafting. K is the number of drafts."""

    writes_kv: bool = False
    """Whether the drafter has KV of its own for the drafts, so that each allocation includes K slots more."""
    reads_next_token: bool = False
    """Whether the drafter's KV of a token depends on the token after it, so that a block is shared only when that token
    is the same, too."""
    rows_per_request: int = 0
    """Tokens it adds to each request of a step, out of `max_num_batched_tokens`."""
    has_own_pass: bool = False
    """Whether the drafter drafts all tokens of all requests in a pass of its own, whose rows are as many as its slots
    of KV."""
    num_more_slots: int = 0
    """Slots of KV beside those of the drafts."""
    is_async: bool = True
    """Whether steps can be composed while the drafts that they verify are made."""
    has_heads: bool = False
    """Whether the drafter is heads on the verifying model, one for each draft, which have weights and no KV."""

    @property
    def has_model(self) -> bool:
        """Whether the drafter has weights of its own."""
        return self.writes_kv or self.has_heads


_HEAD = Drafter(writes_kv=True, reads_next_token=True)

DRAFTERS: Mapping[str, Drafter] = {
    "ngram": Drafter(),
    "ngram_gpu": Drafter(),
    "eagle": _HEAD,
    "eagle3": _HEAD,
    "mtp": _HEAD,
    "draft_model": Drafter(writes_kv=True, rows_per_request=1),
    "suffix": Drafter(is_async=False),
    "dflash": Drafter(writes_kv=True, has_own_pass=True, num_more_slots=1),
    "dspark": Drafter(writes_kv=True, has_own_pass=True),
    "medusa": Drafter(has_heads=True, is_async=False),
}
"""vLLM's methods by name. Facts: vllm/config/vllm.py `num_lookahead_tokens`, vllm/config/speculative.py; `medusa` is
one of earlier releases."""


MAX_DRAFTS = 1024
"""Upper limit of drafts per request and step. Each position has an acceptance rate and a counter of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationGates:
    """Conditions under which a request gets drafts; None disables one. Defaults are those of the adaptive scheduler."""

    max_utilization: float | None = 0.8
    """Drafts need less of the engine in use than this share."""
    min_slack_us: Micros | None = 50_000
    """Drafts need more time to the deadline than this."""
    min_priority: int | None = 3
    """Drafts need at least this priority value, so urgent requests get none."""
    min_tokens_left: int | None = None
    """Drafts need at least this many tokens to come."""

    def __post_init__(self) -> None:
        for name in ("max_utilization", "min_slack_us", "min_tokens_left"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise EngineError(f"{name} must be at least 0, got {value}")

    def allows_drafts(self, priority: int, slack_us: Micros, num_tokens_left: int, utilization: float) -> bool:
        """Whether a request gets drafts for its next step."""
        return (
            (self.max_utilization is None or utilization < self.max_utilization)
            and (self.min_slack_us is None or slack_us > self.min_slack_us)
            and (self.min_priority is None or priority >= self.min_priority)
            and (self.min_tokens_left is None or num_tokens_left >= self.min_tokens_left)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Settings of speculative decoding. Raises EngineError for values out of bounds.

    `acceptance_rates` has for each position the chance that a draft is accepted when all before it were.
    """

    method: str
    num_tokens: int
    """Drafts per request and step."""
    acceptance_rates: tuple[float, ...]
    seed: int = 0
    draft_time_us: Micros = 0
    """Time that drafting adds to each step that samples."""
    parallel_drafting: bool = False
    """All drafts come from one pass, for which each of them takes a row of the batch."""
    hashes_next_token: bool = True
    """For a drafter that reads the next token: name blocks by it, too. Otherwise the last block of a hit is
    computed."""
    keeps_last_hit_block: bool = False
    """Share blocks as without drafts, with neither of the two measures of `hashes_next_token`."""
    gates: SpeculationGates | None = None
    """Conditions of drafts; None drafts for every request."""
    draft_cost: float | None = None
    """Time of drafting as a share of the step, which `draft_time_us` replaces; None is 0."""
    model: str = ""
    """Name or folder of the model that drafts; none for methods without one and where the model itself drafts."""

    def __post_init__(self) -> None:
        if self.method not in DRAFTERS:
            raise EngineError(f"method must be one of {', '.join(DRAFTERS)}, got {self.method!r}")
        if not 1 <= self.num_tokens <= MAX_DRAFTS:
            raise EngineError(f"num_tokens must be from 1 to {MAX_DRAFTS}, got {self.num_tokens}")
        if self.parallel_drafting and not DRAFTERS[self.method].writes_kv:
            raise EngineError(f"parallel_drafting needs a drafter with a KV cache, and {self.method} has none")
        if len(self.acceptance_rates) != self.num_tokens:
            raise EngineError(f"there must be {self.num_tokens} acceptance rates, got {len(self.acceptance_rates)}")
        for rate in self.acceptance_rates:
            if not 0 <= rate <= 1:
                raise EngineError(f"an acceptance rate must be at least 0 and at most 1, got {rate}")
        if self.draft_cost is not None and not 0 <= self.draft_cost <= 1:
            raise EngineError(f"draft_cost must be at least 0 and at most 1, got {self.draft_cost}")

    @property
    def expected_accepted_tokens(self) -> float:
        """Mean number of drafts before the first miss."""
        chance, expected = 1.0, 0.0
        for rate in self.acceptance_rates:
            chance *= rate
            expected += chance
        return expected

    @property
    def theoretical_speedup(self) -> float:
        """The published estimate (1 + K p) / (1 + a): all drafts are judged alike, and drafting costs a of a step."""
        return (1 + sum(self.acceptance_rates)) / (1 + (self.draft_cost or 0.0))

    def drafting_us(self, step_us: Micros) -> Micros:
        """Return the time that drafting adds to a step of `step_us`."""
        return self.draft_time_us or round((self.draft_cost or 0.0) * step_us)

    @property
    def num_lookahead_tokens(self) -> int:
        """Slots allocated beyond the tokens of a step."""
        drafter = DRAFTERS[self.method]
        return self.num_tokens + drafter.num_more_slots if drafter.writes_kv else 0

    @property
    def rows_per_request(self) -> int:
        """Tokens that the drafter takes out of a step's budget for each request in it."""
        drafter = DRAFTERS[self.method]
        adds_rows = self.parallel_drafting and not drafter.has_own_pass
        return drafter.rows_per_request + (self.num_tokens - 1 if adds_rows else 0)

    @property
    def reads_ahead(self) -> bool:
        """Whether the drafter reads hidden states of the model, each with the token after it."""
        drafter = DRAFTERS[self.method]
        return drafter.reads_next_token or drafter.has_own_pass

    @property
    def skips_unused_drafts(self) -> bool:
        """Whether nothing is drafted after a step whose requests cannot use drafts, as vLLM's newer model runner does
        with drafters that have a forward pass."""
        drafter = DRAFTERS[self.method]
        return drafter.writes_kv and (drafter.has_own_pass or not self.parallel_drafting)

    @property
    def num_hash_lookahead_tokens(self) -> int:
        """Tokens after a block that its name depends on."""
        hashes = self.hashes_next_token and not self.keeps_last_hit_block
        return int(DRAFTERS[self.method].reads_next_token and hashes)

    @property
    def drops_last_hit_block(self) -> bool:
        """Whether the last block found in the cache is computed anew."""
        return DRAFTERS[self.method].reads_next_token and not self.hashes_next_token and not self.keeps_last_hit_block


class AcceptanceSampler:
    """The number of drafts that each request accepts, drawn from the seed alone.

    Each token of each request has one draw, so when and beside which requests it is computed changes nothing.
    """

    def __init__(self, speculation: Speculation) -> None:
        self._seed = splitmix64(speculation.seed)
        self._limits = [int(rate * DRAW_RANGE) for rate in speculation.acceptance_rates]

    def num_accepted(self, request_number: int, num_output_tokens: int, num_drafts: int) -> int:
        """Return how many of the drafts after the first `num_output_tokens` output tokens come before the first
        miss."""
        request = splitmix64(self._seed + request_number)
        for position in range(num_drafts):
            if splitmix64(request + num_output_tokens + position) >= self._limits[position]:
                return position
        return num_drafts

"""Speculative decoding: number and acceptance of drafted tokens, and vLLM's `--speculative-config`."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, Protocol

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.draws import DRAW_RANGE, splitmix64
from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros
from blis_sim.options import OptionError
from blis_sim.options.option import load_json

# Speculative decoding: number of drafted tokens, reservations of a drafter, and acceptance of drafts.


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """Reservations of vLLM for one way of drafting. K is the number of drafts."""

    writes_kv: bool = False
    """Whether the drafter has KV of its own for the drafts, so that each allocation includes K slots more."""
    reads_next_token: bool = False
    """Whether the drafter's KV of a token depends on the token after it. A block is then shared only when that token is
    the same, too."""
    reads_hidden_states: bool = False
    """Whether it drafts from the model's hidden states: vLLM then keeps chunks of local attention like whole contexts.
    Facts: vllm/config/speculative.py `use_eagle`, vllm/config/vllm.py."""
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


_HEAD = Drafter(writes_kv=True, reads_next_token=True, reads_hidden_states=True)

DRAFTERS: Mapping[str, Drafter] = {
    "ngram": Drafter(),
    "ngram_gpu": Drafter(),
    "eagle": _HEAD,
    "eagle3": _HEAD,
    "mtp": _HEAD,
    "draft_model": Drafter(writes_kv=True, rows_per_request=1),
    "suffix": Drafter(is_async=False),
    "dflash": Drafter(writes_kv=True, reads_hidden_states=True, has_own_pass=True, num_more_slots=1),
    "dspark": Drafter(writes_kv=True, reads_hidden_states=True, has_own_pass=True),
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


class DraftingTimes(Protocol):
    """How long it takes to draft."""

    def drafting_us(self, shape: BatchShape, num_sampling: int) -> Micros:
        """Return the time that drafting for `num_sampling` requests adds to a step."""
        ...


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
    acceptance_source: str = field(default="", compare=False)
    """Origin of the acceptance rates where they are not set; empty where they are."""
    draft_time_us: Micros | None = None
    """Time that drafting adds to each step that samples; None leaves it to `draft_cost` and `times`."""
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
    """Time of drafting as a share of the step, which a `draft_time_us` above 0 replaces."""
    times: DraftingTimes | None = None
    """Time of drafting by method, where neither `draft_time_us` nor `draft_cost` is set; None drafts for free."""
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

    @property
    def has_set_time(self) -> bool:
        """Whether the time of drafting was set."""
        return self.draft_time_us is not None or self.draft_cost is not None

    def set_drafting_us(self, step_us: Micros) -> Micros:
        """Return the time that drafting adds, as set, to a step of `step_us`."""
        return self.draft_time_us or round((self.draft_cost or 0.0) * step_us)

    def drafting_us(self, step_us: Micros, shape: BatchShape, num_sampling: int) -> Micros:
        """Return the time that drafting for `num_sampling` requests adds to a step of `step_us`."""
        if self.times is not None and not self.has_set_time:
            return self.times.drafting_us(shape, num_sampling)
        return self.set_drafting_us(step_us) if num_sampling else 0

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

    Each token of each request has one draw, so when and beside which requests it is computed changes nothing. A request
    is known by the length of its prompt and the number of earlier ones of that length. So a replay of a recorded
    server repeats the server's draws, whatever requests of other lengths only the server received. Requests for one
    token, by which clients count tokens, draft nothing and are not counted.
    """

    def __init__(self, speculation: Speculation) -> None:
        self._seed = splitmix64(speculation.seed)
        self._limits = [int(rate * DRAW_RANGE) for rate in speculation.acceptance_rates]
        self._num_arrived: dict[int, int] = {}
        """Requests so far by the length of their prompts."""

    def next_number(self, input_tokens: int) -> int:
        """Return the number of an arriving request, which its draws depend on."""
        number = self._num_arrived.get(input_tokens, 0)
        self._num_arrived[input_tokens] = number + 1
        return splitmix64(input_tokens) ^ number

    def num_accepted(self, request_number: int, num_output_tokens: int, num_drafts: int) -> int:
        """Return how many of the drafts after the first `num_output_tokens` output tokens come before the first
        miss."""
        request = splitmix64(self._seed + request_number)
        for position in range(num_drafts):
            if splitmix64(request + num_output_tokens + position) >= self._limits[position]:
                return position
        return num_drafts


# Acceptance of drafts as published, by method and place.


class PublishedAcceptance(NamedTuple):
    """Chances that a draft is accepted when those before it were; places beyond the last are like it."""

    rates: tuple[float, ...]
    source: str

    def rates_of(self, num_tokens: int) -> tuple[float, ...]:
        """Return the chances of so many places."""
        return (*self.rates, *(self.rates[-1:] * num_tokens))[:num_tokens]


_REPEATED = PublishedAcceptance((0.7,), "assumed: it depends on how much an answer repeats of its prompt")

PUBLISHED: Mapping[str, PublishedAcceptance] = {
    "ngram": _REPEATED,
    "ngram_gpu": _REPEATED,
    "suffix": _REPEATED,
    "eagle": PublishedAcceptance(
        (0.73, 0.51, 0.51, 0.53, 0.4, 0.5), "of Llama-3.1-8B on MT-Bench: vLLM's issue 20780, tokens a step by drafts"
    ),
    "eagle3": PublishedAcceptance(
        (0.7, 0.68, 0.61), "the mean of three models on MT-Bench: vLLM's tests/v1/spec_decode/test_acceptance_length.py"
    ),
    "mtp": PublishedAcceptance(
        (0.85, 0.68), "the first of DeepSeek-V3: its report; the others of Gemma 4 on MT-Bench: vLLM's tests of mtp"
    ),
    "draft_model": PublishedAcceptance(
        (0.78,), "of Qwen3-1.7B with Qwen3-0.6B on InstructCoder: vLLM's tests of draft models"
    ),
    "dflash": PublishedAcceptance((0.77,), "of Qwen3-8B on MT-Bench, 4.24 tokens a step: arXiv 2602.06036"),
    "dspark": PublishedAcceptance((0.79,), "of Qwen3-4B on GSM8K, 3.99 tokens a step: vLLM's tests of dspark"),
    "medusa": PublishedAcceptance((0.6,), "of the first head of Vicuna: Medusa's announcement, taken for all heads"),
}
"""Values of `blis_sim.engine.speculation.DRAFTERS`'s methods. Chances up to a place were divided by those before it."""

# vLLM's `--speculative-config`, read into the engine's settings of speculative decoding.
#
# Facts: vllm/config/speculative.py, `SpeculativeConfig`.

FLAG = "--speculative-config"
RATE_FLAG = "--speculative-acceptance-rate"
REJECTION_SAMPLE_METHODS = ("standard", "synthetic", "block", "fly")

_FIELDS = (
    "method", "model", "num_speculative_tokens", "parallel_drafting", "disable_eagle_block_drop",
    "disable_lookahead_block_hashes", "rejection_sample_method", "synthetic_acceptance_rates",
    "synthetic_acceptance_length", "gates", "draft_cost",
)  # fmt: skip
_WITHOUT_EFFECT = (
    "prompt_lookup_max", "prompt_lookup_min", "draft_tensor_parallel_size", "quantization", "revision",
    "code_revision", "moe_backend", "attention_backend", "kv_cache_dtype", "enforce_eager", "draft_sample_method",
    "draft_load_config", "draft_lm_head_quantization", "use_local_argmax_reduction", "use_heterogeneous_vocab",
    "disable_padded_drafter_batch", "index_share_for_mtp_iteration", "fly_window_size", "fly_entropy_threshold",
    "fly_entropy_top_k", "suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob",
)  # fmt: skip
"""Fields for the way of making drafts. Their effect is in the acceptance and the time of drafting."""
_ALLOWED = tuple(sorted((*_FIELDS, *_WITHOUT_EFFECT)))


_SUFFIX_TREE_DEPTH = 24
_LARGEST_GATE = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationFlags:
    """Flags of speculative decoding."""

    config: str = ""
    """JSON, as vLLM takes it. The next three are short for fields of it."""
    method: str = ""
    model: str = ""
    num_tokens: int | None = None
    acceptance_rates: tuple[float, ...] = ()
    """One for all positions, or one for each; empty: those of `config`, else those published for the method."""
    draft_time_us: int | None = None
    seed: int = 0

    @property
    def fields(self) -> dict[str, tuple[str, str | int | None]]:
        """The flags that are short for fields: name of the field, value."""
        return {
            "--spec-method": ("method", self.method or None),
            "--spec-model": ("model", self.model or None),
            "--spec-tokens": ("num_speculative_tokens", self.num_tokens),
        }


def parse_speculation(flags: SpeculationFlags) -> Speculation | None:
    """Return the settings of the flags; None without drafts.

    Raises OptionError for settings that vLLM refuses and for settings that are not simulated.
    """
    given = _object(flags.config) if flags.config else {}
    for flag, (name, value) in flags.fields.items():
        if value is not None:
            if name in given:
                raise OptionError(f"{flag} and {name} in {FLAG} cannot be used together")
            given[name] = value
    if not given and not flags.config:
        _check_nothing_else(flags)
        return None
    fields = _Fields(given)
    method = _method(fields)
    num_tokens = fields.number_of_tokens(method)
    _check_lookup(method, fields)
    parallel = fields.flag("parallel_drafting")
    if parallel and not DRAFTERS[method].writes_kv:
        refuse(f"parallel_drafting is for drafters with a KV cache, and {method} has none")
    rates, source = _acceptance_rates(fields, flags, method, num_tokens)
    return Speculation(
        method=method,
        num_tokens=num_tokens,
        model=fields.text("model") if DRAFTERS[method].has_model and method != "mtp" else "",
        acceptance_rates=rates,
        acceptance_source=source,
        seed=flags.seed,
        draft_time_us=flags.draft_time_us,
        parallel_drafting=parallel,
        hashes_next_token=not fields.flag("disable_lookahead_block_hashes"),
        keeps_last_hit_block=fields.flag("disable_eagle_block_drop"),
        gates=_gates(fields, num_tokens),
        draft_cost=fields.of_type(
            "draft_cost", "a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1
        ),
    )


def _check_nothing_else(flags: SpeculationFlags) -> None:
    others = {
        RATE_FLAG: flags.acceptance_rates,
        "--speculative-draft-time": flags.draft_time_us is not None,
        "--speculative-seed": flags.seed,
    }
    for flag, value in others.items():
        if value:
            raise OptionError(f"{flag} needs {FLAG}")


def refuse(problem: str) -> NoReturn:
    raise OptionError(f"{FLAG}: {problem}")


def _object(text: str) -> dict[str, Any]:
    try:
        found = load_json(text)
    except ValueError as error:
        refuse(f"not JSON: {error}")
    if not isinstance(found, dict):
        refuse(f"must be a JSON object, got {text}")
    return {str(key).replace("-", "_"): value for key, value in found.items()}


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of the JSON object, each of its type."""

    values: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name in self.values:
            if name not in _ALLOWED:
                refuse(f"{name} is unknown or not simulated, allowed are {', '.join(_ALLOWED)}")

    def of_type(self, name: str, what: str, fits: Callable[[Any], bool]) -> Any:
        """The field's value, None when it is absent or null."""
        value = self.values.get(name)
        if value is not None and not fits(value):
            refuse(f"{name} must be {what}, got {json.dumps(value)}")
        return value

    def text(self, name: str) -> str:
        return self.of_type(name, "a string", lambda value: isinstance(value, str)) or ""

    def flag(self, name: str) -> bool:
        return bool(self.of_type(name, "true or false", lambda value: isinstance(value, bool)))

    def number_of_tokens(self, method: str) -> int:
        """Return the drafts of a step; for suffixes vLLM takes the depth of their trees where no number is given."""
        allowed = f"a whole number from 1 to {MAX_DRAFTS}"
        count: int | None = self.of_type("num_speculative_tokens", allowed, _is_number_of_drafts)
        if count is None and method == "suffix":
            count = self.of_type("suffix_decoding_max_tree_depth", allowed, _is_number_of_drafts) or _SUFFIX_TREE_DEPTH
        return count if count is not None else refuse("num_speculative_tokens must be given")


_GATES = ("max_utilization", "min_slack_ms", "min_priority", "min_tokens_left")


def _gates(fields: _Fields, num_tokens: int) -> SpeculationGates | None:
    """The conditions of drafts; a condition that is not given has the adaptive scheduler's value, and null is none."""
    given = fields.of_type("gates", "a JSON object", lambda value: isinstance(value, dict))
    if given is None:
        return None
    for name, value in given.items():
        if name not in _GATES:
            refuse(f"gates has the keys {', '.join(_GATES)}, got {name}")
        is_whole = name in ("min_priority", "min_tokens_left")
        fits = value is None or (_is_number(value) and (not is_whole or isinstance(value, int)))
        if not fits or (name != "min_priority" and value is not None and not 0 <= value <= _LARGEST_GATE):
            kind = "whole number" if is_whole else "number"
            refuse(f"{name} of gates must be a {kind} from 0, or null, got {json.dumps(value)}")
    slack_ms = given.get("min_slack_ms", 50)
    return SpeculationGates(
        max_utilization=given.get("max_utilization", 0.8),
        min_slack_us=None if slack_ms is None else int(slack_ms * 1000),
        min_priority=given.get("min_priority", 3),
        min_tokens_left=given.get("min_tokens_left", num_tokens),
    )


def _method(fields: _Fields) -> str:
    """Return vLLM's method: the given one, or the one that the name of the drafting model implies."""
    method, model = fields.text("method"), fields.text("model")
    if method.endswith("_mtp"):
        method = "mtp"  # vLLM's older names, one for each family of models
    method = method.strip("[]") or _method_of_model(model)
    if method not in DRAFTERS:
        refuse(f"method must be one of {', '.join(DRAFTERS)}, got {method!r}")
    if DRAFTERS[method].has_model and method != "mtp" and not model:
        refuse(f"method {method} needs a model")
    return method


def _method_of_model(model: str) -> str:
    name = model.lower()
    if name in ("ngram", "[ngram]"):
        return "ngram"
    known = {"eagle-": "eagle", "eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark", "medusa": "medusa"}
    return next((method for part, method in known.items() if part in name), "draft_model" if model else "")


def _check_lookup(method: str, fields: _Fields) -> None:
    """Check the lengths of n-grams that are looked up; a missing one is as long as the other."""
    given = {name: fields.values.get(name) for name in ("prompt_lookup_min", "prompt_lookup_max")}
    for name, value in given.items():
        if value is not None and (type(value) is not int or value < 1):
            refuse(f"{name} must be an integer of at least 1, got {value!r}")
    least, most = given.values()
    if method == "ngram" and least is not None and most is not None and least > most:
        refuse(f"prompt_lookup_min={least} must be <= prompt_lookup_max={most}")


def _acceptance_rates(
    fields: _Fields, flags: SpeculationFlags, method: str, num_tokens: int
) -> tuple[tuple[float, ...], str]:
    """Return the chance of each position to be accepted, given that those before it were, and where it is published."""
    sampling = fields.text("rejection_sample_method") or "standard"
    if sampling not in REJECTION_SAMPLE_METHODS:
        refuse(f"rejection_sample_method must be one of {', '.join(REJECTION_SAMPLE_METHODS)}, got {sampling!r}")
    rates = fields.of_type("synthetic_acceptance_rates", "a list of numbers", _is_list_of_numbers)
    length = fields.of_type("synthetic_acceptance_length", "a number", _is_number)
    if sampling != "synthetic":
        if rates is not None or length is not None:
            refuse("synthetic_acceptance_rates and _length need rejection_sample_method synthetic")
        if flags.acceptance_rates:
            return _spread(flags.acceptance_rates, num_tokens), ""
        return PUBLISHED[method].rates_of(num_tokens), PUBLISHED[method].source
    if flags.acceptance_rates:
        raise OptionError(f"{RATE_FLAG} and the synthetic acceptance of {FLAG} cannot be used together")
    if (rates is None) == (length is None):
        refuse("synthetic needs either synthetic_acceptance_rates or synthetic_acceptance_length")
    return _conditional(rates if length is None else _rates_of_length(length, num_tokens), num_tokens), ""


def _spread(rates: tuple[float, ...], num_tokens: int) -> tuple[float, ...]:
    if len(rates) == 1:
        return rates * num_tokens
    if len(rates) != num_tokens:
        raise OptionError(f"{RATE_FLAG} must have one value or {num_tokens}, one per drafted token, got {len(rates)}")
    return rates


def _rates_of_length(length: float, num_tokens: int) -> list[float]:
    """Chances that the first n drafts are all accepted, such that a step brings `length` tokens with least variance."""
    if not 1 <= length <= num_tokens + 1:
        refuse(f"synthetic_acceptance_length must be at least 1 and at most {num_tokens + 1}, got {length}")
    return [min(1.0, max(0.0, length - 1 - position)) for position in range(num_tokens)]


def _conditional(rates: list[float], num_tokens: int) -> tuple[float, ...]:
    """From chances that the first n are all accepted to the chance of each when those before it are."""
    if len(rates) != num_tokens:
        refuse(f"synthetic_acceptance_rates must have {num_tokens} values, got {len(rates)}")
    if any(not 0 <= rate <= 1 for rate in rates):
        refuse(f"synthetic_acceptance_rates must each be at least 0 and at most 1, got {rates}")
    if sorted(rates, reverse=True) != list(rates):
        refuse(f"synthetic_acceptance_rates must not increase, got {rates}")
    before = [1.0, *rates]
    return tuple(rate / above if above else 0.0 for rate, above in zip(rates, before, strict=False))


def _is_number_of_drafts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_DRAFTS


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_list_of_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))

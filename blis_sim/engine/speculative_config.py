"""vLLM's `--speculative-config`, read into the engine's settings of speculative decoding.

Facts: vllm/config/speculative.py, `SpeculativeConfig`.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from blis_sim.engine.speculation import DRAFTERS, MAX_DRAFTS, Speculation, SpeculationGates
from blis_sim.options import OptionError
from blis_sim.options.text import load_json

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
    """One for all positions, or one for each; empty: those of `config`, else the default, which is next."""
    default_acceptance_rate: float
    draft_time_us: int = 0
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
    return Speculation(
        method=method,
        num_tokens=num_tokens,
        model=fields.text("model") if DRAFTERS[method].has_model and method != "mtp" else "",
        acceptance_rates=_acceptance_rates(fields, flags, num_tokens),
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
        "--speculative-draft-time": flags.draft_time_us,
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


def _acceptance_rates(fields: _Fields, flags: SpeculationFlags, num_tokens: int) -> tuple[float, ...]:
    """The chance of each position to be accepted, given that those before it were."""
    sampling = fields.text("rejection_sample_method") or "standard"
    if sampling not in REJECTION_SAMPLE_METHODS:
        refuse(f"rejection_sample_method must be one of {', '.join(REJECTION_SAMPLE_METHODS)}, got {sampling!r}")
    rates = fields.of_type("synthetic_acceptance_rates", "a list of numbers", _is_list_of_numbers)
    length = fields.of_type("synthetic_acceptance_length", "a number", _is_number)
    if sampling != "synthetic":
        if rates is not None or length is not None:
            refuse("synthetic_acceptance_rates and _length need rejection_sample_method synthetic")
        return _spread(flags.acceptance_rates or (flags.default_acceptance_rate,), num_tokens)
    if flags.acceptance_rates:
        raise OptionError(f"{RATE_FLAG} and the synthetic acceptance of {FLAG} cannot be used together")
    if (rates is None) == (length is None):
        refuse("synthetic needs either synthetic_acceptance_rates or synthetic_acceptance_length")
    return _conditional(rates if length is None else _rates_of_length(length, num_tokens), num_tokens)


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

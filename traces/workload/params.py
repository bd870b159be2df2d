"""Bounds of the parameters of length distributions."""

from collections.abc import Mapping
from typing import TypeAlias

from blis_sim.options.limits import MOST_TOKENS
from traces.workload.spec import Distribution

Params: TypeAlias = Mapping[str, float]

REQUIRED_PARAMS = {
    "gaussian": ("mean", "std_dev", "min", "max"),
    "exponential": ("mean",),
    "lognormal": ("mu", "sigma"),
    "pareto_lognormal": ("alpha", "xm", "mu", "sigma", "mix_weight"),
    "constant": ("value",),
}
OPTIONAL_PARAMS = {"exponential": ("min", "max"), "lognormal": ("min", "max")}
_NOT_NEGATIVE = ("std_dev", "sigma")
_EXPONENTS = ("mu", "sigma")
_MOST_EXPONENT = 100
_MOST_DIGITS = 20
_POSITIVE = ("alpha", "xm")


def problem_of(distribution: Distribution) -> str | None:
    """Return the error in the parameters of a distribution: what is expected, what was found; None if they are
    valid."""
    if distribution.type == "empirical":
        return _problem_of_weights(distribution.params)
    required = REQUIRED_PARAMS[distribution.type]
    known = required + OPTIONAL_PARAMS.get(distribution.type, ())
    params = distribution.params
    for name in params:
        if name not in known:
            return f"expected {', '.join(known)} with {distribution.type}, got {name}"
    for name in required:
        if name not in params:
            return f"expected {name} with {distribution.type}, but the key is missing"
    return _problem_of_values(distribution.type, params)


def _problem_of_values(kind: str, params: Params) -> str | None:
    for name, value in params.items():
        most = _MOST_EXPONENT if name in _EXPONENTS else MOST_TOKENS
        if value > most:
            return f"expected {name} to be at most {most:g}, got {value:g}"
        if name in _POSITIVE and value <= 0:
            return f"expected {name} to be above 0, got {value:g}"
        if value < 0 and (name in _NOT_NEGATIVE or (kind, name) == ("exponential", "mean")):
            return f"expected {name} to be at least 0, got {value:g}"
    if not 0 <= params.get("mix_weight", 0) <= 1:
        return f"expected mix_weight between 0 and 1, got {params['mix_weight']:g}"
    low, high = params.get("min", 0), params.get("max", 0)
    if kind != "gaussian" and high and low > high:
        return f"expected min to be at most max ({high:g}), got {low:g}"
    return None


def _problem_of_weights(params: Params) -> str | None:
    for name in params:
        if not name.isdecimal() or not name.isascii() or len(name) > _MOST_DIGITS or name != str(int(name)):
            return f"expected whole numbers of tokens as keys, got {name!r}"
        if int(name) > MOST_TOKENS:
            return f"expected at most {MOST_TOKENS} tokens, got {name}"
    if any(weight < 0 for weight in params.values()):
        return "expected weights of at least 0, got one below"
    if not any(weight > 0 for weight in params.values()):
        return "expected tokens with weights, at least one of them above 0, got none"
    return None

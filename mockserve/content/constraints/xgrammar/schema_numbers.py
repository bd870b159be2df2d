"""Numeric keywords of a JSON schema as xgrammar reads them: integers have 64 bits."""

from collections.abc import Mapping
from typing import Any

from mockserve.content.constraints.xgrammar.features import XgrammarError

FILE = "json_schema_converter.cc"
PLACE = f"{FILE}:4944"
MIN_INT = -(2**63)
MAX_INT = 2**63 - 1
MAX_MULTIPLE_OF = 1024
MAX_RANGE_WIDTH = 10_000


def whole(value: Any) -> int | None:
    """An integer of 64 bits as it is; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and MIN_INT <= value <= MAX_INT else None


def check_integer(schema: Mapping[str, Any]) -> None:
    """Raise XgrammarError for bounds of an integer that are none or exclude each other."""
    step = _multiple_of(schema)
    bounds: dict[str, int] = {}
    for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if name in schema:
            bounds[name] = _integer_bound(schema[name])
        if bounds.get("exclusiveMinimum") == MAX_INT:
            raise XgrammarError("exclusiveMinimum would cause integer overflow", PLACE)
    if bounds.get("exclusiveMaximum") == MIN_INT:
        raise XgrammarError("exclusiveMaximum would cause integer underflow", PLACE)
    low = max(bounds.get("minimum", MIN_INT), bounds.get("exclusiveMinimum", MIN_INT - 1) + 1)
    high = min(bounds.get("maximum", MAX_INT), bounds.get("exclusiveMaximum", MAX_INT + 1) - 1)
    if low > high:
        raise XgrammarError("Invalid range: minimum greater than maximum", PLACE)
    is_bounded = low > MIN_INT and high < MAX_INT
    if step is not None and is_bounded and high - low <= MAX_RANGE_WIDTH and -(-low // step) * step > high:
        raise XgrammarError("range contains no multipleOf value", PLACE)


def check_number(schema: Mapping[str, Any]) -> None:
    """Raise XgrammarError for bounds of a number that are none or exclude each other."""
    if "multipleOf" in schema and _number(schema["multipleOf"]) <= 0:
        raise XgrammarError("multipleOf must be greater than 0", PLACE)
    bounds = {
        name: _number(schema[name])
        for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        if name in schema
    }
    for low in ("minimum", "exclusiveMinimum"):
        for high in ("maximum", "exclusiveMaximum"):
            if low not in bounds or high not in bounds:
                continue
            is_closed = (low, high) == ("minimum", "maximum")
            if bounds[low] > bounds[high] or (bounds[low] == bounds[high] and not is_closed):
                raise XgrammarError("Invalid range: empty range", PLACE)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise XgrammarError("Value must be a number", PLACE)
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _multiple_of(schema: Mapping[str, Any]) -> int | None:
    """The step between integers; None where xgrammar ignores it."""
    if "multipleOf" not in schema:
        return None
    step = _number(schema["multipleOf"])
    if step <= 0:
        raise XgrammarError("multipleOf must be greater than 0", PLACE)
    return int(step) if step.is_integer() and step <= MAX_MULTIPLE_OF else None


def _integer_bound(value: Any) -> int:
    found = whole(value)
    if found is not None:
        return found
    number = _number(value)
    if not number.is_integer() and abs(number) != float("inf"):
        raise XgrammarError("Integer constraint must be a whole number", PLACE)
    if abs(number) == 2.0**63:
        limit, place = ("minimum", 924) if number < 0 else ("maximum", 929)
        reason = f"Integer exceeds {limit} limit due to precision loss at 64-bit boundary"
        raise XgrammarError(f"Check failed: (false) is false: {reason}", f"{FILE}:{place}")
    if number > MAX_INT:
        reason = "Check failed: (val <= MAX_INT64_AS_DOUBLE) is false: Integer exceeds maximum limit"
        raise XgrammarError(reason, f"{FILE}:936")
    if number < MIN_INT:
        reason = "Check failed: (val >= MIN_INT64_AS_DOUBLE) is false: Integer exceeds minimum limit"
        raise XgrammarError(reason, f"{FILE}:937")
    return int(number)

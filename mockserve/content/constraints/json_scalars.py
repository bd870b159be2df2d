"""Strings and numbers that a JSON schema accepts."""

import math
from collections.abc import Callable, Mapping
from random import Random
from typing import Any
from uuid import UUID

from mockserve.content.constraints.expressions import Grammar, matching_text
from mockserve.content.constraints.json_schema import SchemaError
from mockserve.content.constraints.regex_parser import parse_regex
from mockserve.content.tokens.words import WORDS

MOST_TRIES = 50
PATTERN_ROOM_CHARS = 24
MOST_CHARS = 100_000
MAX_WIDTH = 1_000_000
"""A wider range between bounds is narrowed to the usual one."""


def make_string(schema: Mapping[str, Any], random: Random, generosity: int) -> str:
    """A string of the pattern, format and length asked for; a few words where nothing is.

    Raises SchemaError when there is none, RegexError for a pattern that is none.
    """
    least, most = _length_bounds(schema)
    if "pattern" in schema:
        return _matching_string(str(schema["pattern"]), random, least, most, generosity)
    if "format" in schema:
        return make_formatted(schema["format"], random)
    if generosity == 0:
        return ("x" * least) if least else ""
    text = " ".join(random.choices(WORDS, k=random.randint(1, 1 + 2 * generosity)))
    while len(text) < least:
        text += f" {random.choice(WORDS)}"
    if most is not None and len(text) > most:
        text = text[:most].rstrip()
        text += "x" * (least - len(text))
    return text


def make_number(schema: Mapping[str, Any], random: Random, usual: tuple[float, float], integer: bool) -> float:
    """A number within the bounds, or within the `usual` ones where there are none; with few digits if they allow it."""
    low, high = _number_bounds(schema, usual, integer)
    step = schema.get("multipleOf")
    if isinstance(step, int | float) and step > 0:
        first, last = math.ceil(low / step), math.floor(high / step)
        if first > last:
            raise SchemaError(f"Unsatisfiable schema: no multiple of {step} between {low} and {high}")
        count = random.randint(first, last)
        # Steps such as 0.1 are decimal fractions, so their multiples are rounded to as many digits.
        return count * step if isinstance(step, int) else round(count * step, 10)
    if integer:
        return random.randint(math.ceil(low), math.floor(high))
    for digits in (1, 2, 4, 8):
        value = round(random.uniform(low, high), digits)
        if _is_within(value, schema):
            return value
    return (low + high) / 2


def make_formatted(name: Any, random: Random) -> str:
    """A string of a named format. Raises SchemaError for a name that vLLM does not know."""
    check_format(name)
    return _FORMATS[name](random)


def check_format(name: Any) -> None:
    """Raise SchemaError for a name that vLLM does not know."""
    if name not in _FORMATS:
        raise SchemaError(f"Unknown format: {name}")


def _matching_string(pattern: str, random: Random, least: int, most: int | None, generosity: int) -> str:
    grammar = Grammar(parse_regex(pattern))
    if not grammar.can_end:
        raise SchemaError(f"Unsatisfiable schema: {pattern} matches only texts that are too long")
    room = max(least, PATTERN_ROOM_CHARS * generosity)
    for attempt in range(MOST_TRIES):
        # Between none and ample room lies a text of the right length, if there is one.
        text = matching_text(grammar, random, room if attempt == 0 else random.randint(0, max(room, most or 0) + 8))
        if least <= len(text) and (most is None or len(text) <= most):
            return text
    raise SchemaError(f"Unsatisfiable schema: no text of length {least} to {most} matches {pattern}")


def _length_bounds(schema: Mapping[str, Any]) -> tuple[int, int | None]:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if most is not None and least > most:
        raise SchemaError(f"Unsatisfiable schema: minLength ({least}) is greater than maxLength ({most})")
    if least > MOST_CHARS:
        raise SchemaError(f"minLength ({least}) is greater than {MOST_CHARS}")
    return least, most


def _number_bounds(schema: Mapping[str, Any], usual: tuple[float, float], integer: bool) -> tuple[float, float]:
    """The closed range to draw from: the schema's, else the usual one, moved where the schema has only one end."""
    lows = [schema[name] for name in ("minimum", "exclusiveMinimum") if _is_number(schema.get(name))]
    highs = [schema[name] for name in ("maximum", "exclusiveMaximum") if _is_number(schema.get(name))]
    if lows and highs and max(lows) > min(highs):
        raise SchemaError(f"Unsatisfiable schema: minimum ({max(lows)}) is greater than maximum ({min(highs)})")
    width = usual[1] - usual[0]
    low: float = max(lows) if lows else min(usual[0], min(highs) - width) if highs else usual[0]
    high: float = min(highs) if highs else max(usual[1], low + width)
    if high - low > MAX_WIDTH and max(low, usual[0]) < min(high, usual[1]):
        # Bounds as wide as those of a type of integers say nothing of what a person would expect.
        low, high = max(low, usual[0]), min(high, usual[1])
    if integer:
        low, high = math.ceil(low), math.floor(high)
        low += not _is_within(low, schema)
        high -= not _is_within(high, schema)
    if low > high or not (integer or _is_within((low + high) / 2, schema)):
        raise SchemaError(f"Unsatisfiable schema: no number between {low} and {high}")
    return low, high


def _is_within(value: float, schema: Mapping[str, Any]) -> bool:
    checks: tuple[tuple[str, Callable[[float, float], bool]], ...] = (
        ("minimum", lambda one, limit: one >= limit),
        ("maximum", lambda one, limit: one <= limit),
        ("exclusiveMinimum", lambda one, limit: one > limit),
        ("exclusiveMaximum", lambda one, limit: one < limit),
    )
    return all(check(value, schema[name]) for name, check in checks if _is_number(schema.get(name)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _date(random: Random) -> str:
    return f"20{random.randint(10, 29)}-{random.randint(1, 12):02}-{random.randint(1, 28):02}"


def _time(random: Random) -> str:
    return f"{random.randint(0, 23):02}:{random.randint(0, 59):02}:{random.randint(0, 59):02}Z"


def _word(random: Random) -> str:
    return random.choice(WORDS)


_FORMATS: dict[str, Callable[[Random], str]] = {
    "date-time": lambda random: f"{_date(random)}T{_time(random)}",
    "date": _date,
    "time": _time,
    "duration": lambda random: f"P{random.randint(1, 9)}DT{random.randint(1, 23)}H",
    "email": lambda random: f"{_word(random)}@{_word(random)}.com",
    "idn-email": lambda random: f"{_word(random)}@{_word(random)}.com",
    "hostname": lambda random: f"{_word(random)}.{_word(random)}.org",
    "idn-hostname": lambda random: f"{_word(random)}.{_word(random)}.org",
    "ipv4": lambda random: ".".join(str(random.randint(1, 254)) for _ in range(4)),
    "ipv6": lambda random: ":".join(f"{random.randint(0x1000, 0xFFFF):x}" for _ in range(8)),
    "uri": lambda random: f"https://{_word(random)}.org/{_word(random)}",
    "uri-reference": lambda random: f"/{_word(random)}/{_word(random)}",
    "uri-template": lambda random: f"/{_word(random)}/{{{_word(random)}}}",
    "iri": lambda random: f"https://{_word(random)}.org/{_word(random)}",
    "iri-reference": lambda random: f"/{_word(random)}/{_word(random)}",
    "uuid": lambda random: str(UUID(int=random.getrandbits(128), version=4)),
    "json-pointer": lambda random: f"/{_word(random)}/{random.randint(0, 9)}",
    "relative-json-pointer": lambda random: f"{random.randint(0, 3)}/{_word(random)}",
    "regex": lambda random: f"{_word(random)}+",
    "unknown": _word,
}

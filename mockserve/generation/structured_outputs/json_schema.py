"""JSON schemas: references, combinations, messages of vLLM's compiler, strings and numbers."""

import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from random import Random
from typing import Any, TypeAlias
from urllib.parse import unquote
from uuid import UUID

from mockserve.generation.structured_outputs.guided import GrammarError
from mockserve.generation.structured_outputs.patterns import pattern_text
from mockserve.generation.tokenizer import WORDS


def _random_date(random: Random) -> str:
    return f"20{random.randint(10, 29)}-{random.randint(1, 12):02}-{random.randint(1, 28):02}"


def _random_clock(random: Random) -> str:
    return f"{random.randint(0, 23):02}:{random.randint(0, 59):02}:{random.randint(0, 59):02}"


def _random_time(random: Random) -> str:
    return f"{_random_clock(random)}Z"


def _date_time(random: Random) -> str:
    return f"{_random_date(random)}T{_random_time(random)}"


def _random_word(random: Random) -> str:
    return random.choice(WORDS)


def _random_email(random: Random) -> str:
    return f"{_random_word(random)}@{_random_word(random)}.com"


def _random_host(random: Random) -> str:
    return f"{_random_word(random)}.{_random_word(random)}.org"


def _uri_reference(random: Random) -> str:
    return f"/{_random_word(random)}/{_random_word(random)}"


def _ipv4(random: Random) -> str:
    return ".".join(str(random.randint(1, 254)) for _ in range(4))


def _ipv4_network(random: Random) -> str:
    return f"10.{random.randint(0, 255)}.{random.randint(0, 255)}.0/24"


def _ipv6(random: Random) -> str:
    return ":".join(f"{random.randint(0x1000, 0xFFFF):x}" for _ in range(8))


def _random_uuid(version: int) -> Callable[[Random], str]:
    def drawn(random: Random) -> str:
        bits = random.getrandbits(128) & ~(0xF << 76 | 0x3 << 62) | version << 76 | 0x2 << 62
        return str(UUID(int=bits))

    return drawn


FORMATS: dict[str, Callable[[Random], str]] = {
    "date-time": _date_time,
    "datetime": _date_time,
    "timestamp": _date_time,
    "date-time-local": lambda random: f"{_random_date(random)}T{_random_clock(random)}",
    "date": _random_date,
    "time": _random_time,
    "time-local": _random_clock,
    "duration": lambda random: f"P{random.randint(1, 9)}DT{random.randint(1, 23)}H",
    "email": _random_email,
    "idn-email": _random_email,
    "name-email": lambda random: f"{_random_word(random).title()} <{_random_email(random)}>",
    "hostname": _random_host,
    "idn-hostname": _random_host,
    "ipv4": _ipv4,
    "ipv4interface": lambda random: f"{_ipv4(random)}/24",
    "ipv4network": _ipv4_network,
    "ipv6": _ipv6,
    "ipv6interface": lambda random: f"{_ipv6(random)}/64",
    "ipv6network": lambda random: f"fd{random.randint(0, 255):02x}:{random.randint(0x1000, 0xFFFF):x}::/32",
    **dict.fromkeys(("ip", "ipvanyaddress"), _ipv4),
    **dict.fromkeys(("cidr", "ipvanynetwork", "ipvanyinterface"), _ipv4_network),
    **dict.fromkeys(("mac", "mac-address"), lambda random: ":".join(f"{random.randint(0, 255):02x}" for _ in range(6))),
    **dict.fromkeys(("uri", "url", "iri"), lambda random: f"https://{_random_word(random)}.org/{_random_word(random)}"),
    "uri-reference": _uri_reference,
    "iri-reference": _uri_reference,
    "uri-template": lambda random: f"/{_random_word(random)}/{{{_random_word(random)}}}",
    "multi-host-uri": lambda random: (
        f"postgresql://{_random_host(random)}:5432,{_random_host(random)}:5432/{_random_word(random)}"
    ),
    **dict.fromkeys(("uuid", "guid"), _random_uuid(4)),
    **{f"uuid{version}": _random_uuid(version) for version in range(1, 9)},
    "json-pointer": lambda random: f"/{_random_word(random)}/{random.randint(0, 9)}",
    "relative-json-pointer": lambda random: f"{random.randint(0, 3)}/{_random_word(random)}",
    "json-string": lambda random: json.dumps({_random_word(random): random.randint(0, 100)}),
    "regex": lambda random: f"{_random_word(random)}+",
    **dict.fromkeys(("byte", "base64", "base64url"), lambda random: b64encode(_random_word(random).encode()).decode()),
    **dict.fromkeys(("path", "file-path"), lambda random: f"/tmp/{_random_word(random)}.txt"),
    "directory-path": lambda random: f"/tmp/{_random_word(random)}",
    **dict.fromkeys(("phone", "phone-number", "tel"), lambda random: f"+1650253{random.randint(0, 9999):04}"),
    "color": lambda random: f"#{random.getrandbits(24):06x}",
    "password": lambda random: f"{_random_word(random).title()}-{random.randint(1000, 9999)}",
    "semver": lambda random: ".".join(str(random.randint(0, 9)) for _ in range(3)),
    "char": lambda random: _random_word(random)[0],
    **{
        f"{sign}int{bits}": lambda random: str(random.randint(0, 100)) for sign in ("", "u") for bits in (8, 16, 32, 64)
    },
    "fraction": lambda random: f"{random.randint(1, 9)}/{random.randint(2, 9)}",
    **dict.fromkeys(
        ("decimal", "decimal128", "double", "float"),
        lambda random: f"{random.randint(0, 99)}.{random.randint(0, 99):02}",
    ),
}
"""How to draw a string of a format. Numbers are written as text where an API has them so, as for 64 bits."""


Schema: TypeAlias = Mapping[str, Any] | bool

TYPES = ("string", "integer", "number", "boolean", "null", "object", "array")
TYPE_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("str", "text"), "string"),
    **dict.fromkeys(("integer", "int"), "integer"),
    **dict.fromkeys(("number", "float", "double"), "number"),
    **dict.fromkeys(("boolean", "bool", "true/false"), "boolean"),
    **dict.fromkeys(("array", "list", "tuple", "set"), "array"),
    **dict.fromkeys(("object", "dict", "map"), "object"),
}
"""Words for types in prompts and in schemas that people write."""

MAX_NESTED = 64

HINTS = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "minProperties", "propertyNames"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""Keywords that imply the type of a schema without `type`."""

LOWER_BOUNDS = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER_BOUNDS = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


class SchemaError(ValueError):
    """An invalid or unsatisfiable schema."""


class ReferenceCycleError(SchemaError):
    """A reference that leads back to itself."""


def resolve_schema(
    schema: Schema, root: Schema, num_around: int = 0, on_fault: Callable[[SchemaError], object] | None = None
) -> dict[str, Any]:
    """Return the schema with references replaced by their targets and `allOf` merged in; `num_around` schemas contain
    it.

    Raises SchemaError for a reference that has no target or is circular. With `on_fault` only a circular one is
    raised; parts that cannot be merged in are reported and left out.
    """
    found = _as_mapping(schema)
    for _ in range(num_around, MAX_NESTED):
        if "$ref" in found:
            found = _with_target(found, root, on_fault)
        elif "allOf" in found:
            parts = found.pop("allOf")
            for part in _required_list(parts, "allOf"):
                try:
                    found = merge_schemas(found, resolve_schema(part, root, num_around + 1, on_fault))
                except ReferenceCycleError:
                    raise
                except SchemaError as error:
                    _report_fault(error, on_fault)
        else:
            return found
    raise ReferenceCycleError("Unsatisfiable schema: a reference that leads back to itself")


def _with_target(
    schema: Mapping[str, Any], root: Schema, on_fault: Callable[[SchemaError], object] | None
) -> dict[str, Any]:
    """Return a schema merged with the target of its reference."""
    rest = {key: value for key, value in schema.items() if key != "$ref"}
    try:
        return merge_schemas(_as_mapping(find_referenced(schema["$ref"], root)), rest)
    except SchemaError as error:
        _report_fault(error, on_fault)
        return rest


def _report_fault(error: SchemaError, on_fault: Callable[[SchemaError], object] | None) -> None:
    if on_fault is None:
        raise error
    on_fault(error)


def find_referenced(reference: Any, root: Schema) -> Schema:
    """Return the part of the document at a reference."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise SchemaError(f"Failed to resolve reference: {reference}")
    if len(reference) > 1 and reference[1] != "/":
        return _schema_of_anchor(reference[1:], root)
    found: Any = root
    for name in reference[1:].split("/")[1:]:
        key = unquote(name).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, Mapping) and key in found:
            found = found[key]
        else:
            raise SchemaError(f"Pointer '{reference[1:]}' does not exist")
    if not isinstance(found, Mapping | bool):
        raise SchemaError(f"Pointer '{reference[1:]}' is no schema")
    return found


def _schema_of_anchor(name: str, root: Schema) -> Schema:
    """Return the schema with the `$anchor` `name`."""
    pending: list[Any] = [root]
    while pending:
        found = pending.pop()
        if isinstance(found, Mapping):
            if found.get("$anchor") == name:
                return found
            pending.extend(found.values())
        elif isinstance(found, list):
            pending.extend(found)
    raise SchemaError(f"Failed to resolve reference: #{name}")


def merge_schemas(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two schemas: a value must meet both."""
    both = {**first, **second}
    if "type" in first and "type" in second:
        both["type"] = _common_type(first["type"], second["type"])
    if "properties" in first and "properties" in second:
        both["properties"] = _merged_properties(first["properties"], second["properties"])
    if "required" in first and "required" in second:
        both["required"] = list(dict.fromkeys([*first["required"], *second["required"]]))
    if "enum" in first and "enum" in second:
        both["enum"] = [each for each in first["enum"] if each in second["enum"]]
    if "allOf" in first and "allOf" in second:
        both["allOf"] = [*first["allOf"], *second["allOf"]]
    for name in LOWER_BOUNDS:
        if name in first and name in second:
            both[name] = max(first[name], second[name])
    for name in UPPER_BOUNDS:
        if name in first and name in second:
            both[name] = min(first[name], second[name])
    return both


def type_options(schema: Mapping[str, Any]) -> Sequence[str]:
    """Return the types that a value may have. Raises SchemaError for an unknown type."""
    given = schema.get("type")
    names = [given] if isinstance(given, str) else given
    if isinstance(names, list):
        for name in names:
            if name not in TYPES:
                raise SchemaError(f"Invalid type: {name}")
        if not names:
            raise SchemaError("Unsatisfiable schema: incompatible types")
        return names
    if given is not None:
        raise SchemaError("type must be a string or array")
    return _hinted_types(schema) or (TYPES if "not" in schema else ["string"])


def _hinted_types(schema: Mapping[str, Any]) -> Sequence[str]:
    return [name for name, hints in HINTS.items() if any(hint in schema for hint in hints)]


def likely_types(schema: Mapping[str, Any]) -> Sequence[str]:
    """Return the types that a schema names, also in other words such as "int", or that its keywords imply, if any."""
    given = schema.get("type")
    words = [each.lower() for each in (given if isinstance(given, list) else [given]) if isinstance(each, str)]
    known = [name for word in words if (name := TYPE_WORDS.get(word, word)) in TYPES]
    return known or _hinted_types(schema)


def options_of(schema: Mapping[str, Any]) -> list[Schema] | None:
    """Return the alternatives of `anyOf` or `oneOf`, each merged with the rest of the schema."""
    for name in ("anyOf", "oneOf"):
        if name in schema:
            rest = {key: value for key, value in schema.items() if key != name}
            options = [option for option in _required_list(schema[name], name) if option is not False]
            return [_with_alternative(rest, option) for option in options]
    return None


def _with_alternative(rest: Mapping[str, Any], option: Schema) -> Schema:
    if not rest or option is True:
        return rest if option is True else option
    # Merged only once its references are resolved: a reference stands for a whole schema.
    return {"allOf": [dict(rest), option]}


def _common_type(first: Any, second: Any) -> list[str]:
    def listed(given: Any) -> list[str]:
        return [given] if isinstance(given, str) else list(given)

    one, other = listed(first), listed(second)
    common = [each for each in one if each in other]
    if "integer" in (*one, *other) and "number" in (*one, *other) and "integer" not in common:
        common.append("integer")
    if not common:
        raise SchemaError("Unsatisfiable schema: incompatible types")
    return common


def _merged_properties(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    both = {**first, **second}
    for name in first.keys() & second.keys():
        both[name] = {"allOf": [first[name], second[name]]}
    return both


def _as_mapping(schema: Schema) -> dict[str, Any]:
    if schema is False:
        raise SchemaError("Unsatisfiable schema: schema is false")
    if not isinstance(schema, Mapping | bool):
        raise SchemaError("schema must be an object or a boolean")
    return dict(schema) if isinstance(schema, Mapping) else {}


def _required_list(value: Any, name: str) -> Iterable[Schema]:
    if not isinstance(value, list):
        raise SchemaError(f"{name} must be an array")
    if not value:
        raise SchemaError(f"Unsatisfiable schema: {name} is empty")
    return value


MOST_TRIES = 50
PATTERN_SOFT_LIMIT_CHARS = 24
MOST_CHARS = 100_000
MAX_WIDTH = 1_000_000
"""Maximum width of a range; a wider one is narrowed to the usual range."""


def make_string(schema: Mapping[str, Any], random: Random, verbosity: int, meets_assertions: bool = True) -> str:
    """Return a string of the schema's pattern, format and length; a few words if it has none of them.

    Look-around and boundaries in the pattern have no effect unless `meets_assertions`. Raises SchemaError when there is
    no string, and for an invalid pattern.
    """
    least, most = _length_bounds(schema)
    if "pattern" in schema:
        soft_limit_chars = max(least, PATTERN_SOFT_LIMIT_CHARS * verbosity)
        try:
            return pattern_text(str(schema["pattern"]), random, soft_limit_chars, least, most, meets_assertions)
        except GrammarError as error:
            raise SchemaError(f"Unsatisfiable schema: {error}") from None
    name = "base64" if schema.get("contentEncoding") in ("base64", "base64url") else schema.get("format")
    if isinstance(name, str) and name in FORMATS:
        # A length binds where a format only describes.
        drawn = (FORMATS[name](random) for _ in range(MOST_TRIES))
        fitting = next((each for each in drawn if least <= len(each) and (most is None or len(each) <= most)), None)
        if fitting is not None:
            return fitting
    if verbosity == 0:
        return ("x" * least) if least else ""
    text = " ".join(random.choices(WORDS, k=random.randint(1, 1 + 2 * verbosity)))
    while len(text) < least:
        text += f" {random.choice(WORDS)}"
    if most is not None and len(text) > most:
        text = text[:most].rstrip()
        text += "x" * (least - len(text))
    return text


def make_number(schema: Mapping[str, Any], random: Random, usual: tuple[float, float], integer: bool) -> float:
    """Return a number within the schema's bounds, else within the `usual` ones; with few digits if possible."""
    low, high = _number_bounds(schema, usual, integer)
    step = schema.get("multipleOf")
    if isinstance(step, int | float) and math.isfinite(step) and step > 0:
        if integer and not isinstance(step, int):
            step = Fraction(repr(step)).numerator  # of all multiples the integers
        first, last = math.ceil(low / step), math.floor(high / step)
        if first > last:
            raise SchemaError(f"Unsatisfiable schema: no multiple of {step} between {low} and {high}")
        return _random_multiple(step, first, last, random)
    if integer:
        return random.randint(math.ceil(low), math.floor(high))
    for digits in (1, 2, 4, 8):
        value = round(random.uniform(low, high), digits)
        if _is_within(value, schema):
            return value
    return (low + high) / 2


def _random_multiple(step: float, first: int, last: int, random: Random) -> float:
    """Return a multiple of a step, from the `first` to the `last`."""
    if isinstance(step, int):
        return random.randint(first, last) * step
    value = 0.0
    for _ in range(MOST_TRIES):
        # Steps such as 0.1 are decimal fractions, so their multiples are rounded to as many digits.
        value = round(random.randint(first, last) * step, 10)
        if (value / step).is_integer():  # which validators check, and which fails for one multiple in ten
            break
    return value


def _length_bounds(schema: Mapping[str, Any]) -> tuple[int, int | None]:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if most is not None and least > most:
        raise SchemaError(f"Unsatisfiable schema: minLength ({least}) is greater than maxLength ({most})")
    if least > MOST_CHARS:
        raise SchemaError(f"minLength ({least}) is greater than {MOST_CHARS}")
    return least, most


def _number_bounds(schema: Mapping[str, Any], usual: tuple[float, float], integer: bool) -> tuple[float, float]:
    """Return the closed range to draw from: the schema's, else the usual one, moved if the schema has only one
    bound."""
    lows = [schema[name] for name in ("minimum", "exclusiveMinimum") if _is_number(schema.get(name))]
    highs = [schema[name] for name in ("maximum", "exclusiveMaximum") if _is_number(schema.get(name))]
    if lows and highs and max(lows) > min(highs):
        raise SchemaError(f"Unsatisfiable schema: minimum ({max(lows)}) is greater than maximum ({min(highs)})")
    width = usual[1] - usual[0]
    low: float = max(lows) if lows else min(usual[0], min(highs) - width) if highs else usual[0]
    high: float = min(highs) if highs else max(usual[1], low + width)
    if high - low > MAX_WIDTH and max(low, usual[0]) < min(high, usual[1]):
        # Bounds as wide as an integer type would give implausible values.
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

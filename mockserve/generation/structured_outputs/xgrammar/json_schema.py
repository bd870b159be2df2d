"""JSON schemas with the rules of xgrammar: unknown keywords and siblings of `$ref` are ignored, integers have 64
bits."""

import json
from collections.abc import Mapping
from typing import Any

from mockserve.generation.structured_outputs.xgrammar.features import XgrammarError
from mockserve.generation.structured_outputs.xgrammar.grammars import parse_ebnf
from mockserve.generation.structured_outputs.xgrammar.regex import is_pattern, regex_to_ebnf

FILE = "json_schema_converter.cc"
PLACE = f"{FILE}:4944"
REFERENCE_PLACE = f"{FILE}:4950"
MIN_INT = -(2**63)
MAX_INT = 2**63 - 1
MAX_MULTIPLE_OF = 1024
MAX_RANGE_WIDTH = 10_000


def as_int64(value: Any) -> int | None:
    """Return an integer of 64 bits unchanged; None for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) and MIN_INT <= value <= MAX_INT else None


def check_integer(schema: Mapping[str, Any]) -> None:
    """Raise XgrammarError for bounds of an integer that are invalid or exclude each other."""
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
    """Raise XgrammarError for bounds of a number that are invalid or exclude each other."""
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
    """Return the step between integers; None where xgrammar ignores it."""
    if "multipleOf" not in schema:
        return None
    step = _number(schema["multipleOf"])
    if step <= 0:
        raise XgrammarError("multipleOf must be greater than 0", PLACE)
    return int(step) if step.is_integer() and step <= MAX_MULTIPLE_OF else None


def _integer_bound(value: Any) -> int:
    found = as_int64(value)
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


MAX_BOUND = 2**31 - 1
NOT_OF_TYPE = '"type mismatch! call is<type>() before get<type>()" && is<std::string>()'
ANNOTATIONS = frozenset(
    {"title", "default", "description", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema"}
)


def check_json_schema(schema: Any) -> None:
    """Raise XgrammarError for a schema that xgrammar cannot convert to a grammar."""
    checker = _Checker(schema)
    checker.parse(schema)
    checker.resolve_references(schema)


def child_schemas(schema: Any) -> list[Any]:
    """Return the direct subschemas that xgrammar includes in its grammar, in its order."""
    if not isinstance(schema, Mapping) or "$ref" in schema or "const" in schema or "enum" in schema:
        return []
    for name in ("anyOf", "oneOf", "allOf"):
        if name in schema:
            return list(schema[name]) if name != "allOf" or len(schema[name]) == 1 else []
    names = _types_of(schema)
    parts: list[Any] = []
    if "array" in names and schema.get("maxItems") != 0:
        parts += [*schema.get("prefixItems", []), schema.get("items", schema.get("unevaluatedItems", True))]
    if "object" in names and schema.get("maxProperties") != 0:
        parts += list(schema.get("properties", {}).values())
        parts += list(schema.get("patternProperties", {}).values())
        parts.append(schema.get("additionalProperties", schema.get("unevaluatedProperties", True)))
        if isinstance(schema.get("propertyNames"), Mapping):
            parts.append({"type": "string", **schema["propertyNames"]})
    return [each for each in parts if isinstance(each, Mapping)]


def _types_of(schema: Mapping[str, Any]) -> list[str]:
    """Return the types that determine which keywords are read."""
    given = schema.get("type")
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given:
        return [each for each in given if isinstance(each, str)]
    if any(name in schema for name in ("properties", "additionalProperties", "unevaluatedProperties")):
        return ["object"]
    return ["array"] if any(name in schema for name in ("items", "prefixItems", "unevaluatedItems")) else []


class _Checker:
    """Checks the schemas of one document."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._parsed: set[str] = set()

    def parse(self, schema: Any, default_type: str | None = None) -> None:
        """Raise XgrammarError for the first problem in xgrammar's order; references are not followed."""
        key = _cache_key(schema)
        if key in self._parsed:
            return
        if schema is False:
            raise _error("Schema 'false' cannot accept any value")
        if isinstance(schema, Mapping):
            self._parse_object(schema, default_type)
        elif schema is not True:
            raise _error(f"Schema should be an object or bool, but got {_serialized(schema)}")
        self._parsed.add(key)

    def resolve_references(self, schema: Any) -> None:
        """Raise XgrammarError for a reference without target, or an invalid pattern, in the part that the grammar
        includes."""
        pending = [schema]
        seen: set[str] = set()
        while pending:
            found = pending.pop()
            if not isinstance(found, Mapping):
                continue
            reference = found.get("$ref")
            if reference is None:
                _check_patterns(found)
                pending.extend(reversed(child_schemas(found)))
            elif reference not in seen:
                seen.add(reference)
                pending.append(self._target(reference))

    def _target(self, reference: str) -> Any:
        """Return the target of a reference; a schema for any value if the target is in another document."""
        if reference != "#" and not reference.startswith("#/"):
            return True
        found = self._root
        for part in filter(None, reference[2:].split("/")):
            if not isinstance(found, Mapping) or part not in found:
                raise XgrammarError(f"Cannot find field {part} in {reference}", REFERENCE_PLACE)
            found = found[part]
        try:
            self.parse(found)
        except XgrammarError as error:
            if error.place != PLACE:
                raise
            raise XgrammarError(error.reason, REFERENCE_PLACE) from None
        return found

    def _parse_object(self, schema: Mapping[str, Any], default_type: str | None) -> None:
        if "$ref" in schema:
            if not isinstance(schema["$ref"], str):
                raise _error("$ref must be a string")
        elif "const" in schema:
            pass
        elif "enum" in schema:
            _check_enum(schema["enum"])
        elif (name := next((each for each in ("anyOf", "oneOf", "allOf") if each in schema), None)) is not None:
            if not isinstance(schema[name], list):
                raise _error(f"{name} must be an array")
            for option in schema[name]:
                self.parse(option)
        elif isinstance(schema.get("type"), list):
            self._parse_types(schema)
        else:
            self._parse_typed(schema, default_type)

    def _parse_types(self, schema: Mapping[str, Any]) -> None:
        rest = {name: value for name, value in schema.items() if name != "type"}
        if not schema["type"]:
            self.parse(rest)
        for name in schema["type"]:
            if not isinstance(name, str):
                raise _error("type must be a string or an array of strings")
            self.parse({**rest, "type": name})

    def _parse_typed(self, schema: Mapping[str, Any], default_type: str | None) -> None:
        name = schema.get("type", default_type)
        if "type" in schema and not isinstance(name, str):
            raise _error("Type should be a string")
        if name is None:
            name = next(iter(_types_of(schema)), "null")
        checks = {
            "integer": check_integer,
            "number": check_number,
            "string": _check_string,
            "array": self._parse_array,
            "object": self._parse_members,
        }
        if name in checks:
            checks[name](schema)
        elif name not in ("boolean", "null"):
            raise _error(f'Unsupported type "{name}"')

    def _parse_array(self, schema: Mapping[str, Any]) -> None:
        prefix = schema.get("prefixItems", [])
        if not isinstance(prefix, list):
            raise _error("prefixItems must be an array")
        for item in prefix:
            if item is False:
                raise _error("prefixItems contains false")
            if not isinstance(item, Mapping):
                raise _error("prefixItems must be an array of objects or booleans")
            self.parse(item)
        name = next((each for each in ("items", "unevaluatedItems") if each in schema), None)
        rest = True if name is None else schema[name]
        if not isinstance(rest, bool | Mapping):
            raise _error(f"{name} must be a boolean or an object")
        if name is not None and rest is not False:
            self.parse(rest)
        _check_array_lengths(schema, len(prefix), has_more=name is not None and rest is not False)

    def _parse_members(self, schema: Mapping[str, Any]) -> None:
        for name in ("properties", "patternProperties"):
            if name == "patternProperties" and not isinstance(schema.get("required", []), list):
                raise _error("required must be an array")
            if name == "patternProperties" and not all(isinstance(each, str) for each in schema.get("required", [])):
                raise XgrammarError(NOT_OF_TYPE)
            members = schema.get(name, {})
            if not isinstance(members, Mapping):
                raise _error(f"{name} must be an object")
            for each in members.values():
                self.parse(each)
        self._parse_names(schema)
        for name in ("additionalProperties", "unevaluatedProperties"):
            if name in schema:
                if not isinstance(schema[name], bool):
                    self.parse(schema[name])
                break
        _check_member_counts(schema)

    def _parse_names(self, schema: Mapping[str, Any]) -> None:
        if "propertyNames" not in schema:
            return
        names = schema["propertyNames"]
        if not isinstance(names, Mapping):
            raise _error("propertyNames must be an object")
        if isinstance(names.get("type"), str) and names["type"] != "string":
            raise _error("propertyNames must be an object that validates string")
        self.parse(names, "string")


def _check_enum(values: Any) -> None:
    if not isinstance(values, list):
        raise _error("enum must be an array")
    if not values:
        raise _error("enum array must not be empty")


def _check_string(schema: Mapping[str, Any]) -> None:
    for name in ("format", "pattern"):
        if not isinstance(schema.get(name, ""), str):
            raise XgrammarError(NOT_OF_TYPE)
    least, most = schema.get("minLength", 0), schema.get("maxLength", -1)
    if as_int64(least) is None or least > MAX_BOUND:
        raise _error(f"minLength must be an integer not exceeding {MAX_BOUND}")
    if as_int64(most) is None:
        raise _error("maxLength must be an integer")
    if most != -1 and most <= MAX_BOUND and least > most:
        raise _error(f"minLength {least} is greater than maxLength {most}")


def _check_array_lengths(schema: Mapping[str, Any], num_first: int, has_more: bool) -> None:
    for name in ("minItems", "minContains"):
        if as_int64(schema.get(name, 0)) is None:
            raise _error(f"{name} must be an integer")
    least = max(0, schema.get("minItems", 0), schema.get("minContains", 0))
    most = schema.get("maxItems")
    if "maxItems" in schema and (most is None or as_int64(most) is None or most < 0):
        raise _error("maxItems must be a non-negative integer")
    if least > MAX_BOUND:
        raise _error(f"minItems and minContains must not exceed {MAX_BOUND}")
    if most is not None and most <= MAX_BOUND:
        if least > most:
            raise _error(f"minItems is greater than maxItems: {least} > {most}")
        if most < num_first:
            raise _error(f"maxItems is less than the number of prefixItems: {most} < {num_first}")
    if not has_more and num_first < least:
        raise _error(
            "minItems is greater than the number of prefixItems, but additional items are not "
            f"allowed: {least} > {num_first}"
        )


def _check_member_counts(schema: Mapping[str, Any]) -> None:
    for name in ("minProperties", "maxProperties"):
        if as_int64(schema.get(name, 0)) is None:
            raise _error(f"{name} must be an integer")
        if schema.get(name, 0) < 0:
            raise _error(f"{name} must be a non-negative integer")
    least, most = schema.get("minProperties", 0), schema.get("maxProperties")
    num_required = len(set(schema.get("required", [])))
    if most is not None and least > most:
        raise _error(f"minProperties is greater than maxProperties: {least} > {most}")
    if most is not None and num_required > most:
        raise _error(f"maxProperties is less than the number of required properties: {most} < {num_required}")
    # vLLM uses xgrammar's strict mode: a schema that does not allow further members forbids them.
    is_closed = schema.get("additionalProperties", schema.get("unevaluatedProperties", False)) is False
    has_patterns = bool(schema.get("patternProperties")) or "propertyNames" in schema
    num_named = len(schema.get("properties", {}))
    if is_closed and not has_patterns and least > num_named:
        raise _error(
            "minProperties is greater than the number of properties, but additional properties aren't "
            f"allowed: {least} > {num_named}"
        )


def _check_patterns(schema: Mapping[str, Any]) -> None:
    """Raise XgrammarError for a pattern that neither of xgrammar's two engines supports."""
    if any(name in schema for name in ("const", "enum", "anyOf", "oneOf", "allOf")):
        return
    types = _types_of(schema)
    patterns: list[str] = []
    if "string" in types and "pattern" in schema and schema.get("format") is None:
        patterns.append(schema["pattern"])
    if "object" in types:
        patterns += schema.get("patternProperties", {})
    for pattern in patterns:
        if not is_pattern(pattern):
            parse_ebnf(f"root ::= {regex_to_ebnf(pattern)}\n")


def _error(reason: str) -> XgrammarError:
    return XgrammarError(reason, PLACE)


def _cache_key(schema: Any) -> str:
    """Return a key that is equal for schemas that differ in annotations alone."""

    def reduced(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: reduced(each) for name, each in value.items() if name not in ANNOTATIONS}
        return [reduced(each) for each in value] if isinstance(value, list) else value

    return json.dumps(reduced(schema), sort_keys=True)


def _serialized(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

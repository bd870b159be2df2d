"""Random values that a JSON schema accepts."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from random import Random
from typing import Any

from mockserve.generation.structured_outputs.json_schema import (
    ReferenceCycleError,
    Schema,
    SchemaError,
    likely_types,
    make_number,
    make_string,
    options_of,
    resolve_schema,
    type_options,
)
from mockserve.generation.tokenizer import WORDS
from mockserve.options.content import ANY, ArgumentRanges

_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_LISTS = ("anyOf", "oneOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_PARTS = ("items", "additionalProperties", "propertyNames")


def without_ignored_keywords(schema: Any) -> Any:
    """Return `schema` as xgrammar reads it: without ignored keywords, and with remote references accepting any
    value."""
    if not isinstance(schema, Mapping):
        return schema is not False
    reference = schema.get("$ref")
    found = {
        name: without_ignored_keywords(each)
        for name, each in schema.items()
        if isinstance(each, Mapping) and not (name in _MAPS or name in _PARTS or name in _IGNORED)
    }
    found |= {name: _cleaned_members(schema[name]) for name in _MAPS if isinstance(schema.get(name), Mapping)}
    if reference is not None:
        is_local = isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))
        return {**found, "$ref": reference} if is_local else found
    for name in ("const", "enum"):
        if name in schema:
            return {**found, name: schema[name]}
    parts = schema.get("allOf")
    if isinstance(parts, list) and len(parts) == 1:
        return {**found, "allOf": _cleaned_items(parts)}
    found |= {name: _cleaned_items(schema[name]) for name in _LISTS if isinstance(schema.get(name), list)}
    found |= {
        name: without_ignored_keywords(schema[name]) for name in _PARTS if isinstance(schema.get(name), Mapping | bool)
    }
    found |= {name: schema[name] for name in _NUMBERS if _is_number(schema.get(name))}
    found |= {name: schema[name] for name in _COUNTS if type(schema.get(name)) is int}
    found |= {name: schema[name] for name in ("pattern", "format") if isinstance(schema.get(name), str)}
    if isinstance(schema.get("required"), list):
        found["required"] = [each for each in schema["required"] if isinstance(each, str)]
    if schema.get("type"):
        found["type"] = schema["type"]
    return found


def _cleaned_members(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: without_ignored_keywords(each) for name, each in members.items()}


def _cleaned_items(parts: list[Any]) -> list[Any]:
    return [without_ignored_keywords(each) for each in parts]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


MOST_TRIES = 40
MOST_ERRORS = 20
MOST_ITEMS = 10_000
MOST_VALUES = 20_000
MOST_DEPTH = 5
"""Depth beyond which only required values are made, in the shortest way."""

MOST_HEIGHT = 64
"""Depth to which a schema's smallest value is measured; JSON of clients is not nested deeper."""

DEPTH_OF_ENDLESS = MOST_DEPTH + 3
"""Depth at which a schema that requires itself without end is given up."""

ENDLESS_DEPTH = 1000
VALIDATED_KEYWORDS = frozenset(
    {"not", "oneOf", "if", "dependentRequired", "dependentSchemas", "dependencies", "contains", "uniqueItems"}
    | {"unevaluatedProperties", "unevaluatedItems", "patternProperties", "propertyNames", "maxProperties", "allOf"}
)
"""Keywords that can refuse a value even though each of its parts is valid."""

_IGNORED = VALIDATED_KEYWORDS | {"then", "else", "const", "default"}

_BREAK = "\ue000"
"""Mark of an omitted value; schemas are unlikely to contain this private-use character."""

SOLE_KEYWORDS = frozenset({"enum", "const", "anyOf"})
"""Keywords that need no validation of the value if only `type` and annotations occur beside them."""

ANNOTATIONS = frozenset({"title", "description", "default", "examples", "type", "$defs", "definitions", "$schema"})

UNREADABLE = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""Errors from reading a malformed part of a schema. SchemaError is a kind of ValueError."""


_NO_MEMBERS: Mapping[str, Any] = {}
_NAMES_OF_KINDS: Mapping[type, str] = {Mapping: "an object", list: "an array", int: "an integer"}
_SHARES = {1: 1.0, 2: 0.0}
"""Share of optional members by attempt: all of them, then none, since conditions may demand either."""


class TooLargeError(Exception):
    """A schema that asks for more values than are written."""


def instance_text(
    schema: Schema, random: Random, verbosity: int, argument_ranges: ArgumentRanges = ANY, is_compact: bool = False
) -> str:
    """Return a value of `schema` as JSON. `verbosity` 0 gives the smallest accepted value, 2 most optional parts.

    Compact JSON has no spaces between its parts. Raises SchemaError for an invalid or unsatisfiable schema, and any of
    UNREADABLE for a malformed one.
    """
    value, fault = _best_instance(schema, random, verbosity, argument_ranges)
    if fault is not None:
        raise fault
    return _json_text(value, is_compact)


def closest_text(
    schema: Schema, random: Random, verbosity: int, argument_ranges: ArgumentRanges = ANY, is_compact: bool = False
) -> str:
    """Return a value as JSON that obeys all of `schema` that can be obeyed.

    A part that cannot be read or met is replaced by a plain value. The whole is an empty object for a schema that asks
    for more than is written.
    """
    try:
        return _json_text(_best_instance(schema, random, verbosity, argument_ranges)[0], is_compact)
    except UNREADABLE:
        return "{}"


def lenient_text(schema: Schema, random: Random, verbosity: int, argument_ranges: ArgumentRanges = ANY) -> str:
    """Return JSON of the shape that `schema` describes by the keywords that xgrammar reads.

    The text is cut where a schema requires itself without end, and is empty for a schema without values. Raises
    ReferenceCycleError for a reference that leads back to itself.
    """
    try:
        value, fault = _best_instance(schema, random, verbosity, argument_ranges, is_for_xgrammar=True)
    except ReferenceCycleError:
        raise
    except UNREADABLE:
        return ""
    if isinstance(fault, ReferenceCycleError):
        raise fault
    return _json_text(value, False).partition(json.dumps(_BREAK, ensure_ascii=False))[0]


def _json_text(value: Any, is_compact: bool) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":") if is_compact else None)


def _best_instance(
    schema: Schema, random: Random, verbosity: int, argument_ranges: ArgumentRanges, is_for_xgrammar: bool = False
) -> tuple[Any, Exception | None]:
    """Return the value with the fewest faults of several, and the first of its faults, if any.

    Raises SchemaError for a schema that asks for too many values.
    """
    source = without_ignored_keywords(schema) if is_for_xgrammar else schema
    validator = None
    if needs_validation(schema):
        from mockserve.generation.structured_outputs.validation import new_validator

        validator = new_validator(schema)
    best: tuple[int, Any, Exception] | None = None
    for attempt in range(MOST_TRIES if validator else 1):
        # The smallest value does not depend on the seed: if it is refused, larger values must be tried.
        level = max(verbosity, 1) if attempt else verbosity
        maker = _InstanceGenerator(source, random, level, argument_ranges, is_for_xgrammar, _SHARES.get(attempt))
        try:
            value = maker.make(source, 0)
        except TooLargeError as error:
            if best is None:
                raise SchemaError(str(error)) from None
            continue
        num_faults = len(maker.faults) + (_num_errors(validator, value) if validator else 0)
        if num_faults == 0:
            return value, None
        if best is None or num_faults < best[0]:
            refusal = SchemaError("Unsatisfiable schema: no value found that satisfies it")
            best = num_faults, value, next(iter(maker.faults), refusal)
    assert best is not None
    return best[1], best[2]


def _num_errors(validator: Any, value: Any) -> int:
    """Return how many parts of the schema refuse a value, up to a bound."""
    try:
        return sum(1 for _ in islice(validator.iter_errors(value), MOST_ERRORS))
    except Exception:  # noqa: BLE001  (a schema of another draft, which the validator cannot apply)
        return 0


class _InstanceGenerator:
    """Makes values of the schemas in one document.

    A part that cannot be made is noted in `faults`, and a plain value stands in for it.
    """

    def __init__(
        self,
        root: Schema,
        random: Random,
        verbosity: int,
        argument_ranges: ArgumentRanges,
        is_for_xgrammar: bool,
        share_of_optional: float | None,
    ) -> None:
        """`is_for_xgrammar`: insert a mark where values are nested without end, and leave out names that a closed
        object requires without describing them. `share_of_optional` is that of the outer members; None for the usual.
        """
        self.faults: list[Exception] = []
        self._is_for_xgrammar = is_for_xgrammar
        self._share_of_optional = share_of_optional
        self._root = root
        self._random = random
        self._verbosity = verbosity
        self._taste = argument_ranges
        self._heights: dict[int, int] = {}
        self._num_made = 0
        self._measured: list[Schema] = []  # kept, so that no other object gets the identity of one

    def make(self, schema: Schema, depth: int) -> Any:
        """Return a value, or a stand-in for one.

        Raises TooLargeError, and for xgrammar any of UNREADABLE where the whole has no value.
        """
        try:
            return self._make_value(schema, depth)
        except UNREADABLE as error:
            if self._is_for_xgrammar and depth == 0:
                raise
            self._add_fault(error)
            plain: Mapping[str, Any] = {"integer": 1, "number": 1.0, "boolean": True, "null": None, "array": []}
            name = next(iter(likely_types(schema)), "") if isinstance(schema, Mapping) else ""
            if name == "object" or (not name and depth == 0):
                return {}
            return plain[name] if name in plain else self._random.choice(WORDS)

    def _add_fault(self, fault: Exception) -> None:
        """Add a fault, without the frames that it would keep in memory."""
        fault.__traceback__ = fault.__context__ = None
        self.faults.append(fault)

    def _make_value(self, schema: Schema, depth: int) -> Any:
        self._num_made += 1
        if self._num_made > MOST_VALUES:
            raise TooLargeError(f"Unsatisfiable schema: it asks for more than {MOST_VALUES} values")
        if self._is_for_xgrammar and depth > ENDLESS_DEPTH // 10:
            return _BREAK
        if not self._is_for_xgrammar and depth > DEPTH_OF_ENDLESS and self._height(schema, 0) >= ENDLESS_DEPTH:
            raise SchemaError("Unsatisfiable schema: it asks for itself without end")
        found = resolve_schema(schema, self._root, on_fault=self._add_fault)
        if "const" in found:
            return found["const"]
        if "enum" in found:
            values = found["enum"]
            if not isinstance(values, list) or not values:
                raise SchemaError("Unsatisfiable schema: anyOf is empty")
            if "type" in found:
                values = [each for each in values if _has_type(each, type_options(found))] or values
            if self._verbosity == 0:
                return min(values, key=lambda value: len(json.dumps(value)))
            return self._random.choice(values)
        options = options_of(found)
        if options is not None:
            return self._value_of_option(options, depth)
        makers: dict[str, Callable[[], Any]] = {
            "object": lambda: self._object(found, depth),
            "array": lambda: self._array(found, depth),
            "string": lambda: self._string(found, depth),
            "integer": lambda: make_number(found, self._random, self._taste.integers, integer=True),
            "number": lambda: make_number(found, self._random, self._taste.numbers, integer=False),
            "boolean": lambda: self._random.random() < 0.5,
            "null": lambda: None,
        }
        names = self._types(found, depth)
        return makers[names[0] if self._is_terse(depth) else self._random.choice(names)]()

    def _types(self, schema: Mapping[str, Any], depth: int) -> Sequence[str]:
        """Return the types that a value may have. Raises SchemaError where a fault leaves none to go by."""
        likely = likely_types(schema)
        names: Sequence[str] = likely
        try:
            names = type_options(schema)
        except SchemaError as error:
            self._add_fault(error)
        if not names or (depth == 0 and self.faults and not likely):
            raise self.faults.pop()
        return names

    def _keyword(self, schema: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
        """Return the value of a keyword, and the default for a value of another type."""
        value = schema.get(name, default)
        if value is default or (isinstance(value, kind) and not isinstance(value, bool)):
            return value
        self._add_fault(SchemaError(f"{name} must be {_NAMES_OF_KINDS[kind]}"))
        return default

    def _is_terse(self, depth: int) -> bool:
        return self._verbosity == 0 or depth > MOST_DEPTH

    def _value_of_option(self, options: list[Schema], depth: int) -> Any:
        """Return a value of the first of the options, in random order, that can be made without faults."""
        if not options:
            raise SchemaError("Unsatisfiable schema: anyOf is empty")
        if depth > MOST_DEPTH:
            order = sorted(options, key=lambda option: self._height(option, 0))
        else:
            first = self._random.randrange(len(options))
            order = [options[first], *options[:first], *options[first + 1 :]]
        before = self.faults
        found: list[tuple[list[Exception], Any]] = []
        for option in order:
            self.faults = []
            value = self.make(option, depth)
            found.append((self.faults, value))  # a list of its own, also where this option has options
            if not self.faults:
                break
        faults, value = min(found, key=lambda each: len(each[0]))
        self.faults = [*before, *faults]
        return value

    def _string(self, schema: Mapping[str, Any], depth: int) -> str:
        if schema.get("contentMediaType") == "application/json" and "pattern" not in schema:
            return json.dumps(self.make(schema.get("contentSchema", True), depth + 1), ensure_ascii=False)
        try:
            return make_string(schema, self._random, self._verbosity)
        except SchemaError as error:
            self._add_fault(error)
        with suppress(SchemaError):
            return make_string(schema, self._random, self._verbosity, meets_assertions=False)
        rest = {name: value for name, value in schema.items() if name != "pattern"}
        return make_string(rest, self._random, self._verbosity)

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = self._keyword(schema, "properties", Mapping, _NO_MEMBERS)
        required = [each for each in self._keyword(schema, "required", list, []) if isinstance(each, str)]
        chosen = [name for name in properties if name in required or self._takes_optional(properties[name], depth)]
        value: dict[str, Any] = {}
        for name in dict.fromkeys([*chosen, *required]):
            described = self._property(name, schema)
            if described is None:
                self._add_fault(SchemaError(f"Unsatisfiable schema: required property {name!r} is not allowed"))
            if described is not None or not self._is_for_xgrammar:
                value[name] = self.make(True if described is None else described, depth + 1)
        least = self._keyword(schema, "minProperties", int, 0)
        if least > MOST_ITEMS:
            raise SchemaError(f"minProperties ({least}) is greater than {MOST_ITEMS}")
        for name in properties:
            if len(value) < least and name not in value:
                value[name] = self.make(properties[name], depth + 1)
        # A schema that names no properties leaves all open; one that names none of them gets none.
        is_open = "properties" not in schema and not self._is_terse(depth)
        free = max(least, self._random.randint(1, 2)) if is_open else least
        self._add_free(value, schema, min(free, self._keyword(schema, "maxProperties", int, free)), depth)
        return value

    def _takes_optional(self, schema: Schema, depth: int) -> bool:
        if schema is False or self._is_terse(depth) or self._height(schema, 0) >= ENDLESS_DEPTH:
            return False
        fixed = self._taste.optional_field_probability if depth else self._taste.optional_probability
        if self._share_of_optional is not None and depth <= 1:
            fixed = self._share_of_optional
        return self._random.random() < (0.4 * self._verbosity - 0.1 * depth if fixed is None else fixed)

    def _property(self, name: str, schema: Mapping[str, Any]) -> Schema | None:
        """Return the schema of a member, None where the object may have no member of that name."""
        properties = self._keyword(schema, "properties", Mapping, _NO_MEMBERS)
        if name in properties:
            found: Schema = properties[name]
            return found
        for pattern, each in self._keyword(schema, "patternProperties", Mapping, _NO_MEMBERS).items():
            if _name_matches(pattern, name):
                patterned: Schema = each
                return patterned
        additional: Schema = schema.get("additionalProperties", True)
        return None if additional is False else additional

    def _add_free(self, value: dict[str, Any], schema: Mapping[str, Any], least: int, depth: int) -> None:
        """Add members with free names until there are `least` members."""
        patterns = list(self._keyword(schema, "patternProperties", Mapping, _NO_MEMBERS))
        if schema.get("additionalProperties") is False and not patterns:
            if len(value) < self._keyword(schema, "minProperties", int, 0):
                self._add_fault(SchemaError("Unsatisfiable schema: minProperties is more than there can be"))
            return
        for _ in range(MOST_TRIES):
            if len(value) >= least:
                return
            name = self._free_name(schema, patterns)
            described = self._property(name, schema)
            if name not in value and described is not None:
                value[name] = self.make(described, depth + 1)

    def _free_name(self, schema: Mapping[str, Any], patterns: list[str]) -> str:
        names = schema.get("propertyNames")
        if patterns:
            names = {"pattern": patterns[0]}
        if isinstance(names, Mapping) and names:
            return str(self.make({"type": "string", **names}, 1))
        return self._random.choice(WORDS)

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        least, most = (
            self._keyword(schema, name, int, default) for name, default in (("minItems", 0), ("maxItems", None))
        )
        if most is not None and least > most:
            raise SchemaError(f"Unsatisfiable schema: minItems ({least}) is greater than maxItems ({most})")
        if max(least, schema.get("minContains", 0)) > MOST_ITEMS:
            raise SchemaError(f"minItems ({least}) is greater than {MOST_ITEMS}")
        first, rest = _item_schemas(schema)
        count = least
        if not self._is_terse(depth) and self._height(rest, 0) < ENDLESS_DEPTH:
            more = self._more_items(max(least, len(first)))
            count = more if most is None else min(most, more)
        if rest is False:
            count = min(count, len(first))
        num_contained = max(schema.get("minContains", 1), 0) if "contains" in schema else 0
        kinds = [first[index] if index < len(first) else rest for index in range(max(count, num_contained))]
        if num_contained:
            kinds[:num_contained] = [schema["contains"]] * num_contained
        return self._items(kinds, bool(schema.get("uniqueItems")), least, depth)

    def _more_items(self, least: int) -> int:
        if self._taste.array_lengths is None:
            return least + self._random.randint(0, self._verbosity)
        return max(least, self._random.randint(*self._taste.array_lengths))

    def _items(self, kinds: list[Schema], unique: bool, least: int, depth: int) -> list[Any]:
        items: list[Any] = []
        for kind in kinds:
            for _ in range(MOST_TRIES if unique else 1):
                item = self.make(kind, depth + 1)
                if not unique or item not in items:
                    items.append(item)
                    break
                if self._verbosity == 0:  # the least there is may be one value only
                    self._verbosity = 1
        if len(items) < least:
            self._add_fault(SchemaError("Unsatisfiable schema: minItems is more than there are different items"))
        return items

    def _height(self, schema: Schema, depth: int) -> int:
        """Return the nesting depth of the smallest value of a schema; endless if the schema requires itself, or cannot
        be read."""
        if not isinstance(schema, Mapping) or depth > MOST_HEIGHT:
            return 0 if isinstance(schema, bool) else ENDLESS_DEPTH
        known = self._heights.get(id(schema))
        if known is not None:
            return known
        self._measured.append(schema)
        self._heights[id(schema)] = ENDLESS_DEPTH
        try:
            height = self._height_of_parts(resolve_schema(schema, self._root), depth + 1)
        except UNREADABLE:
            height = ENDLESS_DEPTH
        self._heights[id(schema)] = min(ENDLESS_DEPTH, height)
        return height

    def _height_of_parts(self, schema: Mapping[str, Any], depth: int) -> int:
        options = options_of(schema)
        if options:
            return min(self._height(each, depth) for each in options)
        properties = schema.get("properties", {})
        inner = [self._height(properties[name], depth) for name in schema.get("required", []) if name in properties]
        if schema.get("minItems", 0):
            inner.append(self._height(schema.get("items", True), depth))
        return 1 + max(inner) if inner else 0


def needs_validation(schema: Any) -> bool:
    """Whether any keyword in `schema` requires a validation of the whole value."""
    pending = [schema]
    while pending:  # no recursion, so that no depth is too deep for it
        found = pending.pop()
        if isinstance(found, list):
            pending.extend(found)
        elif isinstance(found, Mapping):
            if not VALIDATED_KEYWORDS.isdisjoint(found):
                return True
            if not SOLE_KEYWORDS.isdisjoint(found) and len(found.keys() - ANNOTATIONS) > 1:
                return True
            pending.extend(found.values())
    return False


def _item_schemas(schema: Mapping[str, Any]) -> tuple[list[Schema], Schema]:
    """Return the schemas of the first items and the schema of all others; older drafts use different keywords for
    both."""
    rest = schema.get("items", True)
    if isinstance(rest, list):
        return rest, schema.get("additionalItems", True)
    return schema.get("prefixItems", []), rest


def _has_type(value: Any, names: Any) -> bool:
    kinds: dict[str, tuple[type, ...]] = {
        "string": (str,),
        "integer": (int,),
        "number": (int, float),
        "boolean": (bool,),
        "null": (type(None),),
        "object": (dict,),
        "array": (list,),
    }
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, kinds[name]) for name in names)


def _name_matches(pattern: str, name: str) -> bool:
    from mockserve.generation.structured_outputs.validation import contains_match

    try:
        return contains_match(pattern, name)
    except ValueError:
        return False

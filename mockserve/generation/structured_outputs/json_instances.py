"""Random values that a JSON schema accepts."""

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from mockserve.generation.structured_outputs.expressions import Grammar, matching_text
from mockserve.generation.structured_outputs.json_schema import (
    ReferenceCycleError,
    Schema,
    SchemaError,
    make_number,
    make_string,
    options_of,
    resolve_schema,
    type_options,
)
from mockserve.generation.structured_outputs.regex_parser import parse_regex
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
    found = {name: without_ignored_keywords(each) for name, each in schema.items() if _is_place(name, each)}
    found |= {name: _map(schema[name]) for name in _MAPS if isinstance(schema.get(name), Mapping)}
    if reference is not None:
        is_local = isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))
        return {**found, "$ref": reference} if is_local else found
    for name in ("const", "enum"):
        if name in schema:
            return {**found, name: schema[name]}
    parts = schema.get("allOf")
    if isinstance(parts, list) and len(parts) == 1:
        return {**found, "allOf": _list(parts)}
    found |= {name: _list(schema[name]) for name in _LISTS if isinstance(schema.get(name), list)}
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


def _is_place(name: str, value: Any) -> bool:
    """Whether a member of a schema is not a keyword but a possible target of references."""
    return isinstance(value, Mapping) and not (name in _MAPS or name in _PARTS or name in _IGNORED)


def _map(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: without_ignored_keywords(each) for name, each in members.items()}


def _list(parts: list[Any]) -> list[Any]:
    return [without_ignored_keywords(each) for each in parts]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


MOST_TRIES = 40
MOST_ITEMS = 10_000
MOST_VALUES = 20_000
MOST_DEPTH = 5
"""Depth beyond which only required values are made, in the shortest way."""

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


def instance_text(
    schema: Schema, random: Random, verbosity: int, argument_ranges: ArgumentRanges = ANY, is_compact: bool = False
) -> str:
    """Return a value of `schema` as JSON. `verbosity` 0 gives the smallest accepted value, 2 most optional parts.

    Compact JSON has no spaces between its parts. Raises SchemaError for an invalid or unsatisfiable schema, RegexError
    for an invalid pattern.
    """
    separators = (",", ":") if is_compact else None
    return json.dumps(
        make_instance(schema, random, verbosity, argument_ranges), ensure_ascii=False, separators=separators
    )


def lenient_text(schema: Schema, random: Random, argument_ranges: ArgumentRanges = ANY) -> str:
    """Return JSON of the shape that `schema` describes by the keywords that xgrammar reads.

    The text is cut where a schema requires itself without end, and is empty for an unsatisfiable schema. Raises
    LoopError for a reference that leads back to itself.
    """
    readable = without_ignored_keywords(schema)
    maker = _InstanceGenerator(readable, random, 0, argument_ranges, breaks_off=True)
    try:
        value = maker.make(readable, 0)
    except ReferenceCycleError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
        return ""
    return json.dumps(value, ensure_ascii=False).partition(json.dumps(_BREAK, ensure_ascii=False))[0]


def make_instance(schema: Schema, random: Random, verbosity: int, argument_ranges: ArgumentRanges = ANY) -> Any:
    """Return a value of `schema`. The parameters are those of `instance_text`."""
    if not needs_validation(schema):
        return _InstanceGenerator(schema, random, verbosity, argument_ranges).make(schema, 0)
    from mockserve.generation.structured_outputs.validation import new_validator

    validator = new_validator(schema)
    reason = SchemaError("Unsatisfiable schema: no value found that satisfies it")
    for attempt in range(MOST_TRIES):
        try:
            # The smallest value does not depend on the seed: if it is refused, larger values must be tried.
            maker = _InstanceGenerator(schema, random, max(verbosity, 1) if attempt else verbosity, argument_ranges)
            value = maker.make(schema, 0)
        except SchemaError as error:  # another alternative may be satisfiable
            reason = error
            continue
        if _is_valid(validator, value):
            return value
    raise reason


def _is_valid(validator: Any, value: Any) -> bool:
    try:
        return bool(validator.is_valid(value))
    except Exception:  # noqa: BLE001  (a schema of another draft, or a pattern that is none in Python)
        return True


class _InstanceGenerator:
    """Makes values of the schemas in one document."""

    def __init__(
        self, root: Schema, random: Random, verbosity: int, argument_ranges: ArgumentRanges, breaks_off: bool = False
    ) -> None:
        """`breaks_off`: insert a mark where values are nested too deeply, instead of raising SchemaError."""
        self._breaks_off = breaks_off
        self._root = root
        self._random = random
        self._verbosity = verbosity
        self._taste = argument_ranges
        self._heights: dict[int, int] = {}
        self._num_made = 0
        self._measured: list[Schema] = []  # kept, so that no other object gets the identity of one

    def make(self, schema: Schema, depth: int) -> Any:
        self._num_made += 1
        if self._num_made > MOST_VALUES:
            raise SchemaError(f"Unsatisfiable schema: it asks for more than {MOST_VALUES} values")
        if depth > ENDLESS_DEPTH // 10 and self._breaks_off:
            return _BREAK
        if depth > ENDLESS_DEPTH // 10:
            raise SchemaError("Unsatisfiable schema: it asks for itself without end")
        found = resolve_schema(schema, self._root)
        if "const" in found:
            return found["const"]
        if "enum" in found:
            return self._listed_value(found)
        options = options_of(found)
        if options is not None:
            return self.make(self._option(options, depth), depth)
        makers: dict[str, Callable[[], Any]] = {
            "object": lambda: self._object(found, depth),
            "array": lambda: self._array(found, depth),
            "string": lambda: make_string(found, self._random, self._verbosity),
            "integer": lambda: make_number(found, self._random, self._taste.integers, integer=True),
            "number": lambda: make_number(found, self._random, self._taste.numbers, integer=False),
            "boolean": lambda: self._random.random() < 0.5,
            "null": lambda: None,
        }
        names = type_options(found)
        return makers[names[0] if self._is_terse(depth) else self._random.choice(names)]()

    def _is_terse(self, depth: int) -> bool:
        return self._verbosity == 0 or depth > MOST_DEPTH

    def _listed_value(self, schema: Mapping[str, Any]) -> Any:
        values = schema["enum"]
        if not isinstance(values, list) or not values:
            raise SchemaError("Unsatisfiable schema: anyOf is empty")
        if "type" in schema:
            values = [each for each in values if _has_type(each, type_options(schema))] or values
        if self._verbosity == 0:
            return min(values, key=lambda value: len(json.dumps(value)))
        return self._random.choice(values)

    def _option(self, options: list[Schema], depth: int) -> Schema:
        if not options:
            raise SchemaError("Unsatisfiable schema: anyOf is empty")
        if depth > MOST_DEPTH:
            return min(options, key=lambda option: self._height(option, 0))
        return self._random.choice(options)

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        if not isinstance(properties, Mapping):
            raise SchemaError("properties must be an object")
        required = schema.get("required", [])
        if not isinstance(required, list):
            raise SchemaError("required must be an array")
        chosen = [name for name in properties if name in required or self._takes_optional(properties[name], depth)]
        chosen += [name for name in required if name not in properties]
        value = {name: self.make(self._property(name, schema), depth + 1) for name in dict.fromkeys(chosen)}
        least = schema.get("minProperties", 0)
        if least > MOST_ITEMS:
            raise SchemaError(f"minProperties ({least}) is greater than {MOST_ITEMS}")
        for name in properties:
            if len(value) < least and name not in value:
                value[name] = self.make(properties[name], depth + 1)
        # A schema that names no properties leaves all open; one that names none of them gets none.
        is_open = "properties" not in schema and not self._is_terse(depth)
        free = max(least, self._random.randint(1, 2)) if is_open else least
        self._add_free(value, schema, min(free, schema.get("maxProperties", free)), depth)
        return value

    def _takes_optional(self, schema: Schema, depth: int) -> bool:
        if schema is False or self._is_terse(depth) or self._height(schema, 0) >= ENDLESS_DEPTH:
            return False
        fixed = self._taste.optional_field_probability if depth else self._taste.optional_probability
        return self._random.random() < (0.4 * self._verbosity - 0.1 * depth if fixed is None else fixed)

    def _property(self, name: str, schema: Mapping[str, Any]) -> Schema:
        properties = schema.get("properties", {})
        if name in properties:
            found: Schema = properties[name]
            return found
        for pattern, each in schema.get("patternProperties", {}).items():
            if _matches(pattern, name):
                patterned: Schema = each
                return patterned
        additional: Schema = schema.get("additionalProperties", True)
        if additional is False:
            raise SchemaError(f"Unsatisfiable schema: required property {name!r} is not allowed")
        return additional

    def _add_free(self, value: dict[str, Any], schema: Mapping[str, Any], least: int, depth: int) -> None:
        """Add members with free names until there are `least` members."""
        patterns = list(schema.get("patternProperties", {}))
        if schema.get("additionalProperties") is False and not patterns:
            if len(value) < schema.get("minProperties", 0):
                raise SchemaError("Unsatisfiable schema: minProperties is more than there can be")
            return
        for _ in range(MOST_TRIES):
            if len(value) >= least:
                return
            name = self._free_name(schema, patterns)
            if name not in value:
                value[name] = self.make(self._property(name, schema), depth + 1)

    def _free_name(self, schema: Mapping[str, Any], patterns: list[str]) -> str:
        if patterns:
            return matching_text(Grammar(parse_regex(patterns[0])), self._random, 12)
        names = schema.get("propertyNames")
        if isinstance(names, Mapping) and names:
            return str(self.make({"type": "string", **names}, 0))
        return self._random.choice(WORDS)

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
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
            raise SchemaError("Unsatisfiable schema: minItems is more than there are different items")
        return items

    def _height(self, schema: Schema, depth: int) -> int:
        """Return the nesting depth of the smallest value of a schema; endless if the schema requires itself."""
        if not isinstance(schema, Mapping) or depth > MOST_DEPTH * 4:
            return 0 if isinstance(schema, bool) else ENDLESS_DEPTH
        known = self._heights.get(id(schema))
        if known is not None:
            return known
        self._measured.append(schema)
        self._heights[id(schema)] = ENDLESS_DEPTH
        height = self._height_of_parts(resolve_schema(schema, self._root), depth + 1)
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


def _matches(pattern: str, name: str) -> bool:
    from mockserve.generation.structured_outputs.validation import contains_match

    try:
        return contains_match(pattern, name)
    except ValueError:
        return False

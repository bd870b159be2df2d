"""Constraints of an answer: JSON, a regular expression, a choice, a grammar or structural tags."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, TypeAlias

from mockserve.generation.structured_outputs.backends import (
    guidance_grammar,
    is_of_xgrammar,
    resolve_backend,
)
from mockserve.generation.structured_outputs.checks import TOO_DEEP, is_small_demand
from mockserve.generation.structured_outputs.demand import Demand, check_demand, demand_of, schema_in_messages
from mockserve.generation.structured_outputs.guided import GrammarError, grammar_of_xgrammar, guided_text
from mockserve.generation.structured_outputs.json_instances import UNREADABLE, closest_text, instance_text, lenient_text
from mockserve.generation.structured_outputs.json_schema import ReferenceCycleError, SchemaError
from mockserve.generation.structured_outputs.patterns import match_of
from mockserve.generation.structured_outputs.structural_tags import TagError, tag_text
from mockserve.options.content import ANY, AUTO, ArgumentRanges, StructuredOutputsConfig
from mockserve.protocol.errors import ApiError, bad_value, internal_error, mark_late
from mockserve.protocol.json_text import compact_json

SOFT_LIMIT_CHARS = 120
VERBOSITIES = (2, 1, 0)
"""Levels of verbosity, from the most optional parts to the fewest."""


@dataclass(frozen=True, slots=True)
class JsonForm:
    """A value of a JSON schema."""

    schema: Any
    argument_ranges: ArgumentRanges = ANY
    backend: str | None = None
    is_compact: bool = False
    """Whether the JSON has no spaces."""
    described_schema: Any = None
    """Schema described by the prompt, which the value follows; None without one."""


@dataclass(frozen=True, slots=True)
class ChoiceForm:
    """One of several texts."""

    choices: tuple[str, ...]
    backend: str | None = None


@dataclass(frozen=True, slots=True)
class RegexForm:
    """A match of a regular expression."""

    pattern: str
    backend: str | None = None


@dataclass(frozen=True, slots=True)
class GrammarForm:
    """A sentence of a grammar in llguidance's notation."""

    grammar: str
    backend: str | None = None


@dataclass(frozen=True, slots=True)
class TagForm:
    """Free text with structural tags."""

    tag: Any
    backend: str | None = None


@dataclass(frozen=True, slots=True)
class DeferredForm:
    """A constraint that is parsed when a text is written, since parsing may take long.

    `demand` has its kind, its value and the schema described by the prompt, as JSON.
    """

    demand: bytes
    config: StructuredOutputsConfig = AUTO
    backend: None = None
    """Backend; None until the constraint is parsed."""


Constraint: TypeAlias = JsonForm | ChoiceForm | RegexForm | GrammarForm | TagForm | DeferredForm


def constrained_text(constraint: Constraint, random: Random, verbosity: int) -> str:
    """Return a text of the form: about the shortest for `verbosity` 0, with most optional parts for 2.

    Raises ApiError for a constraint that no text meets.
    """
    soft_limit_chars = SOFT_LIMIT_CHARS * verbosity // 2
    try:
        match constraint:
            case JsonForm():
                return _json_text(constraint, random, verbosity)
            case ChoiceForm(choices):
                return _choice_text(choices, random, soft_limit_chars)
            case RegexForm(pattern):
                return match_of(pattern, random, soft_limit_chars)
            case GrammarForm(grammar, backend):
                return _guided_text(grammar, backend, random, soft_limit_chars)
            case TagForm(tag):
                try:
                    return tag_text(tag, random, verbosity)
                except TagError:
                    return ""  # xgrammar reads formats of which no text is made here
            case DeferredForm():
                return constrained_text(build_deferred_constraint(constraint), random, verbosity)
    except (SchemaError, GrammarError):
        # vLLM accepts the constraint, and its engine then fails because no token is allowed.
        raise mark_late(internal_error()) from None


def _choice_text(choices: tuple[str, ...], random: Random, soft_limit_chars: int) -> str:
    """Return one of the choices that are not much longer than the shortest."""
    least = min(map(len, choices))
    return random.choice([each for each in choices if len(each) <= max(least, soft_limit_chars)])


def _guided_text(grammar: str, backend: str | None, random: Random, soft_limit_chars: int) -> str:
    try:
        return guided_text(grammar, random, soft_limit_chars)
    except GrammarError:
        if backend == "guidance":
            return ""  # llguidance stops at once where xgrammar finds no first token
        raise


def _json_text(form: JsonForm, random: Random, verbosity: int) -> str:
    """Return JSON of the form; without a backend, JSON that obeys what can be obeyed of the schema.

    If no value is found for a schema that a backend accepts, the text follows the backend's grammar.
    """
    if form.backend is None:
        return closest_text(form.schema, random, verbosity, form.argument_ranges, form.is_compact)
    if form.described_schema is not None:
        return closest_text(form.described_schema, random, verbosity, form.argument_ranges, form.is_compact)
    try:
        return instance_text(form.schema, random, verbosity, form.argument_ranges, form.is_compact)
    except ReferenceCycleError:
        if form.backend == "guidance":
            return ""  # llguidance stops at once where xgrammar finds no token
        if form.backend != "xgrammar":
            raise  # xgrammar has no anchors: it takes no cycle that passes one for a cycle
    except UNREADABLE:
        pass
    if form.backend == "guidance":
        return _guided_text(guidance_grammar(Demand("json", form.schema)), form.backend, random, 0)
    return lenient_text(form.schema, random, verbosity, form.argument_ranges)


def requested_constraint(
    body: Mapping[str, Any], config: StructuredOutputsConfig = AUTO, texts: Callable[[], Sequence[str]] = tuple
) -> Constraint | None:
    """Return the result of `read_constraint`, deferred if parsing may take long or needs a library.

    `texts` returns the texts of the prompt, since an object of any form should match the prompt's description.
    """
    demand = demand_of(body, config)
    if demand is None:
        return None
    if demand.kind == "json_object":
        demand = demand._replace(described_schema=schema_in_messages(texts()))
    is_small = is_small_demand(demand.kind, demand.value) and is_small_demand("json", demand.described_schema or {})
    if config.backend not in ("auto", "xgrammar") or not is_small:
        return _deferred_form(demand)
    try:
        check_demand(demand)
    except ApiError as error:
        raise mark_late(error) from None
    return _form_of(demand, "xgrammar") if is_of_xgrammar(demand) else _deferred_form(demand)


def _deferred_form(demand: Demand) -> DeferredForm:
    try:
        return DeferredForm(compact_json([demand.kind, demand.value, demand.described_schema]), demand.config)
    except RecursionError:
        raise mark_late(ApiError(TOO_DEEP)) from None


@lru_cache(maxsize=1)
def build_deferred_constraint(form: DeferredForm) -> Constraint:
    """Return the result of `build_constraint`; the result for the latest constraint is cached."""
    kind, value, described_schema = json.loads(form.demand)
    return build_constraint(Demand(kind, value, form.config, described_schema))


def xgrammar_accepts(form: DeferredForm) -> bool:
    """Whether xgrammar accepts the constraint."""
    kind, value, _ = json.loads(form.demand)
    demand = Demand(kind, value, form.config)
    try:
        check_demand(demand)
    except ApiError:
        return False
    return is_of_xgrammar(demand)


def read_constraint(body: Mapping[str, Any], config: StructuredOutputsConfig = AUTO) -> Constraint | None:
    """Return the constraint of `response_format` and `structured_outputs`, if there is one.

    Raises ApiError with vLLM's message.
    """
    demand = demand_of(body, config)
    return None if demand is None else build_constraint(demand)


def build_constraint(demand: Demand) -> Constraint:
    """Parse a constraint. Raises ApiError with vLLM's message."""
    if demand.kind == "structural_tag":
        field = "structured_outputs" if isinstance(demand.value, str) else "response_format"
        if not is_of_xgrammar(demand):
            raise bad_value(f"Invalid {field} structural_tag specification.", field)
    try:
        backend = resolve_backend(demand)
    except ApiError as error:
        raise mark_late(error) from None
    return _form_of(demand, backend)


def _form_of(demand: Demand, backend: str) -> Constraint:
    kind, value, config, described_schema = demand
    if kind == "json_object":
        return JsonForm({"type": "object"}, ANY, backend, config.disable_any_whitespace, described_schema)
    if kind == "json":
        schema = json.loads(value) if isinstance(value, str) else value
        if backend == "guidance" and config.disable_additional_properties:
            schema = without_further_members(schema)
        return JsonForm(schema, ANY, backend, config.disable_any_whitespace)
    if kind == "structural_tag":
        return TagForm(json.loads(value) if isinstance(value, str) else value, backend)
    if kind == "choice":
        return ChoiceForm(tuple(value), backend)
    if kind == "regex":
        return RegexForm(value, backend)
    return GrammarForm(guidance_grammar(demand) if backend == "guidance" else grammar_of_xgrammar(value), backend)


_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_PARTS = (
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "contains",
    "additionalItems",
    "unevaluatedItems",
    "not",
    "if",
    "then",
    "else",
    "contentSchema",
    "items",
    "prefixItems",
    "allOf",
    "anyOf",
    "oneOf",
)


def without_further_members(schema: Any) -> Any:
    """Return `schema` with `additionalProperties` false in each object schema with properties that does not set it."""
    if isinstance(schema, list):
        return [without_further_members(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = dict(schema)
    for name in _MAPS:
        if isinstance(found.get(name), Mapping):
            found[name] = {key: without_further_members(each) for key, each in found[name].items()}
    for name in _PARTS:
        if name in found:
            found[name] = without_further_members(found[name])
    if any(isinstance(found.get(name), Mapping) for name in ("properties", "patternProperties")):
        found.setdefault("additionalProperties", False)
    return found

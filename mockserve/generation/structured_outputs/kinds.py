"""Constraints of an answer: JSON, a regular expression, a choice, a grammar or structural tags."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, TypeAlias

from mockserve.generation.structured_outputs.backends import (
    check_guidance,
    check_xgrammar,
    guidance_grammar,
    guided_text,
    resolve_backend,
)
from mockserve.generation.structured_outputs.checks import TOO_DEEP, is_small_demand
from mockserve.generation.structured_outputs.demand import Demand, check_demand, demand_of, schema_in_messages
from mockserve.generation.structured_outputs.expressions import EMPTY, Choice, Grammar, Text, matching_text
from mockserve.generation.structured_outputs.grammars import GrammarError, parse_grammar
from mockserve.generation.structured_outputs.json_instances import UNREADABLE, closest_text, instance_text, lenient_text
from mockserve.generation.structured_outputs.json_schema import ReferenceCycleError, SchemaError
from mockserve.generation.structured_outputs.regex_parser import RegexError, parse_regex
from mockserve.generation.structured_outputs.structural_tags import TagError, tag_text
from mockserve.generation.structured_outputs.xgrammar.grammars import is_likely_lark, parse_ebnf
from mockserve.generation.structured_outputs.xgrammar.regex import regex_to_ebnf
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
class GrammarForm:
    """A sentence of a grammar; choices and regular expressions are grammars too."""

    grammar: Grammar
    backend: str | None = None


@dataclass(frozen=True, slots=True)
class GuidedForm:
    """A sentence of a grammar that only llguidance can parse."""

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


Constraint: TypeAlias = JsonForm | GrammarForm | GuidedForm | TagForm | DeferredForm


def constrained_text(constraint: Constraint, random: Random, verbosity: int) -> str:
    """Return a text of the form: about the shortest for `verbosity` 0, with most optional parts for 2.

    Raises ApiError for a constraint that no text meets.
    """
    soft_limit_chars = SOFT_LIMIT_CHARS * verbosity // 2
    try:
        match constraint:
            case JsonForm():
                return _json_text(constraint, random, verbosity)
            case GrammarForm(grammar):
                return matching_text(grammar, random, soft_limit_chars)
            case GuidedForm(source):
                return guided_text(source, random, soft_limit_chars)
            case TagForm(tag):
                try:
                    return tag_text(tag, random, verbosity)
                except TagError:
                    return ""  # xgrammar reads formats of which no text is made here
            case DeferredForm():
                return constrained_text(build_deferred_constraint(constraint), random, verbosity)
    except (SchemaError, RegexError):
        # vLLM accepts the constraint, and its engine then fails because no token is allowed.
        raise mark_late(internal_error()) from None


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
        return guided_text(guidance_grammar(Demand("json", form.schema)), random, 0)
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
        return _deferred(demand)
    try:
        check_demand(demand)
    except ApiError as error:
        raise mark_late(error) from None
    try:
        check_xgrammar(demand)
    except ApiError:
        return _deferred(demand)
    return _form(demand, "xgrammar")


def _deferred(demand: Demand) -> DeferredForm:
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
        check_xgrammar(demand)
    except ApiError:
        return False
    return True


def read_constraint(body: Mapping[str, Any], config: StructuredOutputsConfig = AUTO) -> Constraint | None:
    """Return the constraint of `response_format` and `structured_outputs`, if there is one.

    Raises ApiError with vLLM's message.
    """
    demand = demand_of(body, config)
    return None if demand is None else build_constraint(demand)


def build_constraint(demand: Demand) -> Constraint:
    """Parse a constraint. Raises ApiError with vLLM's message."""
    if demand.kind == "structural_tag":
        check_tag_of(demand)
    try:
        backend = resolve_backend(demand)
    except ApiError as error:
        raise mark_late(error) from None
    return _form(demand, backend)


def check_tag_of(demand: Demand) -> None:
    """Raise ApiError for an invalid structural tag; vLLM refuses it while it parses the body."""
    field = "structured_outputs" if isinstance(demand.value, str) else "response_format"
    try:
        check_xgrammar(demand)
    except ApiError:
        raise bad_value(f"Invalid {field} structural_tag specification.", field) from None


def _form(demand: Demand, backend: str) -> Constraint:
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
    try:
        grammar = _grammar(kind, value, backend)
    except (RegexError, GrammarError, RecursionError):
        check_guidance(demand)
        return GuidedForm(guidance_grammar(demand), backend)
    if not (grammar.can_end or grammar.can_begin):
        # xgrammar finds no first token, and the engine fails; llguidance stops at once.
        if backend != "guidance":
            raise mark_late(internal_error())
        return GrammarForm(Grammar(EMPTY), backend)
    return GrammarForm(grammar, backend)


def _grammar(kind: str, value: Any, backend: str) -> Grammar:
    if kind == "choice":
        return Grammar(Choice(tuple(map(Text, value))))
    if kind == "regex":
        return (
            parse_ebnf(f"root ::= {regex_to_ebnf(value)}\n") if backend == "xgrammar" else Grammar(parse_regex(value))
        )
    return parse_grammar(value) if backend != "xgrammar" or is_likely_lark(value) else parse_ebnf(value)


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

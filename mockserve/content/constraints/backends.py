"""Which of vLLM's structured-output backends takes a constraint, and what vLLM says when none does."""

import json
from collections.abc import Mapping
from typing import Any

from mockserve.content.constraints.demand import Demand, check_demand
from mockserve.content.constraints.guidance import check_guidance
from mockserve.content.constraints.outlines import check_outlines
from mockserve.content.constraints.xgrammar.ebnf import parse_ebnf
from mockserve.content.constraints.xgrammar.errors import XgrammarError
from mockserve.content.constraints.xgrammar.features import has_unsupported_features
from mockserve.content.constraints.xgrammar.json_schema import check_json_schema
from mockserve.content.constraints.xgrammar.lark import check_lark, is_likely_lark
from mockserve.content.constraints.xgrammar.regex import regex_to_ebnf
from mockserve.content.constraints.xgrammar.structural_tag import check_structural_tag
from mockserve.protocol.errors import ApiError, sanitized

NOT_A_TEXT = "The schema should be a string or a Pydantic model."


def resolve_backend(demand: Demand) -> str:
    """The backend that the demand comes to. Raises ApiError, in vLLM's words, when there is none."""
    try:
        return _resolved(demand)
    except ApiError as error:
        raise ApiError(sanitized(error.message)) from None


def _resolved(demand: Demand) -> str:
    check_demand(demand)
    backend = demand.config.backend
    checks = {
        "xgrammar": check_xgrammar,
        "guidance": check_guidance,
        "outlines": check_outlines,
        "lm-format-enforcer": check_format_enforcer,
    }
    if backend in checks:
        checks[backend](demand)
        return backend
    try:
        check_xgrammar(demand)
    except ApiError:
        if demand.kind == "json" and has_patterns(_schema_of(demand.value)):
            check_outlines(demand)
            return "outlines"
        check_guidance(demand)
        return "guidance"
    return "xgrammar"


def check_xgrammar(demand: Demand) -> None:
    """Raise ApiError, in vLLM's words, for what the xgrammar backend does not take."""
    kind, value = demand.kind, demand.value
    if kind == "regex":
        try:
            parse_ebnf(f"root ::= {regex_to_ebnf(value)}\n")
        except XgrammarError as error:
            raise ApiError(f"Failed to transform regex into a grammar: {error.message}") from None
    elif kind == "json":
        _check_schema(_schema_of(value))
    elif kind == "grammar":
        try:
            check_lark(value) if is_likely_lark(value) else parse_ebnf(value)
        except (XgrammarError, RecursionError):
            raise ApiError("Invalid grammar specification.") from None
    elif kind == "structural_tag":
        try:
            check_structural_tag(json.loads(value) if isinstance(value, str) else value)
        except (ValueError, RecursionError):
            raise ApiError("Invalid structural tag specification.") from None


def check_format_enforcer(demand: Demand) -> None:
    """Raise ApiError, in vLLM's words, for what the lm-format-enforcer backend does not take."""
    if demand.kind == "json":
        _schema_of(demand.value)
    elif demand.kind in ("grammar", "structural_tag"):
        raise ApiError(f"LM Format Enforcer structured outputs backend does not support {demand.kind} specifications")


def has_patterns(schema: Any) -> bool:
    """Whether `patternProperties` occurs in any object within `schema`; vLLM keeps such schemas from guidance."""
    pending = [schema]
    while pending:
        found = pending.pop()
        if isinstance(found, Mapping):
            if "patternProperties" in found:
                return True
            for value in found.values():
                pending.extend(value if isinstance(value, list) else [value])
    return False


def _schema_of(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ApiError("Invalid JSON grammar specification.") from None


def _check_schema(schema: Any) -> None:
    if has_unsupported_features(schema):
        raise ApiError("The provided JSON schema contains features not supported by xgrammar.")
    try:
        if not isinstance(schema, Mapping):
            raise XgrammarError(NOT_A_TEXT)
        check_json_schema(schema)
    except XgrammarError as error:
        raise ApiError(f"Failed to transform json schema into a grammar: {error.message}") from None

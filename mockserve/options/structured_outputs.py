"""`--structured-outputs-config`: the backend of structured outputs, and how strict its JSON is."""

import json
from dataclasses import dataclass, fields
from typing import Any

from blis_sim.options import OptionError
from blis_sim.options.text import load_json

FLAG = "--structured-outputs-config"
BACKENDS = ("auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsConfig:
    """vLLM's StructuredOutputsConfig."""

    backend: str = "auto"
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    reasoning_parser: str = ""
    reasoning_parser_plugin: str = ""
    enable_in_reasoning: bool = False


AUTO = StructuredOutputsConfig()


def read_structured_outputs_config(text: str | None) -> StructuredOutputsConfig:
    """The configuration that the flag's JSON object spells. Raises OptionError for what vLLM does not take."""
    if text is None:
        return AUTO
    given = _json_object(text)
    known = {field.name: field.type for field in fields(StructuredOutputsConfig)}
    for name, value in given.items():
        if name not in known:
            raise OptionError(f"{FLAG} may have the fields {', '.join(known)}, got {name!r}")
        if not isinstance(value, bool if known[name] is bool else str):
            expected = "true or false" if known[name] is bool else "a string"
            raise OptionError(f"{FLAG} must have {expected} as {name}, got {json.dumps(value)}")
    config = StructuredOutputsConfig(**given)
    if config.backend not in BACKENDS:
        raise OptionError(f"{FLAG} must have one of {', '.join(BACKENDS)} as backend, got {config.backend!r}")
    if config.disable_any_whitespace and config.backend not in ("xgrammar", "guidance"):
        raise OptionError(f"{FLAG}: disable_any_whitespace is only supported for xgrammar and guidance backends.")
    if config.disable_additional_properties and config.backend != "guidance":
        raise OptionError(f"{FLAG}: disable_additional_properties is only supported for the guidance backend.")
    return config


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = load_json(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError(f"{FLAG} must be a JSON object, got {text!r}")
    return found

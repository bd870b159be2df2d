"""vLLM's parsers of function calls and of reasoning: a row of `parsers.csv` for each."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Parser:
    """One parser. `cut` says how calls that were cut short are returned, empty for text.

    The tokenizer must have the `tokens`; else `refusal` is vLLM's error at the start.
    """

    name: str
    cut: str
    traits: frozenset[str]
    tokens: tuple[str, ...]
    refusal: str


def _read(kind: str) -> Iterator[Parser]:
    with Path(__file__).with_name("parsers.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["kind"] == kind:
                traits, tokens = frozenset(row["traits"].split()), tuple(row["tokens"].split())
                yield Parser(row["name"], row["cut"], traits, tokens, row["refusal"])


TOOL_CALL_PARSERS: Mapping[str, Parser] = {each.name: each for each in _read("calls")}
REASONING_PARSERS: Mapping[str, Parser] = {each.name: each for each in _read("reasoning")}


def call_parsers_with(trait: str) -> frozenset[str]:
    """Return the names of the parsers of calls that have a trait."""
    return frozenset(name for name, parser in TOOL_CALL_PARSERS.items() if trait in parser.traits)


FORCED_AS_JSON = call_parsers_with("forced-as-JSON")
"""Parsers that vLLM bypasses for forced calls, which it parses as JSON."""

"""The engine's unit of time: whole microseconds, the unit of TraceV2 columns too, so nothing is converted inside."""

from typing import TypeAlias

Micros: TypeAlias = int
"""An instant or a duration in integer microseconds."""

MAX_MICROS: Micros = 2**63 - 1
"""The longest duration: the largest signed 64-bit integer, as numpy holds it."""

LONGEST_DELAY_US: Micros = 10**15
"""Longest delay of any setting. The value is 31 years; thousands of them are less than a 64-bit integer holds."""

LARGEST_COEFFICIENT = 1e12
"""Upper limit of coefficients of durations: times a million tokens, it still fits into a 64-bit integer."""

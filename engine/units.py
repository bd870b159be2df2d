"""The engine's unit of time: whole microseconds, the unit of TraceV2 columns too, so nothing is converted inside."""

from typing import TypeAlias

Micros: TypeAlias = int
"""An instant or a duration in integer microseconds."""

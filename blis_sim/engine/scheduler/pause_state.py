"""Levels of suspended scheduling, as in vLLM while weights are exchanged or the engine sleeps."""

from enum import Enum, auto


class PauseState(Enum):
    """Steps under way always end, and requests are always taken into the wait queue."""

    NONE = auto()
    ADMISSIONS = auto()
    """No request joins the running batch; those in it go on."""
    EVERYTHING = auto()
    """No step is composed."""

"""Which request gets which fault: what its header asks for, else what chance says."""

from collections.abc import Mapping
from random import Random

from multidict import istr

from blis_sim.options import OptionError
from mockserve.options.faults import ERRORS, REPLY_FAULTS, FaultSettings

HEADER = istr("X-Blis-Fault")
"""`kind`, or a status, with settings for this request after semicolons: `stall; stall_s=2; after_events=1`."""

STATUS_HEADER = istr("X-Return-Error")
"""A status alone, as another mock server takes it."""


class FaultSource:
    """Draws faults under settings that may change while running. The same seed and requests give the same faults."""

    def __init__(self, settings: FaultSettings, seed: int = 0) -> None:
        self.settings = settings
        self._random = Random(f"faults {seed}")

    def draw(self, headers: Mapping[str, str], by_chance: bool) -> tuple[str, FaultSettings] | None:
        """The kind of fault for a request and the settings it goes by. Raises OptionError for a header it cannot read.

        `by_chance` is False for requests that only get the fault they ask for.
        """
        asked = headers.get(HEADER) or headers.get(STATUS_HEADER)
        if asked is not None:
            return self._asked(asked)
        if not by_chance or not self.settings.rates:
            return None
        point = self._random.random()
        for kind, rate in self.settings.rates.items():
            point -= rate
            if point < 0:
                return kind, self.settings
        return None

    def _asked(self, text: str) -> tuple[str, FaultSettings]:
        kind, *parts = (part.strip() for part in text.split(";"))
        kind = _BY_STATUS.get(kind, kind)
        if kind not in REPLY_FAULTS:
            raise OptionError(f"{HEADER} must be one of {', '.join(REPLY_FAULTS)} or a status of these, got {text!r}")
        changes: dict[str, str] = {}
        for part in filter(None, parts):
            name, _, value = part.partition("=")
            changes[name.strip()] = value.strip()
        return kind, self.settings.changed(changes)


_BY_STATUS = {str(fault.status): kind for kind, fault in reversed(list(ERRORS.items()))}

"""The settings of `blis serve` that let things go wrong on purpose."""

from collections.abc import Iterable
from dataclasses import dataclass

from blis_sim.options import OptionError, check_options, option
from mockserve.options.fault_kinds import ENGINE_FAULTS
from mockserve.options.fault_settings import LONGEST_S, FaultSettings


@dataclass(frozen=True, slots=True)
class TimedFault:
    """Something that happens to the engine, in real seconds after the start; without an end it lasts."""

    kind: str
    after_s: float
    for_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOptions:
    """Which faults, how often, and their figures."""

    fault_rates: tuple[str, ...] = option(
        (),
        "Faults and the fraction of requests that get them, such as rate_limit=0.05,stall=0.01.",
        heading="Faults on purpose",
    )
    fault_settings: tuple[str, ...] = option(
        (), "Figures of faults, such as retry_after_s=2,stall_s=10,after_events=5."
    )
    fault_engine: tuple[str, ...] = option(
        (),
        "What happens to the engine and when: hang@30+5 after 30 s for 5 s, death@60, kv_exhaustion@10+20, slow@10+20.",
    )
    fault_seed: int = option(0, "Seed of the chance by which requests get faults.")
    enable_fault_control: bool = option(False, "Offer /blis/faults, where faults are seen and changed while running.")

    def __post_init__(self) -> None:
        check_options(self)
        _ = self.timed, self.settings  # making them checks them

    @property
    def settings(self) -> FaultSettings:
        """The settings that these flags say."""
        try:
            rates = {kind: _number(value) for kind, value in _pairs(self.fault_rates)}
        except OptionError as error:
            raise OptionError(f"--fault-rates: {error}") from error
        try:
            changed = FaultSettings().changed(dict(_pairs(self.fault_settings)))
        except OptionError as error:
            raise OptionError(f"--fault-settings: {error}") from error
        try:
            return changed.changed({"rates": rates})
        except OptionError as error:
            raise OptionError(f"--fault-rates: {error}") from error

    @property
    def timed(self) -> tuple[TimedFault, ...]:
        """What happens to the engine."""
        return tuple(_timed_fault(text) for text in self.fault_engine)


def _pairs(texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"{text!r} must be name=value")
        yield name.strip(), value.strip()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise OptionError(f"{text!r} is no number") from error


def _timed_fault(text: str) -> TimedFault:
    kind, at, times = text.partition("@")
    if kind not in ENGINE_FAULTS:
        raise OptionError(f"--fault-engine must name one of {', '.join(ENGINE_FAULTS)}, got {text!r}")
    after, plus, lasting = times.partition("+")
    try:
        found = TimedFault(kind, float(after), float(lasting) if plus else None)
    except ValueError as error:
        raise OptionError(f"--fault-engine must be kind@seconds or kind@seconds+seconds, got {text!r}") from error
    if not at or not all(0 <= each <= LONGEST_S for each in (found.after_s, found.for_s or 0.0)):
        raise OptionError(
            f"--fault-engine must be kind@seconds or kind@seconds+seconds, each from 0 to {LONGEST_S:g}, got {text!r}"
        )
    return found

"""Bounds of values of a workload spec, as part of their declared types, so that model, reader and errors agree."""

from dataclasses import dataclass

from traces.json_text import number_text


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a value. `at_least` and `at_most` include their limit, `above` does not."""

    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()

    def allow(self, value: float | str) -> bool:
        """Whether a number or text is within the bounds."""
        if isinstance(value, str):
            return not self.choices or value in self.choices
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
            and (self.above is None or value > self.above)
        )

    @property
    def words(self) -> str:
        """The bounds of a number as an error names them, with a space before; empty without any."""
        if self.at_least is not None and self.at_most is not None:
            return f" between {number_text(self.at_least)} and {number_text(self.at_most)}"
        if self.above is not None and self.at_most is not None:
            return f" above {number_text(self.above)} and at most {number_text(self.at_most)}"
        if self.at_least is not None:
            return f" of at least {number_text(self.at_least)}"
        return "" if self.above is None else f" above {number_text(self.above)}"

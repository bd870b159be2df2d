"""What values are like where a schema leaves them open."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Taste:
    """Ranges of numbers and lengths that a schema does not bound; each includes both of its ends.

    `array_lengths` of None makes arrays a little longer than they must be; `optional_probability` and
    `optional_field_probability` of None, that of a value and of a field within an object among them, follow the
    generosity.
    """

    integers: tuple[int, int] = (0, 100)
    numbers: tuple[float, float] = (0.0, 100.0)
    array_lengths: tuple[int, int] | None = None
    optional_probability: float | None = None
    optional_field_probability: float | None = None


ANY = Taste()

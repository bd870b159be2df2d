"""The expected differences from vLLM, each with its reason; `docs/compatibility.md` lists them."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.wire.captured.differences import Difference


@dataclass(frozen=True, slots=True)
class Expected:
    """An expected difference. `cases` and `places` are shell patterns; `[` stands for itself in a place."""

    setup: str
    cases: str
    places: str
    reason: str

    def covers(self, difference: Difference) -> bool:
        return (
            fnmatchcase(difference.setup, self.setup)
            and fnmatchcase(difference.case, _literal_brackets(self.cases))
            and fnmatchcase(difference.place, _literal_brackets(self.places))
        )

    def __str__(self) -> str:
        return f"{self.setup} / {self.cases} / {self.places}: {self.reason}"


def _literal_brackets(pattern: str) -> str:
    return pattern.replace("[", "[[]")


def unexpected(found: Sequence[Difference], table: Sequence[Expected]) -> list[Difference]:
    """The differences that no row covers."""
    return [each for each in found if not any(row.covers(each) for row in table)]


def outdated(found: Sequence[Difference], table: Sequence[Expected], setup: str) -> list[Expected]:
    """The rows for `setup` that cover no difference any more."""
    rows = [row for row in table if fnmatchcase(setup, row.setup)]
    return [row for row in rows if not any(row.covers(each) for each in found)]

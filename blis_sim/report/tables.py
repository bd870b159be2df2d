"""Tables as aligned text that fits a width, as Markdown and as CSV, and numbers with their units."""

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Any, NamedTuple

from blis_sim.options.printing import JSON

PAGE_WIDTH = 80
"""Characters of a line that every terminal, mail and document shows."""
_LEAST_TEXT = 24
"""Characters that a column of long texts has at least."""
_BETWEEN = "  "
_PIECE = re.compile(r"\s*-*[^\s-]+-?|\s*-+|\s+")


class TextTable(NamedTuple):
    """A table of cells that are text already. All rows are as long as the line of titles, which may be empty."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_left_aligned: int = 1
    """Columns from the left whose cells begin at the left edge; all others end at the right edge."""
    num_labels: int = 1
    """Columns from the left that say what a row is; each part of a table that is wider than its reader has them."""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, str]], num_left_aligned: int = 1, num_labels: int = 1) -> "TextTable":
        """Return the table of rows whose cells stand beside their titles, which all rows share."""
        titles = list(rows[0]) if rows else []
        return cls(titles, [[*row.values()] for row in rows], num_left_aligned, num_labels)

    def lines(self, width: int = PAGE_WIDTH) -> list[str]:
        """Return an aligned table without spaces at the ends of lines.

        In a table wider than `width` titles take several lines, then long texts do, and then columns that find no room
        stand below the others.
        """
        rows = [self.titles, *self.rows] if self.titles else list(self.rows)
        widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))] if rows else []
        if _table_width(widths) > width:
            self._narrow(widths, width)
        # The columns that stand beside each other; all parts begin with the labels.
        labels = list(range(min(self.num_labels, len(widths))))
        parts = [labels[:]]
        for place in range(len(labels), len(widths)):
            if len(parts[-1]) > len(labels) and _table_width([widths[each] for each in (*parts[-1], place)]) > width:
                parts.append(labels[:])
            parts[-1].append(place)
        return [line for number, part in enumerate(parts) for line in (*[""] * bool(number), *self._part(part, widths))]

    def _narrow(self, widths: list[int], width: int) -> None:
        """Reduce widths to what is needed by titles of several lines, then by long texts of several lines, labels last.

        Of columns with room to lose, that with most room loses it first.
        """
        by_titles = {
            place: max([*map(len, title.split()), *(len(row[place]) for row in self.rows)], default=0)
            for place, title in enumerate(self.titles)
        }
        by_texts = {place: self._least_width(place) for place in range(self.num_left_aligned)}
        texts = {place: least for place, least in by_texts.items() if place >= self.num_labels}
        for least in (by_titles, texts, by_texts):
            while _table_width(widths) > width and (wide := [place for place in least if widths[place] > least[place]]):
                widths[max(wide, key=lambda place: widths[place] - least[place])] -= 1

    def _least_width(self, place: int) -> int:
        """Return the width that the words of a column of texts need."""
        words = [piece.strip() for row in self.rows for piece in _PIECE.findall(row[place])]
        return max([_LEAST_TEXT, *map(len, words)])

    def _part(self, places: Sequence[int], widths: Sequence[int]) -> list[str]:
        """Return the lines of some columns."""
        rows = [self.titles, *self.rows] if self.titles else list(self.rows)
        lines = []
        for number, row in enumerate(rows):
            cells = [_wrapped_lines(row[place], widths[place]) for place in places]
            height = max(map(len, cells))
            is_head = bool(self.titles) and number == 0
            cells = [
                [""] * (height - len(each)) + each if is_head else each + [""] * (height - len(each)) for each in cells
            ]
            lines += [self._line(places, texts, widths) for texts in zip(*cells, strict=True)]
        return lines

    def _line(self, places: Sequence[int], texts: Sequence[str], widths: Sequence[int]) -> str:
        cells = [
            text.ljust(widths[place]) if place < self.num_left_aligned else text.rjust(widths[place])
            for place, text in zip(places, texts, strict=True)
        ]
        return _BETWEEN.join(cells).rstrip()

    @property
    def markdown(self) -> str:
        """The table in GitHub's Markdown, with a newline at the end."""
        num_columns = len(self.titles or self.rows[0])
        rule = [":--" if place < self.num_left_aligned else "--:" for place in range(num_columns)]
        rows = [[cell.replace("|", "\\|") for cell in row] for row in (self.titles or [""] * num_columns, *self.rows)]
        return "".join(f"| {' | '.join(row)} |\n" for row in (rows[0], rule, *rows[1:]))


def facts_table(facts: Iterable[tuple[str, str]]) -> TextTable:
    """Return a table of names with a text each."""
    return TextTable((), [*facts], num_left_aligned=2)


def _table_width(widths: Sequence[int]) -> int:
    return sum(widths) + len(_BETWEEN) * max(0, len(widths) - 1)


def _wrapped_lines(text: str, width: int) -> list[str]:
    """Return a text in lines, which end at spaces, and words that are longer than a line at hyphens."""
    if len(text) <= width:
        return [text]
    words = re.findall(r"\s*\S+", text)
    lines = [""]
    for piece in (piece for word in words for piece in ([word] if len(word) <= width else _PIECE.findall(word))):
        if lines[-1] and len(lines[-1] + piece) > width:
            lines.append(piece.lstrip())
        else:
            lines[-1] += piece
    return lines


def rows_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV, with a newline at the end: a column for each name in any row, nothing for None.

    A cell of several values is JSON.
    """
    known = list(rows)
    columns = list(dict.fromkeys(name for row in known for name in row))
    written = StringIO()
    csv.writer(written, lineterminator="\n").writerows(
        [columns, *([_csv_cell(row.get(name)) for name in columns] for row in known)]
    )
    return written.getvalue()


def _csv_cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, Mapping | list | tuple) else value


def streamed(form: str, found: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], is_first: bool) -> str:
    """Return one of the answers of a command that goes on: a line of JSON, or rows of CSV, with titles at first."""
    if form == JSON:
        return json.dumps(found) + "\n"
    text = rows_csv(rows)
    return text if is_first else text.partition("\n")[2]


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a row of an object of JSON: the names of nested ones are joined, and texts of a list are one text."""
    row: dict[str, Any] = {}
    for name, each in value.items():
        if isinstance(each, Mapping):
            row |= flat(each, f"{prefix}{name}_")
        elif isinstance(each, list | tuple):
            row[prefix + name] = " ".join(map(str, each))
        else:
            row[prefix + name] = each
    return row


def number(value: float, digits: int = 2) -> str:
    """Return a number with thousands separated. A float has `digits` decimals, an integer none."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def cell(value: float | None) -> str:
    """Return a figure with two decimals, and a dash where it is not known."""
    return "-" if value is None else f"{value:,.2f}"


def counted(count: int, name: str) -> str:
    """Return a count with the name of what is counted, such as `1 GPU` or `2 GPUs`."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def duration(value_ms: float) -> str:
    """Return a duration with the unit in which it has one to three digits before the point."""
    if value_ms < 1:
        return f"{value_ms * 1000:.3g} us" if value_ms else "0 ms"
    if value_ms < 999.5:
        return f"{value_ms:.3g} ms"
    if value_ms < 599_500:
        return f"{value_ms / 1000:.3g} s"
    return f"{value_ms / 60_000:,.3g} min" if value_ms < 59_970_000 else f"{value_ms / 60_000:,.0f} min"

"""The answer of a command as one value. Each format of standard output, and each file, shows a part of it."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from blis_sim.options.printing import CSV, HTML, JSON, MARKDOWN
from blis_sim.report.tables import PAGE_WIDTH, TextTable, flat, rows_csv

if TYPE_CHECKING:
    from blis_sim.options.provenance import Provenance
    from blis_sim.report.figures import Panel


@dataclass(frozen=True, slots=True)
class Section:
    """A table, or lines as they are, under a heading, which may be empty."""

    heading: str = ""
    table: TextTable | None = None
    text: str = ""

    def lines(self, width: int) -> list[str]:
        """Return the section as text of at most `width` characters a line."""
        table = [] if self.table is None else self.table.lines(width)
        return [*[self.heading] * bool(self.heading), *table, *self.text.splitlines()]

    @property
    def markdown(self) -> str:
        """The section as Markdown, with a newline at the end."""
        heading = f"**{self.heading}**\n\n" if self.heading else ""
        text = f"```text\n{self.text}\n```\n" if self.text else ""
        return heading + ("" if self.table is None else self.table.markdown) + text


def _folded(width: int, lines: Iterable[str]) -> list[str]:
    fold = partial(wrap, width=width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return [part for line in lines for part in fold(line)]


def _no_lines() -> tuple[()]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """An answer. Its parts are functions, as each format shows some of them only.

    Commands that stand for a program of others have that program's text in `texts`, by format.
    """

    title: str
    """The heading of the page, which the model of the origin follows."""
    origin: "Callable[[], Provenance]"
    data: Callable[[], Any]
    """The answer as JSON has it."""
    sections: Callable[[], Iterable[Section]] = _no_lines
    headline: str = ""
    """The subject of a table, where text has no place for the origin."""
    lead: Callable[[], Iterable[str]] = _no_lines
    """Lines above the tables."""
    remarks: Callable[[], Iterable[str]] = _no_lines
    """Lines below the tables."""
    rows: Callable[[], Iterable[Mapping[str, Any]]] | None = None
    """The rows of CSV; None makes one row of the data."""
    panels: "Callable[[], Sequence[Panel]]" = _no_lines
    texts: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    folds: bool = False
    """Whether text continues long lines around the tables on further ones, set in by two blanks."""
    refresh_s: float = 0.0
    """Seconds after which a browser loads the page again; 0 means never."""

    def text(self, form: str, width: int = PAGE_WIDTH) -> str:
        """Return the answer in a format, with a newline at the end."""
        if form in self.texts:
            return self.texts[form]()
        if form == JSON:
            from traces.text_file import dump_json

            return dump_json(self.data()) + "\n"
        if form == CSV:
            return rows_csv([flat(self.data())] if self.rows is None else self.rows())
        if form == MARKDOWN:
            return self._markdown()
        if form == HTML:
            return self.page()
        folded = partial(_folded, width) if self.folds else list
        blocks = [[self.headline] * bool(self.headline) + folded(self.lead())]
        blocks += [section.lines(width) for section in self.sections()] + [folded(self.remarks())]
        return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"

    def _markdown(self) -> str:
        origin = self.origin()
        blocks = [f"{line}\n" for line in (origin.title, *self.lead()) if line]
        blocks += [section.markdown for section in self.sections()]
        blocks += ["".join(f"- {line}\n" for line in self.remarks())]
        blocks += ["".join(f"- {name}: `{value}`\n" for name, value in origin.rows)]
        return "\n".join(block for block in blocks if block)

    def page(self) -> str:
        """Return the answer as one HTML file."""
        from blis_sim.report.pages import figures_html, page, section_html

        parts = [section_html(each.heading, each.table, each.text) for each in self.sections()]
        parts += figures_html(self.panels())
        origin = self.origin()
        title = " ".join(filter(None, (self.title, origin.model)))
        return page(title, origin, self.remarks(), parts, self.lead(), self.refresh_s)

    def print(self, form: str) -> None:
        """Write the answer to standard output. A terminal and a pipe get equal text."""
        sys.stdout.write(self.text(form))

    def write(self, html: str | None, plot: str | None) -> None:
        """Write the page and the pictures to files that are not None. Raises TraceError."""
        if plot is not None and (panels := self.panels()):
            from blis_sim.report.figures import draw_panels

            draw_panels(panels, plot, self.origin().title)
        if html is not None:
            from traces.text_file import write_content

            write_content(Path(html), self.page().encode())


def with_origin(data: Mapping[str, Any], origin: "Provenance") -> dict[str, Any]:
    """Return the data of an answer below its origin."""
    return {"provenance": asdict(origin), **data}

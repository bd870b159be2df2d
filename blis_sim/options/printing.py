"""The flags of what standard output gets, which all commands with an answer have."""

import sys
from contextlib import suppress
from typing import Any

from blis_sim.options.option import ExclusionError, check_options, option

TABLE, JSON, CSV, MARKDOWN, HTML, BLIS = "table", "json", "csv", "markdown", "html", "blis"
FORMATS = (TABLE, JSON, CSV, MARKDOWN, HTML)


def format_option(help_text: str = "", formats: tuple[str, ...] = FORMATS, **more: Any) -> Any:
    """Return the option for the format of standard output, the first of `formats` by default."""
    general = "What standard output gets: a table for people, one JSON object, rows of CSV, Markdown, or an HTML page."
    return option(more.pop("default", TABLE), help_text or general, choices=formats, **more)


def json_option() -> Any:
    """Return the option that is short for --format json."""
    return option(False, "Print one JSON object: --format json.")


def printable(text: str) -> str:
    """Text for a terminal that a server or a file of others may have written: what controls it is spelt out."""
    return "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text)


def print_note(program: str, line: str) -> None:
    """Write a line of a command to standard error; a full disk behind it takes no result away."""
    with suppress(OSError):
        sys.stderr.write(f"{program}: {line}\n")
        sys.stderr.flush()


def check_printed(options: Any) -> None:
    """Raise OptionError for a value outside its bounds, and for two formats of standard output. Sections check
    themselves."""
    check_options(options)
    printed_format(options)


def printed_format(options: Any) -> str:
    """Return the format of standard output. Raises OptionError for two that differ."""
    if not options.json:
        return str(options.format)
    default = type(options).__dataclass_fields__["format"].default
    if options.format not in (default, JSON):
        raise ExclusionError("--json", f"--format {options.format}")
    return JSON

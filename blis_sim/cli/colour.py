"""Colours of help on a terminal."""

import os
import re
import sys

_BOLD, _CYAN, _GREEN, _END = "\x1b[1m", "\x1b[36m", "\x1b[32m", "\x1b[0m"
_RULES = (
    (r"^()(Usage:|[A-Z][^\n:]*:$)", _BOLD),
    (r"^(  )(--?[a-zA-Z][^\n]*?)(?=  |$)", _CYAN),
    (r"^(  )(blis [^\n]*|[a-z]+(?: [a-z]+)?(?=  ))", _GREEN),
)


def coloured(page: str) -> str:
    """The page with coloured headings, flags and commands where standard output shows colours.

    NO_COLOR forbids colours and FORCE_COLOR demands them, as other programs have it.
    """
    if not _shows_colours():
        return page
    for pattern, code in _RULES:
        page = re.sub(pattern, rf"\1{code}\2{_END}", page, flags=re.MULTILINE)
    return page


def _shows_colours() -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

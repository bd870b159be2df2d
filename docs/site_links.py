"""Hooks of the site: links to files of the project that are no pages become their names; the search has a name."""

import re
from typing import Any

_OUTSIDE = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<path>\.\./[^)#\s]*)(?P<heading>#[^)\s]*)?\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the text of a page with the paths of files outside of the site in the place of links to them."""
    return _OUTSIDE.sub(_named, markdown)


def on_post_page(output: str, **_: Any) -> str:
    """Return the HTML of a page with a name for the dialog of the theme's search, which has none."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def _named(link: re.Match[str]) -> str:
    path = link["path"].removeprefix("../")
    return link["text"] if path in link["text"] else f"{link['text']} (`{path}`)"

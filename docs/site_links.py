"""A hook of the site: links to files of the project that are no pages become their names."""

import re
from typing import Any

_OUTSIDE = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<path>\.\./[^)#\s]*)(?P<heading>#[^)\s]*)?\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the text of a page with the paths of files outside of the site in the place of links to them."""
    return _OUTSIDE.sub(_named, markdown)


def _named(link: re.Match[str]) -> str:
    path = link["path"].removeprefix("../")
    return link["text"] if path in link["text"] else f"{link['text']} (`{path}`)"

"""Hooks of the site: links to files that are no pages become their names; what readers of a screen need."""

import re
from typing import Any

_OUTSIDE = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<path>\.\./[^)#\s]*)(?P<heading>#[^)\s]*)?\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the text of a page with the paths of files outside of the site in the place of links to them."""
    return _OUTSIDE.sub(_named, markdown)


def on_post_page(output: str, **_: Any) -> str:
    """Return the HTML of a page with a name for the search, and without heads of tables that have no words."""
    named = output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
    return re.sub(r"<th([^>]*)></th>", r"<td\1></td>", named)


def on_post_template(output_content: str, **_: Any) -> str:
    """Return the HTML of a page that is none of the documentation, such as that for an address that does not exist."""
    return on_post_page(output_content)


def _named(link: re.Match[str]) -> str:
    path = link["path"].removeprefix("../")
    return link["text"] if path in link["text"] else f"{link['text']} ({path})"

"""The site is built without a warning, and has every page in its navigation."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import PROJECT


def pages_in(part: Any) -> Iterator[str]:
    """The pages of a part of the navigation."""
    if isinstance(part, str):
        yield part
    else:
        for each in part.values() if isinstance(part, dict) else part:
            yield from pages_in(each)


def test_every_page_is_in_the_navigation_once() -> None:
    navigation = yaml.safe_load((PROJECT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert sorted(pages_in(navigation)) == sorted(page.name for page in (PROJECT / "docs").glob("*.md"))


@pytest.mark.slow
def test_the_site_is_built_strictly(tmp_path: Path) -> None:
    pytest.importorskip("material")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    start = (tmp_path / "site" / "quick-start.html").read_text(encoding="utf-8")
    assert "blis run --model qwen/qwen3-14b" in re.sub(r"<[^>]*>", "", start)
    loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?://[^"]+)"', start)
    assert loaded == []

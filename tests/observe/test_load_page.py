"""The page of a load."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Observe: TypeAlias = Callable[..., Any]


@pytest.mark.slow
def test_the_page_has_the_summary_pictures_and_origin_without_secrets(observe: Observe, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    observe(model="ok", html=str(tmp_path / "load.html"), api_key="confidential", header=("X-Token=hidden",))
    text = (tmp_path / "load.html").read_text()
    assert "<title>Load on ok</title>" in text
    assert "10 completed, 0 failed" in text
    assert text.count("<svg") == 5
    assert "--api-key ..." in text
    assert "confidential" not in text
    assert "hidden" not in text

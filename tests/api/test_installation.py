"""A missing extra is named with the command that adds it to this very installation."""

import json
from typing import Any

import pytest

from blis_sim.installation import install_command


class Installed:
    """An installed package with the record that pip leaves of its origin."""

    def __init__(self, origin: dict[str, Any] | None) -> None:
        self.origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.origin is None else json.dumps(self.origin)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'blis-mockserve[plots]'"),
        ({"url": "file:///home/me/my%20blis", "dir_info": {}}, "pip install '/home/me/my blis[plots]'"),
        ({"url": "file:///src/blis", "dir_info": {"editable": True}}, "pip install -e '/src/blis[plots]'"),
        ({"url": "file:///tmp/blis.whl", "archive_info": {}}, "pip install '/tmp/blis.whl[plots]'"),
        (
            {"url": "https://host/blis.git", "vcs_info": {"vcs": "git", "requested_revision": "v1"}},
            "pip install 'blis-mockserve[plots] @ git+https://host/blis.git@v1'",
        ),
        (
            {"url": "https://host/blis.git", "vcs_info": {"vcs": "git", "commit_id": "a"}},
            "pip install 'blis-mockserve[plots] @ git+https://host/blis.git'",
        ),
        (
            {"url": "https://host/blis-1.tar.gz", "archive_info": {}},
            "pip install 'blis-mockserve[plots] @ https://host/blis-1.tar.gz'",
        ),
    ],
)
def test_the_command_names_where_the_package_came_from(
    monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, command: str
) -> None:
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: Installed(origin))
    assert install_command("plots") == command

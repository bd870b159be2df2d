"""A command added the way commands are added: by its row."""

from collections.abc import Callable

import pytest

from blis_sim.cli.commands import COMMANDS, CommandRow
from blis_sim.cli.main import run

Said = tuple[int, str, str]
"""Exit code, stdout, stderr."""


@pytest.fixture
def blis(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Runs `blis` with the given arguments; besides the real commands there is one called `toy`."""
    row = CommandRow("Do nothing much.", "tests.cli.toy_command", "ToyOptions")
    monkeypatch.setitem(COMMANDS, "toy", row)

    def run_blis(*arguments: str) -> Said:
        code = run(list(arguments))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run_blis

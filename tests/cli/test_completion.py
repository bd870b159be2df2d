"""The candidates that a shell offers after the words typed so far."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from blis_sim.cli.help import candidates
from tests.cli.conftest import Said
from tests.cli.terminal import typing_into
from tests.docs.pages import PROJECT

Blis = Callable[..., Said]


@pytest.mark.parametrize(
    ("words", "some", "none"),
    [
        ([], {"serve", "bench", "calibrate"}, {"--port"}),
        (["bench"], {"serve", "tune"}, {"sweep", "bench"}),
        (["help"], {"serve", "bench"}, {"--port"}),
        (["nonsense"], set(), {"serve", "--help"}),
        (["serve", "m"], {"--port", "--async-scheduling", "--no-async-scheduling", "--help"}, {"MODEL", "serve"}),
        (["bench", "serve"], {"--request-rate"}, {"--latency-model"}),
        (["run", "--latency-model"], {"roofline", "fitted"}, {"--rate"}),
        (["run", "--rate"], set(), {"--rate", "roofline"}),
        (["run", "--json"], {"--rate"}, set()),
        (["observe"], {"--url"}, {"--accepted-without-effect"}),
    ],
)
def test_candidates_for_the_next_word_are_offered(words: list[str], some: set[str], none: set[str]) -> None:
    found = set(candidates(words))
    assert some <= found
    assert not none & found


def test_the_shell_asks_and_gets_a_line_for_each(blis: Blis) -> None:
    assert blis("--complete", "run", "--arrival") == (0, "poisson\ngamma\nweibull\nconstant\n", "")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Write a `blis` that prints its arguments, except for questions of the shell."""
    (tmp_path / "wealth.yaml").touch()
    path = tmp_path / "blis"
    path.write_text(
        f"""#!/bin/sh
case $1 in
  --complet*) PYTHONPATH={PROJECT} exec {sys.executable} -m blis_sim.cli "$@" ;;
  *) echo "<$*>" ;;
esac
"""
    )
    path.chmod(0o755)
    return path


SHELLS = {
    "bash": (["bash", "--norc", "-i"], "PS1='% '; eval \"$(blis --completion bash)\""),
    "zsh": (["zsh", "-f", "-i"], "PS1='%% '; eval \"$(blis --completion zsh)\""),
    "fish": (
        ["fish", "--no-config", "-i"],
        "function fish_prompt; echo '% '; end; blis --completion fish | source",
    ),
}
"""How to start each without the settings of a user, and what such settings would be."""


@pytest.mark.parametrize("shell", SHELLS)
def test_the_tab_key_completes_in_a_terminal(shell: str, program: Path) -> None:
    command, settings = SHELLS[shell]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    with typing_into(command, program.parent) as terminal:
        terminal.say(f"{settings}; echo rea''dy\n")
        terminal.wait_for("ready")
        for typed, completed in (
            ("bench thr\t", "bench throughput"),
            ("run --arrival wei\t", "run --arrival weibull"),
            ("run --num-req\t5", "run --num-requests 5"),
            ("replay wea\t", "replay wealth.yaml"),
        ):
            terminal.say(f"blis {typed}\n")
            terminal.wait_for(f"<{completed}>")

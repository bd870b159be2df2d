"""The words that a shell offers after those typed so far, by typer's completion."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Said
from tests.cli.terminal import typing_into
from tests.docs.pages import PROJECT

Blis = Callable[..., Said]


@pytest.fixture
def offered(blis: Blis, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], set[str]]:
    """The words that bash gets for a line whose last word is not complete."""

    def words(line: str) -> set[str]:
        monkeypatch.setenv("_BLIS_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", f"blis {line}")
        monkeypatch.setenv("COMP_CWORD", str(len(f"{line}.".split())))
        code, out, err = blis()
        assert (code, err) == (0, "")
        return set(out.split())

    return words


@pytest.mark.parametrize(
    ("line", "some", "none"),
    [
        ("", {"serve", "bench", "calibrate"}, {"--port"}),
        ("bench ", {"serve", "tune"}, {"sweep", "bench"}),
        ("nonsense ", set(), {"tune", "--help"}),
        ("serve m --", {"--port", "--async-scheduling", "--no-async-scheduling", "--help"}, {"MODEL", "serve"}),
        ("serve m --po", {"--port"}, {"--host"}),
        ("bench serve --", {"--request-rate"}, {"--latency-model"}),
        ("run --latency-model ", {"roofline", "fitted"}, {"--rate"}),
        ("run --latency-model=ro", {"roofline"}, {"fitted"}),
        ("run --rate ", set(), {"--rate", "roofline"}),
        ("run --json --", {"--rate"}, set()),
        ("observe --", {"--url"}, {"--accepted-without-effect"}),
        ("serve qwen3-1", {"qwen3-14b"}, {"llama-3.1-8b-instruct"}),
        ("run --model qwen3-1", {"qwen3-14b"}, {"qwen3-32b"}),
        ("run --hardware H", {"H100", "H200"}, {"B200"}),
        ("gpus B", {"B200"}, {"H100"}),
    ],
)
def test_words_that_may_come_next_are_offered(
    offered: Callable[[str], set[str]], line: str, some: set[str], none: set[str]
) -> None:
    found = offered(line)
    assert some <= found
    assert not none & found


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Write a `blis` that prints its arguments, except for questions of the shell."""
    (tmp_path / "wealth.yaml").touch()
    path = tmp_path / "blis"
    path.write_text(
        f"""#!/bin/sh
if [ -n "$_BLIS_COMPLETE" ]; then
  PYTHONPATH={PROJECT} exec {sys.executable} -m blis_sim.cli "$@"
else
  echo "<$*>"
fi
"""
    )
    path.chmod(0o755)
    return path


SHELLS = {
    "bash": (["bash", "--norc", "-i"], "PS1='% '; eval \"$(_BLIS_COMPLETE=source_bash blis)\""),
    "zsh": (
        ["zsh", "-f", "-i"],
        "PS1='%% '; autoload -Uz compinit; compinit; eval \"$(_BLIS_COMPLETE=source_zsh blis)\"",
    ),
    "fish": (
        ["fish", "--no-config", "-i"],
        "function fish_prompt; echo '% '; end; _BLIS_COMPLETE=source_fish blis | source",
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
            ("run --hardware H2\t", "run --hardware H20"),
        ):
            terminal.say(f"blis {typed}\n")
            terminal.wait_for(f"<{completed}>")

"""What a shell offers after the words typed so far."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from blis_cli.completion import candidates
from tests.blis_cli.conftest import Said
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
def test_what_may_come_next_is_offered(words: list[str], some: set[str], none: set[str]) -> None:
    found = set(candidates(words))
    assert some <= found
    assert not none & found


def test_the_shell_asks_and_gets_a_line_for_each(blis: Blis) -> None:
    assert blis("--complete", "run", "--arrival") == (0, "poisson\ngamma\nweibull\nconstant\n", "")


@pytest.mark.parametrize(("typed", "found"), [("bench t", "throughput tune"), ("run --arrival wei", "weibull")])
def test_bash_completes_with_the_script(typed: str, found: str, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    program = tmp_path / "blis"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={PROJECT} exec {sys.executable} -m blis_cli "$@"\n')
    program.chmod(0o755)
    asking = (
        f'eval "$({program} --completion)"; COMP_WORDS=({program} {typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1));'
    )
    done = subprocess.run(
        [bash, "-c", f'{asking} _blis {program}; echo "${{COMPREPLY[*]}}"'], capture_output=True, text=True, check=False
    )
    assert (done.stdout.split(), done.stderr, done.returncode) == (found.split(), "", 0)

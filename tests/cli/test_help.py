"""Help: letters, groups of settings, examples, colours, and the time it takes."""

import importlib
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from blis_sim.cli.commands import COMMANDS, FIRST_STEPS
from blis_sim.options import options_from, options_of
from blis_sim.options.text import check_required, parse_command_line
from tests.cli.conftest import Said
from tests.docs.pages import PROJECT

Blis = Callable[..., Said]
GROUPED = [name for name, row in COMMANDS.items() if row.main]
HELP_CPU_S = 0.3


@pytest.mark.parametrize("command", COMMANDS)
def test_the_short_help_flag_equals_the_long_one(blis: Blis, command: str) -> None:
    assert blis(*command.split(), "-h") == blis(*command.split(), "--help")


def test_the_overview_has_letters_too(blis: Blis) -> None:
    assert blis("-h") == blis("--help")
    assert blis("-V") == blis("--version")
    assert blis("bench", "-h") == blis("bench", "--help")


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_are_command_lines_of_the_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    row = COMMANDS[command]
    module = importlib.import_module(row.module)
    options_class = getattr(module, row.options)
    assert row.examples
    for example in (*row.examples, *(each for each in FIRST_STEPS if each.startswith(f"blis {command} "))):
        program, *words = shlex.split(example)
        assert (program, words[: len(command.split())]) == ("blis", command.split())
        arguments = words[len(command.split()) :]
        found = parse_command_line(options_class, module.rewritten(arguments) if row.has_other_syntax else arguments)
        check_required(options_class, found.values)
        options_from(options_class, **found.values)


def test_examples_that_need_nothing_else_run(blis: Blis) -> None:
    for command in ("run", "models", "gpus", "bench latency"):
        example = COMMANDS[command].examples[0]
        code, out, _ = blis(*shlex.split(example)[1:])
        assert (code, bool(out)) == (0, True), example


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_stand_in_the_help(blis: Blis, command: str) -> None:
    lines = blis(*command.split(), "--help")[1].splitlines()
    assert [each for each in COMMANDS[command].examples if f"  {each}" not in lines] == []


@pytest.mark.parametrize("command", GROUPED)
def test_help_of_many_options_explains_the_main_ones_and_names_all(blis: Blis, command: str) -> None:
    out = blis(*command.split(), "--help")[1]
    whole = blis(*command.split(), "--help=all")[1]
    assert len(out) < 0.7 * len(whole)
    words = out.replace(",", " ").split()
    row = COMMANDS[command]
    settings = options_of(getattr(importlib.import_module(row.module), row.options))
    shown = [each for each in settings if not each.option.hidden and not each.option.positional]
    assert [each.name for each in shown if each.flags[0] not in words] == []
    assert set(row.main) - {"Arguments", "Options"} <= {each.heading for each in shown}
    for topic in re.findall(r"--help=(\S+)  ", out):
        assert blis(*command.split(), f"--help={topic}")[1].strip() in whole


def test_help_about_a_flag_or_a_part_of_a_groups_name(blis: Blis) -> None:
    assert blis("run", "--help=rate")[1].split()[:3] == ["Workload:", "--rate", "X"]
    assert blis("run", "--help=--tensor-parallel-size")[1].split()[:3] == ["Model", "and", "GPU:"]
    assert blis("serve", "--help=faults")[1].startswith("Faults on purpose:\n")
    code, out, err = blis("run", "--help=nothing")
    assert (code, out) == (2, "")
    assert err.startswith("blis run: error: --help=nothing: no such group or flag, known are all, workload, ")


def test_required_options_stand_in_the_usage(blis: Blis) -> None:
    assert blis("run", "--help")[1].startswith("Usage: blis run [OPTIONS] --model TEXT\n")
    assert "--url, --server-url TEXT" in blis("observe", "--help")[1].splitlines()[0]


@pytest.mark.parametrize(
    ("words", "question"),
    [
        (["SERVE"], "did you mean 'serve'?"),
        (["serv"], "did you mean 'serve'?"),
        (["run", "--num_requests", "3"], "did you mean --num-requests?"),
        (["serve", "qwen/qwen3-14b", "--max-num-sqs", "3"], "did you mean --max-num-seqs?"),
        (["plan", "--model", "x", "--ttft-p9", "1s"], "did you mean --ttft-p99?"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest_one(blis: Blis, words: list[str], question: str) -> None:
    code, _, err = blis(*words)
    assert (code, question in err) == (2, True), err


def test_help_is_coloured_where_it_is_asked_for(blis: Blis, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = blis("run", "--help")[1]
    assert "\x1b" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = blis("run", "--help")[1]
    assert "\x1b[1mWorkload:\x1b[0m\n" in coloured
    assert "  \x1b[36m--rate X\x1b[0m  " in coloured
    assert re.sub("\x1b\\[[0-9]*m", "", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert blis("run", "--help")[1] == plain


def test_help_of_blis_takes_less_than_a_third_of_a_second_of_cpu() -> None:
    took = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "blis_sim.cli", "--help"]
        subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(took) < HELP_CPU_S

"""Help: what people look for first, all settings on request, examples, colours, and the time it takes."""

import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from blis_sim.cli.app import SimulatorCommand
from blis_sim.cli.commands import COMMANDS, FIRST_STEPS
from blis_sim.options import options_from, options_of
from blis_sim.options.command_line import check_required, parse_command_line
from tests.cli.conftest import Said
from tests.docs.pages import PROJECT

Blis = Callable[..., Said]
SHORT = [name for name, row in COMMANDS.items() if row.first]
HELP_CPU_S = 0.3
PAGES: dict[tuple[str, ...], Said] = {}


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal in which no line is wrapped."""
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture
def page(blis: Blis) -> Blis:
    """As `blis`, but what prints a page of help is run once for all tests."""

    def found(*words: str) -> Said:
        if words not in PAGES:
            PAGES[words] = blis(*words)
        return PAGES[words]

    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_the_short_help_flag_equals_the_long_one(page: Blis, command: str) -> None:
    assert page(*command.split(), "-h") == page(*command.split(), "--help")


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
    found = SimulatorCommand(command, row)
    assert row.examples
    for example in (*row.examples, *(each for each in FIRST_STEPS if each.startswith(f"blis {command} "))):
        program, *words = shlex.split(example)
        assert (program, words[: len(command.split())]) == ("blis", command.split())
        arguments = words[len(command.split()) :]
        line = parse_command_line(
            found.options,
            found.module.rewritten(arguments) if row.has_other_syntax else arguments,
            passes_flags_on=row.passes_flags_on,
        )
        check_required(found.options, line.values)
        options_from(found.options, **line.values)


@pytest.mark.slow
def test_examples_that_need_nothing_else_run(blis: Blis) -> None:
    for command in ("run", "models", "gpus", "bench latency"):
        example = COMMANDS[command].examples[0]
        code, out, _ = blis(*shlex.split(example)[1:])
        assert (code, bool(out)) == (0, True), example


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_stand_in_the_help(page: Blis, command: str) -> None:
    lines = [line.strip() for line in page(*command.split(), "--help")[1].splitlines()]
    assert [each for each in COMMANDS[command].examples if f"$ {each}" not in lines] == []


@pytest.mark.parametrize("command", SHORT)
def test_what_people_look_for_first_is_first_and_the_only_part_of_the_short_help(page: Blis, command: str) -> None:
    row = COMMANDS[command]
    settings = options_of(SimulatorCommand(command, row).options)
    known = {flag for each in settings for flag in each.flags}
    assert set(row.first) <= known
    short = flags_in(page(*command.split(), "--help")[1])
    required = [each.flags[0] for each in settings if each.required and not each.option.positional]
    assert [flag for flag in short if flag in row.first] == list(row.first)
    assert set(short) & known <= {*row.first, *required} | {
        flag for each in settings if each.flags[0] in (*row.first, *required) for flag in each.flags
    }
    every = flags_in(page(*command.split(), "--help-all")[1])
    assert [flag for flag in every if flag in row.first] == list(row.first)
    assert {each.flags[0] for each in settings if not (each.option.hidden or each.option.positional)} <= set(every)


def test_the_address_stands_before_the_exchange_of_experts(page: Blis) -> None:
    every = flags_in(page("serve", "--help-all")[1])
    places = [every.index(flag) for flag in ("--host", "--port", "--api-key", "--max-model-len", "--max-num-seqs")]
    assert max(places) < every.index("--moe-comm-backend")


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in SHORT])
def test_a_command_of_few_settings_always_shows_all(page: Blis, command: str) -> None:
    assert page(*command.split(), "--help") == page(*command.split(), "--help-all")


def test_headings_part_the_settings(page: Blis) -> None:
    titles = [line.split("─")[1].strip() for line in page("serve", "--help-all")[1].splitlines() if line[:1] == "╭"]
    assert titles[:2] == ["Arguments", "Most used"]
    assert titles[-1] == "Help"
    assert {"Model and GPU", "Network", "Speculative decoding"} <= set(titles)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_help_text_has_a_place_that_nothing_fills(command: str) -> None:
    """Such as `{DEFAULT_RATE:g}`, of a string that lacks its f."""
    for setting in options_of(SimulatorCommand(command, COMMANDS[command]).options):
        assert not re.search(r"\{[A-Za-z_.]+(:\w*)?\}", setting.option.help), setting.flags


def test_required_options_are_marked(page: Blis) -> None:
    (line,) = [line for line in page("run", "--help")[1].splitlines() if "--model" in line and "[required]" in line]
    assert line.split()[1] == "*"


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


def test_help_is_coloured_where_it_is_asked_for() -> None:
    assert b"\x1b[" not in shown("run")
    assert b"36m-rate" in shown("run", FORCE_COLOR="1")
    assert b"36m" not in shown("run", FORCE_COLOR="1", NO_COLOR="1")


@pytest.mark.slow
def test_help_of_blis_takes_less_than_a_third_of_a_second_of_cpu() -> None:
    took = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        shown()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(took) < HELP_CPU_S


def shown(*command: str, **environment: str) -> bytes:
    """The help that a process of its own prints."""
    words = [sys.executable, "-m", "blis_sim.cli", *command, "--help"]
    variables = {"PATH": "/usr/bin", "TERM": "xterm-256color", **environment}
    return subprocess.run(words, cwd=PROJECT, check=True, capture_output=True, env=variables).stdout


def flags_in(page: str) -> list[str]:
    """The flags of a help in their order."""
    rows = [line.strip("│ *").split("  ")[0] for line in page.splitlines() if line[:1] == "│"]
    return [flag for row in rows for flag in row.split(",") if flag.startswith("-")]

"""`blis observe --url URL` alone: the load that is sent, and what is recorded."""

import pytest

from blis_sim.options import options_from
from blis_sim.options.command_line import parse_command_line
from observe.command import rewritten
from observe.options import ObserveOptions

URL = ["--url", "http://localhost:8000"]


def options_of_command(*arguments: str) -> ObserveOptions:
    return options_from(ObserveOptions, **parse_command_line(ObserveOptions, rewritten([*URL, *arguments])).values)


def test_the_load_without_flags_is_gentle_and_named_in_the_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    found = options_of_command()
    assert (found.rate, found.num_requests, found.prompt_tokens, found.output_tokens) == (1.0, 30, 512, 128)
    assert (found.max_concurrency, found.record_itl, found.output) == (8, True, "blis-trace")
    said = capsys.readouterr().err
    assert said.startswith("blis observe: --output blis-trace --rate 1 --num-requests 30 --prompt-tokens 512 ")
    assert said.endswith(" (flags win over these)\n")


@pytest.mark.parametrize(
    ("flags", "rate", "num_requests", "cap"),
    [
        (["--rate", "4"], 4.0, 120, 0),
        (["--rate", "0.001"], 0.001, 1, 0),
        (["--num-requests", "5"], 1.0, 5, 8),
        (["--max-concurrency", "2"], 1.0, 30, 2),
        (["--processes", "2"], 1.0, 30, 0),
    ],
)
def test_a_flag_does_what_it_says(flags: list[str], rate: float, num_requests: int, cap: int) -> None:
    found = options_of_command(*flags)
    assert (found.rate, found.num_requests, found.max_concurrency) == (rate, num_requests, cap)


def test_a_load_of_a_file_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    given = [*URL, "--workload-spec", "w.yaml", "-o", "out"]
    assert rewritten(given) == given
    assert rewritten([*URL, "--proxy", "8001", "-o", "out"]) == [*URL, "--proxy", "8001", "-o", "out"]
    assert capsys.readouterr().err == ""


def test_only_a_load_without_flags_has_a_new_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert options_of_command("--rate", "2").prompt_seed == 42
    assert options_of_command("--seed", "7").prompt_seed == 7
    assert options_of_command().prompt_seed > 1_700_000_000


def test_a_command_line_without_a_server_or_with_a_request_for_help_stays_as_it_is() -> None:
    assert rewritten([]) == []
    assert rewritten([*URL, "--help"]) == [*URL, "--help"]


def test_a_server_needs_no_scheme_and_a_second_flag_names_a_second_server() -> None:
    found = options_of_command("--url", "localhost:8123")
    assert [(each.host, each.port, each.tls) for each in found.servers] == [
        ("localhost", 8000, False),
        ("localhost", 8123, False),
    ]

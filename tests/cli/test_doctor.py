"""`blis doctor`: findings, verdicts and exit codes."""

import json
import resource
import shlex
from collections.abc import Callable

import pytest

from blis_sim.cli import doctor_command
from tests.cli.conftest import Said

Blis = Callable[..., Said]


def checks(printed: str) -> dict[str, dict[str, str]]:
    return {each["check"]: each for each in json.loads(printed)["checks"]}


def test_the_host_is_described_in_one_table(blis: Blis) -> None:
    code, out, err = blis("doctor")
    lines = out.splitlines()
    assert err == ""
    assert code == int("FAILED" in out)
    assert lines[0].split() == ["check", "found", "verdict"]
    assert [line.split("  ")[0] for line in lines[1:] if line[0] != " "] == [
        "Python", "cores", "load average", "timer", "open files", "memory", "extras",
    ]  # fmt: skip
    assert "tokenizers" in out
    assert max(map(len, lines)) <= 80


@pytest.mark.slow
def test_a_load_is_tried_with_a_server_and_a_load_generator(blis: Blis) -> None:
    _, *words = shlex.split("blis doctor --rate 8 --streams 4 --duration 0.5")
    code, out, _ = blis(*words, "--json")
    found = checks(out)
    assert found["tried"]["found"] == "load of 8 requests/s, 4 streams, 200 tokens/s"
    assert found["answered"]["found"] == "4 of 4"
    assert {"tokens late", "requests late", "server's CPU"} <= set(found)
    failed = [name for name, each in found.items() if each["verdict"] == "failed"]
    assert (code, json.loads(out)["ok"]) == (int(bool(failed)), not failed)


def test_too_few_files_for_the_streams_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    by_name = {each.check: each for each in doctor_command.findings(5000)}
    assert by_name["open files"].verdict == doctor_command.FAILED
    assert by_name["open files"].advice == "5000 streams need 10100: raise ulimit -Hn"
    by_name = {each.check: each for each in doctor_command.findings(None)}
    assert by_name["open files"].advice == "enough for 462 streams: raise ulimit -Hn"


@pytest.mark.parametrize(
    ("late_ms", "verdict"),
    [(0.1, doctor_command.OK), (5.0, doctor_command.WARNING), (50.0, doctor_command.FAILED)],
    ids=lambda each: str(each),
)
def test_the_timer_is_judged_by_how_late_sleeps_end(
    late_ms: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lateness() -> list[float]:
        return [late_ms] * 100

    monkeypatch.setattr(doctor_command, "_lateness_ms", lateness)
    (found,) = [each for each in doctor_command.findings(None) if each.check == "timer"]
    assert found.verdict == verdict


def test_streams_that_leave_no_time_for_a_token_are_refused(blis: Blis) -> None:
    code, _, err = blis("doctor", "--rate", "1000", "--streams", "1")
    assert code == 2
    assert err == (
        "blis doctor: error: --streams 1 at --rate 1000 leave a request 0.001 s, less than a token of --itl-ms 20\n"
    )

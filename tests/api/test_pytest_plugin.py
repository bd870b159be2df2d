"""The pytest plugin in a stranger's folder, with a real server and pytest as a process of its own."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from blis_sim.testing import ServerError, server

STRANGER = """
import urllib.request


def test_a_server_answers(blis_server):
    assert urllib.request.urlopen(blis_server.url + "/health").status == 200


def test_counts_begin_with_the_test(blis_server):
    body, headers = b'{"prompt": "hi", "max_tokens": 2}', {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(blis_server.base_url + "/completions", body, headers))
    assert blis_server.count("vllm:request_success_total", finished_reason="length") == 1
    assert blis_server.count("vllm:generation_tokens_total") == 2


def test_nothing_is_counted_yet_and_no_fault_is_left(blis_server):
    assert blis_server.count("vllm:generation_tokens_total") == 0
    blis_server.set_faults(rates={"overloaded": 1})


def test_faults_end_with_the_test(blis_server):
    test_counts_begin_with_the_test(blis_server)


def test_a_reply_is_what_was_set(blis_server):
    blis_server.reply("Tuesday.", last_user_regex="day")
    test_counts_begin_with_the_test(blis_server)
    assert [each.answered_by for each in blis_server.requests] == ["generated"]
    body, headers = b'{"prompt": "Which day?"}', {"Content-Type": "application/json"}
    request = urllib.request.Request(blis_server.base_url + "/completions", body, headers)
    assert b'"text":"Tuesday."' in urllib.request.urlopen(request).read()


def test_replies_and_requests_are_forgotten_with_the_test(blis_server):
    assert blis_server.requests == []
    test_counts_begin_with_the_test(blis_server)


def test_that_fails(blis_server):
    urllib.request.urlopen(blis_server.url + "/no-such-route")
"""


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    assert [each.value for each in entry_points(group="pytest11", name="blis")] == ["blis_sim.pytest_plugin"]


@pytest.mark.slow
def test_a_strangers_tests_share_a_server_with_a_fresh_view_for_each(tmp_path: Path) -> None:
    (tmp_path / "test_stranger.py").write_text(STRANGER)
    (tmp_path / "pytest.ini").write_text("[pytest]\nblis_flags = qwen3-14b --speed max --seed 3\n")
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert "1 failed, 6 passed" in done.stdout, done.stdout + done.stderr
    assert "Log of blis serve" in done.stdout


def test_a_server_that_cannot_start_has_the_reason_in_its_error() -> None:
    with pytest.raises(ServerError, match=r"\./no-such-model"), server("./no-such-model"):
        pass


def test_what_a_server_cannot_do_is_named_and_it_ends_with_its_context() -> None:
    with server("qwen3-14b", "--speed", "max") as running:
        with pytest.raises(ValueError, match=r"match: expected path, model, .* got 'user'"):
            running.reply("a", user="b")
        with pytest.raises(ValueError, match=r"fault: .* got 'sleepy'"):
            running.reply("a", fault="sleepy")
        with pytest.raises(KeyError, match="vllm:nothing"):
            running.count("vllm:nothing")
        assert running.process.poll() is None
    assert running.process.poll() == 0

"""Messages of a measurement, which may repeat what a server wrote."""

import pytest

from observe.errors import print_message


def test_what_a_server_wrote_does_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_message("HTTP 400: \x1b[2J\x9bm\ré\nnext line")
    assert capsys.readouterr().err == r"HTTP 400: \x1b[2J\x9bm\ré" + "\nnext line\n"

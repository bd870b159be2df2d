"""The example of policies of one's own prints what its page shows."""

import pytest

from tests.docs.pages import PROJECT, fences, run_script


@pytest.mark.slow
def test_the_example_prints_the_lines_of_its_page() -> None:
    done = run_script("examples/cluster_policies.py")
    assert done.returncode == 0, done.stderr
    (command,) = (
        command
        for fence in fences(PROJECT / "docs" / "cluster.md")
        for command in fence.commands
        if command.text == "python examples/cluster_policies.py"
    )
    assert done.stdout.splitlines() == list(command.expected)

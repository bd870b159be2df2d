import pytest

from tests.docs.pages import run_script


@pytest.mark.slow
def test_the_example_passes() -> None:
    """`pytest examples/test_with_blis.py`, with nothing of our own settings."""
    done = run_script("-m", "pytest", "-c", "/dev/null", "-p", "no:cacheprovider", "-q", "examples/test_with_blis.py")
    assert (done.returncode, "6 passed" in done.stdout) == (0, True), done.stdout

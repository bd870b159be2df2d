"""The two ways in which tests reach reference data: tables of the project, and the folder that is not part of it."""

import os
import re
import signal
from pathlib import Path

import pytest
from hypothesis import settings

import tests.examples  # noqa: F401 (registers the profiles)
from tests.reference.tables import TABLES, write_files

pytest_plugins = ["tests.cpu_budget", "tests.worker_shares"]
settings.load_profile("daily")


# A shell in the background lets its commands, and all they start, ignore Ctrl-C; tests that send it mean it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


PROJECT = Path(__file__).resolve().parents[1]
USES_WORKSHOP = re.compile(r"^ *(from|import) workshop\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that use the workshop where there is none, as in a source distribution.

    With `-m slow` alone, files without slow tests are left out too: each process would import them for nothing.
    """
    if collection_path.suffix != ".py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    if config.option.markexpr == "slow" and "mark.slow" not in text:
        return True
    return (not (PROJECT / "workshop").is_dir() and bool(USES_WORKSHOP.search(text))) or None


os.environ["VLLM_LOG_STATS_INTERVAL"] = "86400"
"""Servers that tests share write no line about throughput into the output of a test."""


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference results and recordings beside the checkout; tests that need it skip without it.

    `BLIS_SHARED` names it when it lies elsewhere.
    """
    folder = Path(os.environ.get("BLIS_SHARED", PROJECT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"reference data not found at {folder}; set BLIS_SHARED to its folder")
    return folder


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of reference results laid out as `shared`, made of the tables in `tests/reference`.

    Printed texts are represented by their figures, and distributions by the sorted values of one column.
    """
    folder = tmp_path_factory.mktemp("reference")
    for table in TABLES:
        write_files(table, folder / "golden")
    return folder

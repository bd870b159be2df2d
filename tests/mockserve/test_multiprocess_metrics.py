"""The metrics page in the form of prometheus_client's multi-process mode, compared with that mode itself."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, generate_latest
from prometheus_client.core import Metric

from mockserve.metrics.page import TYPES, as_in_multiprocess_mode


def observe(registry: CollectorRegistry) -> None:
    """Make metrics of each type, in an order that is not that of the page."""
    running = Gauge("vllm:num_requests_running", "R.", ["engine"], registry=registry, multiprocess_mode="mostrecent")
    running.labels("0")  # labelled, and never set
    info = Gauge("vllm:cache_config_info", "I.", ["b", "a"], registry=registry, multiprocess_mode="mostrecent")
    info.labels("1", "2").set(1)
    waits = Histogram("waits", "W.", ["engine"], registry=registry, buckets=(0.5, 10))
    for engine, value in (("1", 0.1), ("0", 3.0), ("0", 0.2)):
        waits.labels(engine).observe(value)
    Histogram("all", "A.", registry=registry, buckets=(1,)).observe(0.3)
    Summary("sizes", "S.", ["handler"], registry=registry).labels("/x").observe(12)
    tokens = Counter("tokens", "T.", ["source", "engine"], registry=registry)
    tokens.labels("b", "1").inc(3)
    tokens.labels("a", "0")
    Counter("http_requests", "H.", ["status"], registry=registry)  # without a series


GENUINE = """
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from tests.mockserve.test_multiprocess_metrics import observe
observe(CollectorRegistry())
registry = CollectorRegistry()
MultiProcessCollector(registry)
print(generate_latest(registry).decode(), end="")
"""


def by_type(page: str) -> list[str]:
    """The families in the order of their types; that of the files, one for each type, is any."""
    families = [f"# HELP {each}" for each in page.split("# HELP ")[1:]]
    return sorted(families, key=lambda each: TYPES.index(each.split("# TYPE ")[1].split()[1]))


class Fixed(CollectorRegistry):
    """A registry of families as they are."""

    def __init__(self, families: list[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return as_in_multiprocess_mode(self._families)


def test_the_page_is_that_of_the_multi_process_mode(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GENUINE],
        env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    single = CollectorRegistry()
    observe(single)
    families = list(single.collect())
    families[0].samples = []  # those of a gauge that was never set
    ours = generate_latest(Fixed(families)).decode()
    assert by_type(ours) == by_type(done.stdout)
    assert by_type(ours) == [f"# HELP {each}" for each in ours.split("# HELP ")[1:]], "families are in order of type"

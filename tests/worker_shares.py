"""Which of the slow tests one worker runs, and in which order.

Tests of a file whose fixtures are set up once for all of them stay together, as do files that name one `xdist_group`.
All others go to whichever worker is free. What takes longest begins first: then no worker ends long after the others.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

LONGEST = (
    "tests/compiled/test_compiled_engine.py",
    "tests/docs/test_commands.py",
    "tests/wings/ray/test_on_ray.py",
    "tests/wire/test_attack.py",
    "tests/wire/test_large_requests.py",
    "tests/wire/test_hostile_constraints.py",
    "tests/calibrate/fit/test_learning.py",
    "tests/wings/speech/test_hostile_realtime.py",
    "tests/wire/test_processes.py",
    "tests/wire/clients/test_schemathesis.py",
    "tests/workshop/test_commands.py",
)
"""Files whose tests stay together and take a quarter of a minute, the longest first. Those of long tests follow."""
GROUP = re.compile(r'xdist_group\("([^"]+)"\)')
SHARED_FIXTURE = 'scope="module"'


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the longest files begin; xdist hands tests out in this order."""
    places = {file: place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Take the place of the scheduler of `--dist loadgroup`: that of xdist 3.8 finds no group with pytest 9.2."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = lambda nodeid: share_of(nodeid, config.rootpath)
    return scheduler


def share_of(nodeid: str, root: Path) -> str:
    """Name what a test is handed out with: a group, its file, or nothing else than the test."""
    return _shared(root / nodeid.partition("::")[0]) or nodeid


@cache
def _shared(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    if group := GROUP.search(text):
        return group[1]
    return str(file) if SHARED_FIXTURE in text else ""

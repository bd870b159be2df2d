"""The slow tests run what needs a library of an extra with that library: none is skipped because it is missing."""

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import pytest

from tests.architecture.project import PROJECT

SELF = re.compile(r"blis-mockserve\[([a-z,-]+)\]")
NOT_FOR_TESTS = {"clients", "deploy", "kernels", "pytest", "test", "xgrammar"}
"""Extras of tests alone, or with targets of their own: large ones, and those with other versions of libraries."""


def extras() -> dict[str, list[str]]:
    found: dict[str, list[str]] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    return found


def missing(requirements: list[str]) -> Iterator[str]:
    for each in requirements:
        name = re.match(r"[A-Za-z0-9-]+", each)
        assert name is not None
        try:
            version(name[0])
        except PackageNotFoundError:
            yield name[0]


def test_tests_install_every_extra_with_a_feature() -> None:
    (named,) = (match[1] for each in extras()["test"] if (match := SELF.match(each)))
    assert set(named.split(",")) == extras().keys() - NOT_FOR_TESTS


@pytest.mark.slow
@pytest.mark.parametrize("extra", sorted(extras().keys() - NOT_FOR_TESTS))
def test_the_libraries_of_an_extra_are_installed_where_slow_tests_run(extra: str) -> None:
    assert list(missing(extras()[extra])) == [], f"pip install '.[{extra}]'"

"""Files that describe the project agree with pyproject.toml and with each other."""

import re

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.project import PROJECT, pyproject

_UNPINNED = {"blis-mockserve", "ray", "setuptools"}
"""The project itself, a package that `make test` does not install, and one that a virtual environment brings."""


def text(name: str) -> str:
    return (PROJECT / name).read_text(encoding="utf-8")


def requirements() -> list[Requirement]:
    """The project's dependencies and those of all extras that `make test` installs."""
    project = pyproject()["project"]
    installed = {name: needs for name, needs in project["optional-dependencies"].items() if name != "clients"}
    extras = [each for needs in installed.values() for each in needs]
    return [Requirement(each) for each in [*project["dependencies"], *extras]]


def test_the_top_version_of_the_changelog_is_that_of_the_project() -> None:
    versions = re.findall(r"^## (\S+)", text("CHANGELOG.md"), re.MULTILINE)
    assert versions[0] == pyproject()["project"]["version"]


def test_constraints_pin_an_allowed_version_of_every_dependency() -> None:
    lines = [line for line in text("constraints.txt").splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    versions = {canonicalize_name(name): version for name, version in pins.items()}
    needed = [each for each in requirements() if canonicalize_name(each.name) not in _UNPINNED]
    refused = [
        str(each) for each in needed if not each.specifier.contains(versions.get(canonicalize_name(each.name), ""))
    ]
    assert refused == []


def test_contributing_names_only_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", text("CONTRIBUTING.md")))
    assert named - targets == set()
    assert {"test", "check", "fix", "coverage"} <= named


def test_pre_commit_runs_make_fix() -> None:
    (repository,) = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]
    assert [hook["entry"] for hook in repository["hooks"]] == ["make fix"]


def test_the_release_builds_a_source_distribution_wheels_and_an_image() -> None:
    jobs = yaml.safe_load(text(".github/workflows/release.yml"))["jobs"]
    assert set(jobs) == {"sdist", "wheels", "image", "publish"}
    assert set(jobs["publish"]["needs"]) == {"sdist", "wheels", "image"}

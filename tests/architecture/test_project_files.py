"""Files that describe the project agree with pyproject.toml and with each other."""

import re
from collections import Counter
from pathlib import Path

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


def test_the_changelog_has_no_entry_twice() -> None:
    entries = [each for each in re.split(r"\n(?=- |\n)", text("CHANGELOG.md")) if each.startswith("- ")]
    assert len(entries) > 60
    assert [each for each, count in Counter(entries).items() if count > 1] == []


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


def test_actions_are_pinned_by_hash_and_named_by_version() -> None:
    files = [*sorted((PROJECT / ".github" / "workflows").glob("*.yml")), PROJECT / "deploy/github-action/action.yml"]
    used = [line for file in files for line in file.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    pinned = re.compile(r"[\w.-]+(/[\w.-]+)+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert len(used) > 8
    assert [line for line in used if not pinned.fullmatch(line.partition("uses:")[2].strip())] == []


def test_one_action_has_one_hash_everywhere() -> None:
    names = re.findall(
        r"uses: (\S+)@(\S+)", "".join(map(Path.read_text, (PROJECT / ".github" / "workflows").glob("*.yml")))
    )
    assert len({name for name, _ in names}) == len(set(names))


def test_the_release_builds_wheels_for_every_python_that_is_supported() -> None:
    jobs = yaml.safe_load(text(".github/workflows/release.yml"))["jobs"]
    (build,) = [step for step in jobs["wheels"]["steps"] if "cibuildwheel" in step.get("uses", "")]
    built = {each.partition("-")[0] for each in build["env"]["CIBW_BUILD"].split()}
    prefix = "Programming Language :: Python :: 3."
    supported = {each.removeprefix(prefix) for each in pyproject()["project"]["classifiers"] if each.startswith(prefix)}
    assert built == {f"cp3{minor}" for minor in supported}

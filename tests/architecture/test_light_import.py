"""`import blis_sim` costs next to nothing; all else is loaded when it is named."""

import inspect
import subprocess
import sys

import pytest

import blis_sim
from tests.architecture.project import PROJECT, pyproject
from tests.lazy import LazyModule

HEAVY = (
    "numpy",
    "aiohttp",
    "blis_sim.engine",
    "blis_sim.cli",
    "blis_sim.options",
    "importlib.metadata",
    "yaml",
    "typer",
)


def printed(program: str) -> str:
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(PROJECT)!r}); {program}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_loads_no_other_module_of_ours_and_no_library() -> None:
    program = "before = set(sys.modules); import blis_sim; print(*sorted(set(sys.modules) - before))"
    loaded = printed(program).split()
    assert "blis_sim" in loaded
    assert [name for name in loaded if name in HEAVY or name.startswith("blis_sim.")] == []


def test_the_version_is_that_of_the_project() -> None:
    assert blis_sim.__version__ == pyproject()["project"]["version"]


def test_subpackages_are_loaded_when_they_are_named() -> None:
    program = "import blis_sim; before = 'blis_sim.options' in sys.modules; print(before, blis_sim.options.__name__)"
    assert printed(program) == "False blis_sim.options"
    assert {"__version__", "bench", "cli", "engine", "options"} <= set(dir(blis_sim))
    folders = {path.parent.name for path in (PROJECT / "blis_sim").glob("*/__init__.py")}
    assert folders - {"wings"} <= set(dir(blis_sim))  # the wings are reached by entry points alone


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'blis_sim' has no attribute 'nothing'"):
        _ = blis_sim.nothing


def test_what_pytest_asks_of_every_name_in_a_file_loads_no_lazy_library() -> None:
    module = LazyModule("nowhere")
    assert inspect.unwrap(module) is module  # type: ignore[arg-type]
    assert getattr(module, "_mock_name", None) is None
    with pytest.raises(ModuleNotFoundError):
        _ = module.public

"""Compiles the hot modules of the engine to C while a wheel is built, where that is possible.

The modules are those of pyproject.toml. BLIS_COMPILE=0 leaves them plain Python, BLIS_COMPILE=1 makes it an error when
they cannot be compiled. An editable installation is always plain: compiled code of an older checkout never runs.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "blis_sim.compiled_engine"
"""Holds the code of all modules, beside the packages; what stands beside each module only finds it there."""
PACKAGES_FOLDER = "blis_sim/packages"
"""Where the wheel has the packages beside blis_sim, as pyproject.toml says."""
SEARCH_PATH_FILE = "blis_mockserve.pth"
MYPY_SETTINGS = """[mypy]
ignore_missing_imports = True
[mypy-blis_sim.api.*]
follow_imports = skip
[mypy-blis_sim.testing.*]
follow_imports = skip
[mypy-numpy.*]
follow_imports = skip
follow_imports_for_stubs = True
"""
"""The types are checked elsewhere; here nothing but Python is needed to know them, whichever numpy there is."""


class CannotCompileError(Exception):
    """Why the modules stay plain Python, in one line, with what the compilers said."""


class CompiledEngine(BuildHookInterface[Any]):
    """Adds a compiled twin of each of its `modules` to the wheel; Python prefers it to the source beside it."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into a folder that lasts as long as the build."""
        requested = os.environ.get("BLIS_COMPILE", "")
        if requested not in ("", "0", "1"):
            raise ValueError(f"BLIS_COMPILE must be 0 or 1, got {requested!r}")
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory()
        search_path = Path(self._folder.name) / SEARCH_PATH_FILE
        search_path.write_text(f"{PACKAGES_FOLDER}\n")
        build_data["force_include"][str(search_path)] = SEARCH_PATH_FILE
        if requested == "0":
            return
        try:
            libraries = compiled(Path(self.root), self.config["modules"], Path(self._folder.name))
        except CannotCompileError as error:
            if requested == "1":
                raise
            reason = str(error).partition("\n")[0]
            self.app.display_warning(f"The engine stays plain Python, which is slower than compiled: {reason}")
            return
        build_data["force_include"].update(libraries)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compiled(root: Path, modules: list[str], folder: Path) -> dict[str, str]:
    """Compile modules of the project at `root` in an empty folder. Returns the files and their places in the wheel.

    Raises CannotCompileError.
    """
    for command in (["--try"], modules):  # to learn at once that there is no compiler
        done = subprocess.run(
            [sys.executable, __file__, str(folder), *command], cwd=root, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = done.stdout + done.stderr
            raise CannotCompileError(f"{_reason(said)}\n{said}")
    built = folder / "lib"
    return {str(path): path.relative_to(built).as_posix() for path in built.rglob("*") if path.is_file()}


def _reason(said: str) -> str:
    """The line that says best what went wrong."""
    lines = [line for line in said.splitlines() if "rror" in line] or said.splitlines() or ["for no known reason"]
    return lines[-1].strip()


def _try(folder: Path) -> None:
    """Fail unless there are mypyc and a C compiler that finds Python's headers."""
    import mypyc.build  # noqa: F401
    from setuptools import Distribution, Extension

    source = folder / "nothing.c"
    source.write_text("#include <Python.h>\nPyMODINIT_FUNC PyInit_nothing(void) { return NULL; }\n")
    _build(Distribution({"ext_modules": [Extension("nothing", [str(source)])]}), folder / "tried")


def _compile(folder: Path, modules: list[str]) -> None:
    from mypyc.build import mypycify
    from setuptools import Distribution

    settings = folder / "mypy.ini"
    settings.write_text(MYPY_SETTINGS)
    extensions = mypycify(
        ["--config-file", str(settings), *modules],
        opt_level=os.environ.get("MYPYC_OPT_LEVEL", "3"),  # as mypyc's own builds have it
        debug_level="0",
        target_dir=str(folder / "c"),
        group_name=LIBRARY,
    )
    if os.name == "posix":
        for extension in extensions:
            # A product and a sum rounded as one, which some processors can do, give other figures.
            # To look for warnings in generated code takes half a minute.
            extension.extra_compile_args += ["-ffp-contract=off", "-Wno-all"]
    _build(Distribution({"ext_modules": extensions}), folder / "lib")


def _build(distribution: Any, libraries: Path) -> None:
    """Build the extension modules of a distribution, which nothing but them is known of."""
    build = distribution.get_command_obj("build_ext")
    build.build_lib = str(libraries)
    build.build_temp = str(libraries.parent / "objects")
    build.ensure_finalized()
    build.run()


if __name__ == "__main__":
    _, work_folder, *names = sys.argv
    if names == ["--try"]:
        _try(Path(work_folder))
    else:
        _compile(Path(work_folder), names)

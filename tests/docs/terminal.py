"""Executes the commands of a page as its reader would, in one folder, with servers in the background."""

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from pathlib import Path

from blis_sim.cli.main import run
from tests import fork_server
from tests.docs.pages import PROJECT, Command
from tests.patience import PATIENCE_S
from tests.ports import reserved_port

PORT_IN_PAGES = 8000
PLAIN = re.compile(r"blis (?P<arguments>[^|;&<>$*`]+?)(?: > (?P<file>[\w.-]+))?")
"""A command of ours alone, whose output may go to a file: all else is for a shell."""


class Terminal:
    """A folder to work in, and at most one server at a time, on a free port instead of the one that pages name."""

    def __init__(self, folder: Path, project: Path = PROJECT) -> None:
        self._folder = folder
        self._project = project
        self._server: subprocess.Popen[str] | None = None
        self._port = PORT_IN_PAGES
        self._reserved = ExitStack()
        blis = folder / "bin" / "blis"
        blis.parent.mkdir()
        blis.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m blis_sim.cli "$@"\n')
        blis.chmod(0o755)
        for name in ("docker", "examples"):
            (folder / name).symlink_to(PROJECT / name)

    @property
    def port(self) -> int:
        """The port of the server."""
        return self._port

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the commands."""
        path = f"{self._folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "PYTHONPATH": str(self._project)}

    def execute(self, command: Command, other_addresses: Mapping[str, str] | None = None) -> str:
        """Return the output of a command, standard output and error together. Fails when its exit code is not 0.

        Addresses of a page stand for the server's, and `other_addresses` for others.
        """
        if command.text.startswith("blis serve "):
            return self._serve(command.text)
        text = command.text.replace(f"localhost:{PORT_IN_PAGES}", f"127.0.0.1:{self._port}")
        for shown, meant in (other_addresses or {}).items():
            text = text.replace(shown, meant)
        plain = PLAIN.fullmatch(text) if self._project == PROJECT else None
        code, printed = self._run_in_shell(text) if plain is None else self._run_here(plain["arguments"], plain["file"])
        assert code == 0, f"{command.text}\nexit code {code}\n{printed}"
        return printed

    def _run_in_shell(self, text: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", text],
            cwd=self._folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return done.returncode, done.stdout

    def _run_here(self, arguments: str, file: str | None) -> tuple[int, str]:
        """Run a command of ours in this process, which has imported what a process of its own would import anew."""
        printed = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
        with chdir(self._folder), ExitStack() as stack:
            out = printed if file is None else stack.enter_context(open(file, "w", encoding="utf-8"))
            stack.enter_context(redirect_stdout(out))
            stack.enter_context(redirect_stderr(printed))
            code = run(shlex.split(arguments))
        printed.seek(0)
        return code, printed.read()

    def close(self) -> None:
        """Stop the server, which must end well."""
        if self._server is not None:
            self._server.terminate()
            _, complaints = self._server.communicate(timeout=PATIENCE_S)
            assert self._server.returncode == 0, complaints
            self._server = None
        self._reserved.close()

    def _serve(self, text: str) -> str:
        """Start a server and return its start line, which notes may precede, with the port that pages name."""
        self.close()
        self._port = self._reserved.enter_context(reserved_port())
        command = [*shlex.split(text), "--port", str(self._port)]
        command[:1] = [sys.executable, "-m", "blis_sim.cli"]
        started = fork_server.Popen if self._project == PROJECT else subprocess.Popen
        self._server = started(command, cwd=self._folder, env=self.environment, stderr=subprocess.PIPE, text=True)
        assert self._server.stderr is not None
        line = next((each for each in self._server.stderr if not each.startswith("note: ")), "")
        return line.replace(f":{self._port} ", f":{PORT_IN_PAGES} ")


def missing_lines(command: Command, printed: str) -> list[str]:
    """The lines a page shows that the command has not printed, whatever the spaces.

    Where chance or the machine has a part in it, figures, ids and grades may differ.
    """
    shape = _without_spaces if command.is_repeatable else _shape
    shapes = [shape(line) for line in printed.splitlines()]
    return [line for line in command.expected if line != "..." and not _is_printed(line, shapes, shape)]


def _is_printed(line: str, shapes: list[str], shape: Callable[[str], str]) -> bool:
    pattern = re.compile(".*".join(re.escape(shape(part)) for part in line.split("...")))
    return any(pattern.fullmatch(each) for each in shapes)


def _without_spaces(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _shape(text: str) -> str:
    """A line without what may differ from run to run."""
    text = re.sub(r"excellent|good|fair|poor", "GRADE", text)
    text = re.sub(r"over-predict|under-predict|neutral", "BIAS", text)
    text = re.sub(r"within|exceeds", "VERDICT", text)
    text = re.sub(r"(?<=[a-z]-)[0-9a-f]{16}", "0", text)
    text = re.sub(r"(?<=\s)-(?=\s)|(?<![\w.])[+-]?(\d[\d,.]*\d|\d)", "0", text)
    return _without_spaces(text)

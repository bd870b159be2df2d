"""Whole files are written in one module, which puts them in their place when all of them is on disk."""

import re

from tests.architecture.project import PROJECT, product_files

ALLOWED = {
    "traces/text_file.py": "replaces files",
    "traces/append_file.py": "appends whole pieces, and takes back one that did not fit",
    "blis_sim/engine/latency/operators.py": "keeps what was learned, and puts it in its place whole",
    "blis_sim/engine/latency/collectives.py": "writes the inputs of another program in a new folder",
    "blis_sim/cli/app.py": "opens the null device",
    "blis_sim/bench/serve_load.py": "makes new files, and removes one that did not fit",
}
"""Modules that open files for writing, and what keeps a full disk from leaving a torn one."""
OPENS = re.compile(r"""\.write_(text|bytes)\(|open\([^)\n]*["'][wxa]b?["']|os\.O_(CREAT|TRUNC)""")


def test_no_other_module_opens_a_file_for_writing() -> None:
    found = {
        file.relative_to(PROJECT).as_posix()
        for file in product_files()
        if OPENS.search(file.read_text(encoding="utf-8"))
    }
    assert found - set(ALLOWED) == set()
    assert set(ALLOWED) - found == set()

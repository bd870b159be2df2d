"""`server`: a mock vLLM server as long as a `with` block runs."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike, fspath
from typing import Any, Unpack

from blis_sim.api.given import signature_of, values_given
from blis_sim.api.serve_settings import ServeSettings
from blis_sim.options import options_from
from blis_sim.testing import Server, serving

_CHOSEN: Mapping[str, Any] = {"host": "127.0.0.1", "port": 0, "enable_fault_control": True}


@contextmanager
def server(model: str | PathLike[str] = "", /, **settings: Unpack[ServeSettings]) -> Iterator[Server]:
    """Run `blis serve` in a process of its own on a free port of this host; it ends with the block.

    Raises BlisError for bad input, and ServerError when the server ends before its port is open.
    """
    from mockserve.options.serve import ServeOptions

    (values,) = values_given([ServeOptions], settings, "server")
    for name in _CHOSEN:
        if name in values:
            raise TypeError(f"server() chooses the {name}: read the address from the url of the server")
    values |= {"model_argument": fspath(model), **_CHOSEN}
    options_from(ServeOptions, **values)  # which raises OptionError here, not in the process
    with serving(["-m", "blis_sim.api.serve_process"], json.dumps(values).encode()) as running:
        yield running


server.__signature__ = signature_of(ServeSettings, server)  # type: ignore[attr-defined]

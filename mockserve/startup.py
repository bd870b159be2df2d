"""What every process of a server does at its start: a fast event loop, few pauses, a line that says what it serves."""

import asyncio
import codecs
import gc
from collections.abc import Callable

from blis_sim.engine.deployment import Deployment
from mockserve.options.serve import ServeOptions
from mockserve.protocol.responses.item_forms import item_forms
from mockserve.routes.documentation import dashboard_page

NEW_OBJECTS_BEFORE_A_LOOK = 5000
"""How many objects the collector lets come before it looks at them: a request brings hundreds, and no cycles."""

JSON_ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")
"""All that `json.detect_encoding` finds but UTF-8 itself."""


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def keep_what_exists() -> None:
    """What is there by now lives as long as the process: looking at it again would make the collector's pauses long."""
    _read_what_requests_need()
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS_BEFORE_A_LOOK, *gc.get_threshold()[1:])


def _read_what_requests_need() -> None:
    """Read files that the first request of a kind would otherwise read while the event loop waits for the disk.

    Python reads the module of a codec when text in it first comes, and JSON may come in each of these encodings.
    """
    item_forms()
    dashboard_page()
    for encoding in JSON_ENCODINGS:
        codecs.lookup(encoding)


def startup_line(options: ServeOptions, deployment: Deployment, where: str) -> str:
    """What is served, where, and on what simulated hardware, which does not matter where times are set."""
    number = f"{options.cluster.num_instances} instances, " if options.cluster.num_instances > 1 else ""
    blocks = f"{deployment.config.total_kv_blocks:,} KV blocks"
    if not options.timing.sets_times:
        what = f"{deployment.gpu.name}, tp {deployment.tp}, {blocks}, {deployment.latency_name}"
    else:
        what = f"{blocks}, set times"
    return f"serving {options.model_names[0]} on {where} ({number}{what})"


def address(options: ServeOptions, host: str, port: int) -> str:
    """Where clients reach the server."""
    if options.network.uds:
        return f"unix:{options.network.uds}"
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if options.network.tls.ssl_certfile else 'http'}://{shown}:{port}"

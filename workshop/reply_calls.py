"""Calls of product functions that one streamed chat reply of six tokens costs, by module, and the shapes that carry it.

    python -m workshop.reply_calls [--functions]

A server answers a few replies first, so that what is kept between requests is there. Then the calls of one reply are
counted with `sys.setprofile`, from the bytes of its request to the end of its connection's turn. Of a further reply all
new objects are looked at during each call: the classes of the reply path among them are its shapes.
"""

import argparse
import asyncio
import gc
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from blis_sim.options import options_from
from mockserve.engines import deployment_of
from mockserve.listening import start
from mockserve.options.serve import ServeOptions

PROJECT = Path(__file__).resolve().parents[1]
PACKAGES = ("blis_sim", "mockserve")
BODY = (
    b'{"model": "m", "messages": [{"role": "user", "content": "Say hello to all of them."}], "max_tokens": 6, '
    b'"ignore_eos": true, "stream": true}'
)
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)
NUM_BEFORE = 3
SPEED = 0.1
"""Simulated seconds in a real one: so few that every step is waited for."""
LAST_CHUNK = b"0\r\n\r\n"
PATH = (
    "mockserve.protocol",
    "mockserve.generation.answer",
    "mockserve.serving",
    "mockserve.reply",
    "mockserve.realtime",
)
"""The packages of the reply path, without HTTP's request and the engine's own classes."""
VALUES = {"Ending"}
"""Classes that are a value within a shape."""
SAMPLER = "mockserve.metrics.page"
"""The module whose timer samples the counters now and then, which is no part of a reply."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the calls of one reply by module, or by function."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", action="store_true", help="Count by function.")
    given = parser.parse_args(arguments)
    calls, shapes = asyncio.run(calls_and_shapes())
    counts: Counter[str] = Counter()
    for (module, function), number in calls.items():
        counts[f"{module} {function}" if given.functions else module] += number
    for name, number in counts.most_common():
        print(f"{number:5d}  {name}")
    print(f"{sum(calls.values())} calls in {len({module for module, _ in calls})} modules")
    print(f"{len(shapes)} shapes: {', '.join(sorted(shapes))}")
    return 0


def is_of_sampler(frame: FrameType | None) -> bool:
    """Whether the timer of the counters makes a call."""
    while frame is not None:
        if frame.f_globals.get("__name__") == SAMPLER:
            return True
        frame = frame.f_back
    return False


async def calls_and_shapes() -> tuple[Counter[tuple[str, str]], set[str]]:
    """Return the calls of one reply by module and function, and the names of the shapes of another one."""
    settings: dict[str, Any] = {"model": "qwen/qwen3-14b", "hardware": "H100", "tp": 1, "served_model_name": ("m",)}
    options = options_from(ServeOptions, **settings, max_model_len=2048, host="127.0.0.1", port=0, speed=SPEED)
    server = await start(options, deployment_of(options))
    reader, writer = await asyncio.open_connection(server.host, server.port)
    calls: Counter[tuple[str, str]] = Counter()
    shapes: set[str] = set()

    def note(frame: FrameType, what: str, _: object) -> None:
        code = frame.f_code
        if what == "call" and code.co_filename.startswith(str(PROJECT)):
            name = Path(code.co_filename).relative_to(PROJECT).with_suffix("").as_posix().replace("/", ".")
            if name.startswith(PACKAGES) and not is_of_sampler(frame):
                calls[name, code.co_qualname] += 1

    def look(frame: FrameType, what: str, _: object) -> None:
        if what in ("call", "return") and frame.f_code.co_filename.startswith(str(PROJECT)):
            kinds = {type(each) for each in gc.get_objects()}
            shapes.update(each.__name__ for each in kinds if each.__module__.startswith(PATH))

    async def ask(profiler: Callable[[FrameType, str, object], None] | None) -> None:
        await asyncio.sleep(0.05)
        sys.setprofile(profiler)
        writer.write(REQUEST)
        await reader.readuntil(LAST_CHUNK)
        await asyncio.sleep(0)
        sys.setprofile(None)

    for profiler in (*[None] * NUM_BEFORE, note):
        await ask(profiler)
    gc.collect()
    gc.disable()
    gc.freeze()  # from now on the collector lists new objects only
    await ask(look)
    gc.unfreeze()
    gc.enable()
    writer.close()
    await server.stop()
    return calls, shapes - VALUES


if __name__ == "__main__":
    sys.exit(main())

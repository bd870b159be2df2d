"""What a server does when an engine has broken: vLLM's ends, a moment later."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from mockserve.serving.service import Service

LOOK_EVERY_S = 5.0
"""How often vLLM's server looks after its engine. A client that is told by a status ends it at once."""


async def engine_death(services: Sequence[Service]) -> BaseException:
    """Return when a server must end because of a broken engine, with what it broke with."""
    told = [asyncio.ensure_future(service.death_told.wait()) for service in services]
    try:
        while True:
            failures = [service.driver.failure for service in services]
            found = next((failure for failure in failures if failure is not None), None)
            if found is not None:
                return found
            await asyncio.wait(told, timeout=LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in told:
            each.cancel()
            with suppress(asyncio.CancelledError):
                await each

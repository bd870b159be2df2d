"""Several servers as one: which of them gets a request."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from random import Random

from observe.client import Client, Outcome
from observe.http import Server, addressed_to
from observe.options import LEAST_OUTSTANDING, RANDOM


class Balancer:
    """Sends each request to one of several servers, over a client for each; requests are made for the first of them.

    Outcomes have the address of the server that answered.
    """

    def __init__(self, clients: Sequence[Client], strategy: str, seed: int) -> None:
        self.clients = clients
        self._chosen = self._choices(strategy, Random(f"{seed}/servers"))

    @property
    def server(self) -> Server:
        """The server that requests are made for."""
        return self.clients[0].server

    def send(
        self,
        request: bytes,
        *,
        streaming: bool,
        finished: Callable[[Outcome], None],
        timeout_s: float | None = None,
        hang_up_s: float | None = None,
    ) -> None:
        """Send a request to the server whose turn it is, as `Client.send` does."""
        client = self._chosen()
        client.send(
            addressed_to(client.server, request, self.server),
            streaming=streaming,
            finished=partial(_finish_with_server, finished, client.server.url),
            timeout_s=timeout_s,
            hang_up_s=hang_up_s,
        )

    def cancel_all(self) -> None:
        """End all that is under way as cancelled."""
        for client in self.clients:
            client.cancel_all()

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(client.close() for client in self.clients))

    def _choices(self, strategy: str, random: Random) -> Callable[[], Client]:
        if strategy == RANDOM:
            return partial(random.choice, self.clients)
        if strategy == LEAST_OUTSTANDING:
            # As a router of a cluster does, of equal ones it takes any.
            return lambda: min(self.clients, key=lambda client: (client.num_in_flight, random.random()))
        return cycle(self.clients).__next__


def _finish_with_server(finished: Callable[[Outcome], None], url: str, outcome: Outcome) -> None:
    finished(replace(outcome, server=url))

"""What a client is told of a request that the simulation does not complete."""

from collections.abc import Mapping
from http import HTTPStatus

from blis_sim.engine.sequence import Outcome

STATUSES: Mapping[Outcome, HTTPStatus] = {
    Outcome.REJECTED: HTTPStatus.TOO_MANY_REQUESTS,
    Outcome.EVICTED: HTTPStatus.TOO_MANY_REQUESTS,
    Outcome.FAILED: HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""By why it ended; for anything else the request is to blame."""

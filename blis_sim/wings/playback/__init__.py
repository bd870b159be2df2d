"""Recorded and hand-written replies in the place of generated ones, and the journal of requests.

`blis serve` loads this package by its entry point in `blis.routes` for `--playback` and `--enable-playback-control`.
"""

from collections.abc import Sequence

from blis_sim.wings.playback.playing import played_handler
from blis_sim.wings.playback.recordings import Playback
from mockserve.routes.table import Route
from mockserve.serving.model import RouteCondition

_ROUTES = f"{__name__}.routes"

new_state = Playback
"""Returns what the routes share."""

ROUTES: Sequence[Route] = (
    Route("GET", "/blis/playback", f"{_ROUTES}:show_playback", RouteCondition.PLAYBACK_CONTROL),
    Route("POST", "/blis/playback", f"{_ROUTES}:add_fixtures", RouteCondition.PLAYBACK_CONTROL),
    Route("DELETE", "/blis/playback", f"{_ROUTES}:remove_fixtures", RouteCondition.PLAYBACK_CONTROL),
    Route("GET", "/blis/requests", f"{_ROUTES}:list_requests", RouteCondition.PLAYBACK_CONTROL),
    Route("POST", "/blis/requests/assert", f"{_ROUTES}:assert_requests", RouteCondition.PLAYBACK_CONTROL),
    Route("DELETE", "/blis/requests", f"{_ROUTES}:forget_requests", RouteCondition.PLAYBACK_CONTROL),
)

__all__ = ["ROUTES", "new_state", "played_handler"]

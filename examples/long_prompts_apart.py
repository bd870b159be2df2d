"""A router: long prompts go to the last instance, so that they delay no short one; the others to the least loaded."""

from blis_sim.engine.cluster.routing import Choice, RouterSettings
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.request import Request

LONG_PROMPT_TOKENS = 4000


class LongPromptsApart:
    """Reads the loads of the candidates, and neither their caches nor their adapters."""

    reads_snapshots = True
    reads_in_flight = True
    reads_caches = False
    reads_adapters = False

    def __init__(self, settings: RouterSettings) -> None:
        self._settings = settings

    def choose(self, request: Request, state: RoutingState) -> Choice:
        """Return the place of the instance among the candidates."""
        last = len(state.candidates) - 1
        if request.input_tokens > LONG_PROMPT_TOKENS or last == 0:
            return Choice(last)
        return Choice(min(range(last), key=lambda place: state.candidates[place].load))

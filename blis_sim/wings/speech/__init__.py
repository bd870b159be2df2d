"""Speech: transcriptions, translations and the WebSocket of the realtime interface.

`blis serve` loads this package by its entry point in `blis.routes` for a model that transcribes.
"""

from collections.abc import Sequence

from mockserve.routes.table import Route
from mockserve.serving.model import RouteCondition

_MODULE = f"{__name__}.routes"

ROUTES: Sequence[Route] = (
    Route("POST", "/v1/audio/transcriptions", f"{_MODULE}:transcribe", RouteCondition.TRANSCRIPTION),
    Route("POST", "/v1/audio/translations", f"{_MODULE}:translate", RouteCondition.TRANSCRIPTION),
    Route("*", "/v1/realtime", f"{_MODULE}:realtime", RouteCondition.REALTIME),
)
"""The routes of models that transcribe."""

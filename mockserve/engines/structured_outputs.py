"""The one backend of structured outputs that an engine has."""

from collections.abc import Callable

from mockserve.protocol.errors import ApiError, late


class StructuredOutputBackend:
    """The backend that the first constrained request came to, which serves the engine until it ends.

    `announce` is called with the name when this process is the first to use it.
    """

    def __init__(self, is_lenient: bool = False, announce: Callable[[str], object] | None = None) -> None:
        """A lenient one lets every request have its own backend."""
        self._is_lenient = is_lenient
        self._announce = announce
        self.name: str | None = None

    def set_name(self, name: str) -> None:
        """Another process has used this backend first."""
        self.name = name

    def claim(self, backend: str | None) -> None:
        """Use the backend of a request, if it has one. Raises ApiError where the engine already uses another."""
        if backend is None or backend == self.name or self._is_lenient:
            return
        if self.name is None:
            self.name = backend
            if self._announce is not None:
                self._announce(backend)
            return
        raise late(
            ApiError(
                "Structured output processing only supports one backend per engine. "
                f"The engine is already using '{self.name}', but this request resolved to '{backend}'. Configure "
                "`structured_outputs_config.backend` explicitly or use schemas supported by the initialized backend."
            )
        )

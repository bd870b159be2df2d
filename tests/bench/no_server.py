"""Standard output whose reader has gone."""

from io import StringIO


class NoServer(StringIO):
    """Takes nothing, as a closed pipe."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(text)

"""Server-sent events: from pieces of a body, cut anywhere, to the data of each event."""

DONE = b"[DONE]"


def event_in_chunk(data: bytes, start: int) -> tuple[bytes, int]:
    """The data of the event at this place that is a chunk of an HTTP body for itself, and the place behind the chunk.

    If there is nothing like that, or not in full: nothing, and the same place.
    """
    size_end = data.find(b"\r\n", start, start + 8)
    if size_end > start and data.startswith(b"data: ", size_end + 2):
        try:
            end = size_end + 2 + int(data[start:size_end], 16)
        except ValueError:
            return b"", start
        if end > size_end + 10 and data.startswith(b"\n\n\r\n", end - 2):
            payload = data[size_end + 8 : end - 2].strip()
            if payload and b"\n" not in payload:
                return payload, end + 2
    return b"", start


class EventSplitter:
    """Collects bytes and gives back the data of each `data:` line that they complete.

    Every data line is an event of its own, as OpenAI-compatible servers send them. Comments, other fields and blank
    lines are passed over. Lines may end in LF or CRLF; the space after the colon is optional.
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    @property
    def is_empty(self) -> bool:
        """Whether no line has begun that is not complete."""
        return not self._rest

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that this piece completes."""
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]

    def end(self) -> list[bytes]:
        """The data of a last line that no line end followed."""
        return self.feed(b"\n")

"""The differences that are meant."""

from tests.wire.captured.expected import Expected

FORBIDDEN = "the captured model said what the grammar of the request forbids, and the engine failed; ours keeps to it"
OUTRUN = "tokens came faster than vLLM took them, and those that had come went out together; ours has a chunk for each"

TABLE: tuple[Expected, ...] = (
    Expected("golden5", "two tool calls no parallel", "status", FORBIDDEN),
    Expected("golden5", "named tool*", "*", FORBIDDEN),
    Expected("golden5", "required*", "*", FORBIDDEN),
    Expected("golden[45]", "utf8 split stream", "events.length", OUTRUN),
)

"""How a reply is delivered: whole or streamed, and with which usage."""

from dataclasses import dataclass

from mockserve.protocol.reading.body import Fields


@dataclass(frozen=True, slots=True)
class Delivery:
    """`continuous_usage` puts a running count into every chunk; it needs `include_usage`, which adds a last chunk."""

    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False


def read_delivery(fields: Fields) -> Delivery:
    """The fields `stream` and `stream_options` of a body whose types have been checked."""
    stream = fields.flag("stream")
    options = Fields(fields.body.get("stream_options") or {})
    include_usage = options.flag("include_usage")
    return Delivery(stream, include_usage, include_usage and options.flag("continuous_usage_stats"))

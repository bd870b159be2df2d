"""How a reply is delivered: whole or streamed, and with which usage."""

from dataclasses import dataclass

from mockserve.protocol.errors import bad_value
from mockserve.protocol.fields import Fields, as_flag


@dataclass(frozen=True, slots=True)
class Delivery:
    """`continuous_usage` puts a running count into every chunk; it needs `include_usage`, which adds a last chunk."""

    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False


def read_delivery(fields: Fields) -> Delivery:
    """The fields `stream` and `stream_options`. Raises ApiError for options without a stream."""
    stream = fields.flag("stream")
    options = fields.body.get("stream_options")
    if options is None:
        return Delivery(stream)
    if not stream:
        raise bad_value("Stream options can only be defined when `stream=True`.", "stream_options")
    if not isinstance(options, dict):
        return Delivery(stream)
    include_usage = as_flag(options.get("include_usage") or False)
    continuous = as_flag(options.get("continuous_usage_stats") or False)
    return Delivery(stream, include_usage, include_usage and continuous)

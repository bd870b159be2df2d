"""Log lines on standard error, and the settings of request logs and of OpenTelemetry traces."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from blis_sim.options import StartError, check_options, option

FORMATS = ("text", "json")
_PREFIXES = {logging.INFO: "", logging.WARNING: "warning: "}


class PlainLines(logging.Formatter):
    """Formats a message after a prefix for its severity."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, or several where there is a traceback."""
        return _PREFIXES.get(record.levelno, f"{record.levelname.lower()}: ") + super().format(record)


class JsonLines(logging.Formatter):
    """Formats time, level, logger, message, the values of `fields` and a traceback as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of JSON."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(entry, default=str).decode()


def fields(**values: Any) -> Mapping[str, Any]:
    """Return the `extra` of a log call: values for separate keys of a JSON line."""
    return {"fields": values}


def set_up_logging(log_format: str) -> None:
    """Log to standard error: our messages from level INFO on, and warnings of libraries."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if log_format == "json" else PlainLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("mockserve").setLevel(logging.INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityOptions:
    """Settings of request logs, of the access log and of traces, with vLLM's names where vLLM has them."""

    otlp_traces_endpoint: str = option(
        "",
        "OpenTelemetry collector that gets a span for each request, such as http://localhost:4317; needs the extra "
        "otel. OTEL_EXPORTER_OTLP_TRACES_PROTOCOL chooses grpc (the default) or http/protobuf.",
        metavar="URL",
        heading="Request logs and traces",
    )
    enable_log_requests: bool = option(
        False,
        "Log each request's id, sampling parameters and adapter; with VLLM_LOGGING_LEVEL=DEBUG its prompt, too.",
    )
    enable_log_outputs: bool = option(
        False, "Log the text and the finish reason of each choice when it is complete; needs --enable-log-requests."
    )
    max_log_len: int | None = option(
        None, "Characters of a prompt or an output that are logged, and ids of a prompt; all by default.", at_least=0
    )
    access_log: bool = option(False, "Log each HTTP request in the form of uvicorn's access log.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.enable_log_outputs and not self.enable_log_requests:
            raise StartError("Error: --enable-log-outputs requires --enable-log-requests")

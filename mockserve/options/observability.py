"""Log lines on standard error, and the settings of request logs and of OpenTelemetry traces."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from blis_sim.options import StartError, check_options, option

FORMATS = ("text", "json")
_PREFIXES = {logging.INFO: "", logging.WARNING: "warning: "}
_UVICORN = "uvicorn"
_UVICORN_WIDTH = 10
"""Width of the level and the space before a message of uvicorn."""


class PlainLines(logging.Formatter):
    """Formats a message after a prefix for its severity; lines that vLLM or uvicorn writes have the head they have."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, or several where there is a traceback."""
        origin = getattr(record, "origin", None)
        if origin is None:
            return _PREFIXES.get(record.levelno, f"{record.levelname.lower()}: ") + super().format(record)
        if origin == _UVICORN:
            return f"{record.levelname}:".ljust(_UVICORN_WIDTH) + super().format(record)
        at = time.strftime("%m-%d %H:%M:%S", time.localtime(record.created))
        head = f"(APIServer pid={record.process}) {record.levelname} {at} [{origin}] "
        return head + super().format(record).replace("\n", f"\r\n{head}")


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


def in_vllm_form(place: str, **values: Any) -> Mapping[str, Any]:
    """Return the `extra` of a line that vLLM writes at `place`, a file with a line number; `values` as in `fields`."""
    return {**fields(**values), "origin": place}


def in_uvicorn_form(**values: Any) -> Mapping[str, Any]:
    """Return the `extra` of a line that vLLM's web server writes; `values` as in `fields`."""
    return {**fields(**values), "origin": _UVICORN}


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
    disable_log_stats: bool = option(
        False,
        "Log no throughput every ten seconds (VLLM_LOG_STATS_INTERVAL), and leave vLLM's figures off the metrics page.",
    )
    access_log: bool = option(False, "Log each HTTP request in the form of uvicorn's access log.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.enable_log_outputs and not self.enable_log_requests:
            raise StartError("Error: --enable-log-outputs requires --enable-log-requests")

"""How this installation was made, and the libraries of its optional extras."""

import json
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from blis_sim.options.option import OptionError, options_of
from blis_sim.options.printing import check_printed

if TYPE_CHECKING:
    from importlib.metadata import Distribution

    from opentelemetry.sdk.trace.export import SpanExporter

# How this installation was made, and the command that adds an extra to it.

DISTRIBUTION = "blis-mockserve"


def install_command(extra: str) -> str:
    """Return the `pip install` that adds an extra to this installation.

    A package that came from a folder, a repository or an archive names it, by the record that pip leaves (PEP 610).
    """
    from importlib.metadata import PackageNotFoundError, distribution  # a run that misses nothing has no use for it

    try:
        return f"pip install {_requirement(extra, _origin(distribution(DISTRIBUTION)))}"
    except PackageNotFoundError:
        return f"pip install '.[{extra}]'"  # run from a checkout that was never installed


def _origin(installed: "Distribution") -> dict[str, Any]:
    text = installed.read_text("direct_url.json")
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {}


def _requirement(extra: str, origin: dict[str, Any]) -> str:
    """Return what pip takes for the package with an extra, by the fields of PEP 610."""
    name, url = f"{DISTRIBUTION}[{extra}]", str(origin.get("url", ""))
    if not url:
        return f"'{name}'"
    repository = origin.get("vcs_info")
    if repository is not None:
        revision = repository.get("requested_revision")
        return f"'{name} @ {repository['vcs']}+{url}{f'@{revision}' if revision else ''}'"
    if not url.startswith("file://"):
        return f"'{name} @ {url}'"
    is_editable = origin.get("dir_info", {}).get("editable", False)
    return f"{'-e ' if is_editable else ''}'{unquote(urlsplit(url).path)}[{extra}]'"


# Libraries of optional extras: checks that they are installed, and the exporter of OpenTelemetry spans.

PICTURE_SUFFIXES = (".png", ".svg", ".pdf")


def check_plot(flag: str, path: str | None) -> None:
    """Raise OptionError when the picture of a flag cannot be drawn; a `path` of None means no picture."""
    if path is None:
        return
    if Path(path).suffix not in PICTURE_SUFFIXES:
        raise OptionError(f"{flag} must be a file that ends in {', '.join(PICTURE_SUFFIXES)}, got {path}")
    if not Path(path).parent.is_dir():
        raise OptionError(f"{flag} must be in a folder that exists, got {path}")
    _require_matplotlib(flag)


def check_answer(options: Any) -> None:
    """Raise OptionError as `check_printed` does, and for a picture or a page of the options that cannot be made."""
    check_printed(options)
    for setting in options_of(type(options)):
        kind = setting.option.writes.get("", "") if isinstance(setting.option.writes, Mapping) else ""
        if kind == "picture":
            check_plot(setting.label, setting.of(options))
        elif kind.endswith("page"):
            check_page(setting.label, setting.of(options))


def check_page(flag: str, path: str | None) -> None:
    """Raise OptionError when the page of a flag, which has pictures, cannot be written; None means no page."""
    if path is not None:
        _require_matplotlib(flag)


def _require_matplotlib(flag: str) -> None:
    if find_spec("matplotlib") is None:
        raise OptionError(f"{flag} needs matplotlib: {install_command('plots')}")


def check_ray() -> None:
    """Raise OptionError where Ray is not installed."""
    if find_spec("ray") is None:
        raise OptionError(f"--ray needs ray: {install_command('ray')}")


PROTOCOL_VARIABLE = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
PROTOCOLS = ("grpc", "http/protobuf")


_TIMEOUT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
_EXPORT_TIMEOUT_S = 2.0
"""How long a batch is tried; the exporter's own ten seconds would hold up the end of a program."""


def _export_timeout_s() -> float | None:
    """None leaves the time limit to the environment."""
    return None if any(map(os.environ.get, _TIMEOUT_VARIABLES)) else _EXPORT_TIMEOUT_S


def new_exporter(endpoint: str) -> "SpanExporter":
    """Return the official exporter to `endpoint`. Raises OptionError without the library or with another protocol."""
    protocol = os.environ.get(PROTOCOL_VARIABLE, PROTOCOLS[0])
    if protocol not in PROTOCOLS:
        raise OptionError(f"{PROTOCOL_VARIABLE} must be one of {', '.join(PROTOCOLS)}, got {protocol!r}")
    try:
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

            return GrpcExporter(endpoint=endpoint, insecure=True, timeout=_export_timeout_s())
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        return HttpExporter(endpoint=endpoint, timeout=_export_timeout_s())
    except ImportError:
        raise OptionError(f"--otlp-traces-endpoint needs OpenTelemetry: {install_command('otel')}") from None

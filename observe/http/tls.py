"""Which certificates of a server are believed."""

import ssl

from observe.errors import ObserveError


def tls_context(ca_file: str | None, *, insecure: bool) -> ssl.SSLContext:
    """The settings of TLS: those of the system, those of a PEM file, or none at all. Raises ObserveError."""
    if insecure and ca_file is not None:
        raise ObserveError("--insecure and --ca-file exclude each other")
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        reason = "no certificates in PEM form" if isinstance(error, ssl.SSLError) else (error.strerror or error)
        raise ObserveError(f"--ca-file {ca_file}: {reason}") from error
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context

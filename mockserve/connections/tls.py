"""HTTPS: the server's certificate, and what it asks of its clients."""

import ssl

from blis_sim.options import OptionError
from mockserve.options.network import TlsOptions


def server_context(options: TlsOptions) -> ssl.SSLContext | None:
    """The TLS settings to listen with, or None for plain HTTP. Raises OptionError for files that cannot be used."""
    if not options.ssl_certfile:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    key = options.ssl_keyfile or None
    try:
        context.load_cert_chain(options.ssl_certfile, key)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(f"--ssl-certfile {options.ssl_certfile} cannot be used: {_reason(error)}") from error
    if options.ssl_ca_certs:
        try:
            context.load_verify_locations(options.ssl_ca_certs)
        except (OSError, ssl.SSLError) as error:
            raise OptionError(f"--ssl-ca-certs {options.ssl_ca_certs} cannot be used: {_reason(error)}") from error
    context.verify_mode = ssl.VerifyMode(options.ssl_cert_reqs)
    if options.ssl_ciphers:
        try:
            context.set_ciphers(options.ssl_ciphers)
        except ssl.SSLError as error:
            raise OptionError(f"--ssl-ciphers {options.ssl_ciphers} names no cipher that is known here") from error
    return context


def _reason(error: OSError) -> str:
    """Errors of files have a text, errors of OpenSSL a reason."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return error.strerror or str(error)

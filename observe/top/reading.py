"""The content of a URL of a server's figures, with one clear error when it cannot be read."""

import urllib.error
import urllib.request
from http.client import HTTPException

from observe.errors import RunError

TIMEOUT_S = 10.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Connects directly, ignoring proxies of the environment, as the load client does."""


def read_url(url: str, api_key: str | None) -> bytes:
    """Return the body of a reply. Raises RunError that names the URL without its query."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
    shown = url.partition("?")[0]
    try:
        with _OPENER.open(request, timeout=TIMEOUT_S) as reply:
            body: bytes = reply.read()
            return body
    except urllib.error.HTTPError as error:
        error.close()
        raise RunError(f"cannot read {shown}: status {error.code}") from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise RunError(f"cannot read {shown}: {getattr(reason, 'strerror', None) or reason}") from error

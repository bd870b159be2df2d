"""Names and order of a reply's headers, as uvicorn writes them: lower case, date and server first, framing last."""

from multidict import CIMultiDict

_PLACES = {"date": 0, "server": 1, "content-length": 3, "location": 4, "content-type": 4, "vary": 5, "connection": 6}
_PLACES["transfer-encoding"] = 7
_OTHER = 2


def write_as_uvicorn(headers: CIMultiDict[str]) -> None:
    """Change names to lower case, and their order, in place."""
    given = [(name.lower(), value) for name, value in headers.items()]
    given.sort(key=_place)
    headers.clear()
    headers.extend(given)


def _place(header: tuple[str, str]) -> int:
    return _PLACES.get(header[0], _OTHER)

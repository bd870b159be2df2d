"""Parser of a connection's bytes: usual requests are answered right here, all others by aiohttp's protocol.

A request is usual when it is unambiguous: HTTP/1.1 with fields of plain ASCII, each of them once, and a body of a known
length or none. Anything else that a client sends is handed over as it came.
"""

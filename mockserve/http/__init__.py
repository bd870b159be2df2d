"""HTTP connections: simple requests are parsed and answered here, all others by aiohttp's protocol.

A request is simple if it is unambiguous: HTTP/1.1, ASCII header fields without repetition, and no body or a body of
known length. All other bytes are passed to aiohttp unchanged.
"""

"""What the models of both servers say: texts in which a stream, a stop string or a parser may err."""

from collections.abc import Mapping

PLAIN: Mapping[str, str] = {
    "prose": "The harbour of Rotterdam handles 13.4 million containers a year, more than any other one in Europe.",
    "short": "No.",
    "code": "```python\ndef half(n: int) -> int:\n    return n // 2\n```\n\nThe result is rounded down.",
    "letters": "Grüße aus Zürich: 東京は晴れ 🌤️, 👩‍🚀 «fertig» ✓",
    "lines": "\n\nFirst\n\n\nSecond\n",
    "space": "   a text between spaces   ",
    "list": "1. Boil water.\n2. Add tea.\n3. Wait.",
    "table": "| a | b |\n|---|---|\n| 1 | 2 |",
    "object": '{"name": "Ada", "born": 1815, "fields": ["mathematics", "computing"]}',
    "marks": "if a < b then <b>bold</b> <tool",
}
"""Texts by name."""

ARGUMENTS: Mapping[str, Mapping[str, object]] = {
    "weather": {"city": "Oslo", "days": 3, "unit": "celsius"},
    "transfer": {"to": "open account", "amount": 50, "note": "a < b "},
    "search": {"query": "東京 🌤️", "filters": {"year": [2024, 2025], "open": True}, "limit": None},
    "stop": {},
}
"""Arguments of the functions that clients offer."""

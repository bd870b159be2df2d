"""Runs the case files that a genuine vLLM was captured with, keeping the requests they make instead of sending them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL_ROUTES = {"C": "/v1/chat/completions", "P": "/v1/completions"}
MESSAGES = [{"role": "user", "content": "hello there"}]
DEFAULT_LIMIT_CHARS = 6000


@dataclass(frozen=True, slots=True)
class Case:
    """One request, and after how many characters the reply was cut when it was captured."""

    name: str
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None
    limit_chars: int

    @property
    def extra_arguments(self) -> dict[str, Any]:
        """Return the output that the request prescribes to the model of the captured server."""
        try:
            body = json.loads(self.body or b"{}")
        except (ValueError, RecursionError):
            return {}
        found = body.get("vllm_xargs") if isinstance(body, dict) else None
        return found if isinstance(found, dict) else {}


def read_cases(files: list[Path]) -> list[Case]:
    """The requests of `files` in order. The first of several with one name gives the place, the last the request."""
    cases: dict[str, Case] = {}
    for file in files:
        for case in _run(file):
            cases[case.name] = case
    return list(cases.values())


def _run(file: Path) -> list[Case]:
    """Return the request of a file; it finds the names that the program which captured it had."""
    cases: list[Case] = []

    def call(
        name: str,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        raw: str | None = None,
        limit: int = DEFAULT_LIMIT_CHARS,
    ) -> None:
        data = raw if raw is not None else (json.dumps(body) if body is not None else None)
        encoded = None if data is None else data.encode()
        cases.append(Case(name, method, path, headers or {}, encoded, limit))

    def chat(**fields: Any) -> dict[str, Any]:
        return {"model": "m", "messages": MESSAGES, "max_tokens": 3, **fields}

    def comp(**fields: Any) -> dict[str, Any]:
        return {"model": "m", "prompt": "hello there", "max_tokens": 3, **fields}

    names = {**MODEL_ROUTES, "M": MESSAGES, "call": call, "chat": chat, "comp": comp, "json": json}
    exec(compile(file.read_text(), file, "exec"), {**names, "__file__": str(file), "__name__": "case_file"})
    return cases

"""Real prompts from a file: JSON lines, or text with a prompt on each line."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from observe.errors import ObserveError
from observe.requests.schedule import Planned
from traces.text_file import read_text

_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class GivenPrompt:
    """A prompt, and the number of output tokens if the file has one."""

    text: str
    output_tokens: int | None = None


def read_prompts(path: Path | str) -> list[GivenPrompt]:
    """The prompts of a file, in its order. Raises BlisError.

    Of a file that ends in `.jsonl` each line is an object with `prompt` and perhaps `output_tokens`; its other keys
    are for other programs.
    """
    path = Path(path)
    # Only line feeds end a line: prompts may have any other separator.
    lines = [(number, line.rstrip("\r")) for number, line in enumerate(read_text(path).split("\n"), start=1)]
    filled = [(number, line) for number, line in lines if line.strip()]
    if not filled:
        raise ObserveError(f"{path}: expected a prompt per line, got none")
    if path.suffix != ".jsonl":
        return [GivenPrompt(line) for _, line in filled]
    return [_parsed(f"{path} line {number}", line) for number, line in filled]


def with_prompts(plan: Sequence[Planned], prompts: Sequence[GivenPrompt]) -> list[Planned]:
    """The plan with these prompts in turn, from the first one again after the last one.

    How many tokens they have is only known from answers; until then it is estimated by their characters.
    """
    return [_worded(planned, prompts[place % len(prompts)]) for place, planned in enumerate(plan)]


def _worded(planned: Planned, given: GivenPrompt) -> Planned:
    return replace(
        planned,
        prompt=given.text,
        input_tokens=max(1, round(len(given.text) / _CHARACTERS_PER_TOKEN)),
        output_tokens=given.output_tokens or planned.output_tokens,
    )


def _parsed(place: str, line: str) -> GivenPrompt:
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ObserveError(f"{place}: expected a JSON object with the key prompt, {error.msg}") from error
    prompt = entry.get("prompt") if isinstance(entry, dict) else None
    if not isinstance(prompt, str) or not prompt:
        raise ObserveError(f"{place}: expected a JSON object with text under the key prompt, got {line[:60]}")
    output_tokens = entry.get("output_tokens")
    if output_tokens is not None and (type(output_tokens) is not int or output_tokens < 1):
        raise ObserveError(f"{place} key output_tokens: expected a whole number above 0, got {output_tokens!r}")
    return GivenPrompt(prompt, output_tokens)

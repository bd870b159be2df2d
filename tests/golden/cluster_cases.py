"""The reference cases of a cluster: their flags, and the draws by which the reference broke ties."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from blis_sim.options import options_from, options_of
from replay.replay_options import ReplayOptions


class RecordedDraws:
    """Breaks ties as the reference did, from its generator's recorded 63-bit numbers.

    One of n: the upper 31 bits, modulo n, but for the few that would make some of the n likelier.
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers

    def __call__(self, num_equals: int, input_tokens: int) -> int:
        if num_equals == 1:
            return 0
        highest = (1 << 31) - 1 - (1 << 31) % num_equals
        while (draw := next(self._numbers) >> 32) > highest:
            pass
        return draw % num_equals


def recorded_draws(reference: Path) -> RecordedDraws:
    """From the beginning of the recorded numbers."""
    text = (reference / "golden" / "engine-router-draws-seed42.txt").read_text()
    return RecordedDraws(map(int, text.split()))


def replay_options(folder: Path, **more: object) -> ReplayOptions:
    """The options that the flags of a case stand for."""
    arguments = shlex.split((folder / "flags.txt").read_text())
    values: dict[str, object] = {"trace": str(folder / "trace.yaml"), "engine": "blis", "format": "blis", **more}
    settings = {flag: setting for setting in options_of(ReplayOptions) for flag in setting.flags}
    for flag, text in zip(arguments[::2], arguments[1::2], strict=True):
        setting = settings[flag]
        values[setting.name] = setting.type(text) if setting.type in (int, float, str) else int(text)
    return options_from(ReplayOptions, **values)

"""The settings of `blis serve` for answers that were recorded or written by hand."""

from dataclasses import dataclass

from blis_sim.options import OptionError, check_options, option

WAYS = ("exact", "conversation", "turn", "order")
"""Ways in which a request can be like a recorded one, the strictest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaybackOptions:
    """Recorded answers."""

    playback: str = option(
        "",
        "Answer with the contents of this recording (PREFIX.content.jsonl of blis observe --proxy), or with the"
        " fixtures of a YAML file.",
        metavar="FILE",
        heading="Recorded answers",
    )
    playback_match: tuple[str, ...] = option(
        ("exact", "conversation", "turn"),
        "Ways to find the recorded reply, tried in turn: the same body; the same conversation, whatever the sampling;"
        " the same last message in the same turn; or the next one in the order of the recording.",
        choices=WAYS,
    )
    playback_miss: str = option(
        "generate",
        "A request without a recorded reply gets a generated one, an error with status 404, or that of"
        " --playback-upstream, which is added to the recording.",
        choices=("generate", "error", "forward"),
    )
    playback_upstream: str = option("", "Base URL of the server for --playback-miss forward.", metavar="URL")
    playback_timing: str = option(
        "engine",
        "Times of recorded replies: those of the simulated engine under the present load, or the recorded ones.",
        choices=("engine", "recorded"),
    )
    playback_speed: float = option(
        1.0, "With --playback-timing recorded: recorded seconds per real second.", above=0, at_most=1e6
    )
    playback_chunks: str = option(
        "recorded",
        "Pieces of recorded streams: those of the recording, or one for each token of this server's tokenizer.",
        choices=("recorded", "tokens"),
    )
    enable_playback_control: bool = option(
        False, "Offer /blis/requests, a journal of requests, and /blis/playback, which sets fixtures."
    )

    def __post_init__(self) -> None:
        check_options(self)
        if not self.playback_match:
            raise OptionError(f"--playback-match must have at least one of {', '.join(WAYS)}")
        if (self.playback_miss == "forward") != bool(self.playback_upstream):
            raise OptionError("--playback-miss forward and --playback-upstream need each other")
        if self.playback_upstream and not self.playback_upstream.startswith(("http://", "https://")):
            raise OptionError(f"--playback-upstream must be like http://host:port, got {self.playback_upstream!r}")
        if self.playback_miss == "forward" and not self.playback.endswith(".jsonl"):
            raise OptionError(
                "--playback-miss forward needs a --playback FILE.jsonl, to which it adds what it forwards"
            )
        for flag, is_given in (
            ("--playback-timing", self.playback_timing != "engine"),
            ("--playback-chunks", self.playback_chunks != "recorded"),
            ("--playback-miss", self.playback_miss != "generate"),
        ):
            if is_given and not self.is_on:
                raise OptionError(f"{flag} needs --playback or --enable-playback-control")

    @property
    def is_on(self) -> bool:
        """Whether recorded answers may be there."""
        return bool(self.playback) or self.enable_playback_control

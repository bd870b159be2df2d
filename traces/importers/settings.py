"""The settings of `blis convert`."""

from dataclasses import dataclass
from pathlib import Path

from blis_sim.options import OptionError, check_options, check_written, option
from blis_sim.options.limits import LEAST_RATE, MOST_RATE
from traces.exporters.registry import EXPORTERS, exporter_of
from traces.importers.registry import FORMATS, Format, flags_of, format_of

_TIMES = ("midnight", "morning", "afternoon")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """One run of `blis convert`. Raises OptionError for settings that do not fit together."""

    format: str = option(
        help="What to convert from.",
        positional=True,
        choices=FORMATS,
        open_to=lambda: FORMATS,
        metavar="FORMAT",
    )
    file: str | None = option(
        None, "The file or folder to convert; with preset, its name.", positional=True, metavar="FILE"
    )
    source: str | None = option(None, "Another way to give FILE.", flags=("--path", "--spec", "--name"), hidden=True)
    output: str | None = option(
        None,
        "Write a trace to PREFIX.yaml, PREFIX.csv and, where there are token times, PREFIX.itl.csv; a workload spec to"
        " this very file. Default for specs: standard output.",
        flags=("--output", "-o"),
        metavar="PREFIX",
    )
    to: str | None = option(
        None,
        "Write the requests to the file --output in this format of another program, instead of a trace.",
        choices=EXPORTERS,
        open_to=lambda: EXPORTERS,
        metavar="FORMAT",
    )
    num_requests: int | None = option(
        None, "How many requests a preset has (default 100), or how many of a file to take (default all).", at_least=1
    )
    rate: float | None = option(
        None,
        "Requests per second of a preset (default 1), or of a file that has no arrival times.",
        above=0,
        at_least=LEAST_RATE,
        at_most=MOST_RATE,
    )
    seed: int = option(42, "Seed of what is drawn: arrival times at --rate, the classes of ServeGen clients.")
    time: str | None = option(None, "The one period of a ServeGen folder to take. Default: all.", choices=_TIMES)
    window_duration_seconds: int = option(600, "How long each ServeGen period lasts.", at_least=1)
    drain_timeout_seconds: int = option(180, "The pause behind each ServeGen period.", at_least=0)
    tokenizer: str | None = option(None, "A tokenizer.json to count the tokens of texts with.", metavar="FILE")
    think_time_ms: float = option(0.0, "Pause between the rounds of a ShareGPT conversation.", at_least=0)

    def __post_init__(self) -> None:
        check_options(self)
        if (self.file is None) == (self.source is None):
            raise OptionError(f"blis convert {self.format} needs one file, folder or name, as in: {self._example}")
        kind = format_of(self.format)
        for name, formats in flags_of().items():
            default = type(self).__dataclass_fields__[name].default
            if name not in kind.flags and getattr(self, name) != default:
                flag = "--" + name.replace("_", "-")
                raise OptionError(f"{flag} has no meaning with {self.format}, only with {', '.join(formats)}")
        self._check_output(kind)

    def _check_output(self, kind: Format) -> None:
        if self.to is not None:
            exporter_of(self.to)
        if self.to is not None and kind.gives_spec:
            raise OptionError(f"--to needs requests, {self.format} becomes a workload spec")
        if self.to is None and self.format == "trace":
            raise OptionError(f"--to is required with trace, one of {', '.join(EXPORTERS)}")
        if self.output is None and self.to is not None:
            raise OptionError("--output is required with --to, the file to write")
        if self.output is None and not kind.gives_spec:
            raise OptionError(f"--output is required with {self.format}, whose result is a trace of several files")
        endings = {".yaml": "header", ".csv": "rows", ".itl.csv": "token times"}
        if kind.gives_spec:
            endings = {"": "spec"}
        if self.to is not None:
            endings = {"": "requests"}
        written = [(f"{self.output}{ending}", "--output", kind) for ending, kind in endings.items()]
        check_written(
            written if self.output else [],
            [(self.name, "is to be converted"), (self.tokenizer or "", "--tokenizer reads")],
        )

    @property
    def name(self) -> str:
        """The file, folder or preset as given."""
        return self.file or self.source or ""

    @property
    def path(self) -> Path:
        """The file or folder."""
        return Path(self.name)

    @property
    def _example(self) -> str:
        kind = format_of(self.format)
        ending = "" if kind.gives_spec else " --output imported"
        return f"blis convert {self.format} {kind.example}{ending}"

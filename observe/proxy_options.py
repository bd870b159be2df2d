"""The settings of `blis observe --proxy`."""

from dataclasses import dataclass

from blis_sim.options import OptionError, check_options, option
from observe.http import check_header
from traces.redaction import Redactor


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyOptions:
    """A recording reverse proxy."""

    proxy: tuple[int, ...] = option(
        (),
        "Send nothing: listen on this port, pass all bytes on to --url, and record what clients send and get. With"
        " --url URL,... and as many ports each port leads to one of the servers; one port shares connections out among"
        " them in turn. 0 takes a free port.",
        metavar="PORT,...",
        at_least=0,
        at_most=65535,
        heading="Recording proxy",
    )
    proxy_host: str = option("0.0.0.0", "Address that --proxy listens on.")
    record_content: bool = option(
        False,
        "Record requests and replies of --proxy, too, in PREFIX.content.jsonl, without keys and authorisation."
        " Default: lengths and times only.",
    )
    redact: tuple[str, ...] = option(
        (),
        "Replace what matches this regular expression (RE2) in all that is recorded, printed and exported; may be given"
        " several times.",
        metavar="PATTERN",
        repeatable=True,
    )
    tenant_header: str = option(
        "", "Header of requests that names the tenant. Default: the key of the client. Tenants are recorded as hashes."
    )
    tenant_salt: str = option(
        "", "Secret that takes part in the hashes of tenants, so that guessed names cannot be compared with them."
    )
    rotate_mb: float = option(
        0.0, "Begin another part of the recording, PREFIX-0002, -0003, ..., after so many MB. 0: never.", at_least=0
    )
    rotate_s: float = option(0.0, "Begin another part of the recording after so many seconds. 0: never.", at_least=0)

    def __post_init__(self) -> None:
        check_options(self)
        for flag, is_given in (
            ("--record-content", self.record_content),
            ("--tenant-header", bool(self.tenant_header)),
            ("--tenant-salt", bool(self.tenant_salt)),
            ("--rotate-mb", bool(self.rotate_mb)),
            ("--rotate-s", bool(self.rotate_s)),
        ):
            if is_given and not self.proxy:
                raise OptionError(f"{flag} needs --proxy")
        if self.tenant_header:
            check_header("--tenant-header", self.tenant_header, "")
        if self.redact:
            Redactor(self.redact)

    @property
    def is_rotated(self) -> bool:
        """Whether the recording is written in parts."""
        return bool(self.rotate_mb or self.rotate_s)

"""`blis fit`: from recordings of a real server to the coefficients of a latency model."""

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.latency.registry import DEFAULT_LATENCY_MODEL
from blis_sim.options import OptionError, check_outputs, option, section, written_file
from blis_sim.options.printing import check_printed, format_option, json_option, print_note, printed_format
from calibrate.own_replay import token_times_beside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from blis_sim.engine.deployment import Deployment
    from blis_sim.options.progress import NoteCallback, Progress
    from blis_sim.options.provenance import Provenance
    from calibrate.fit.learn import LearningResult
    from calibrate.fit.recording import Recording
    from calibrate.fit.terms import Learnable
    from traces import Trace

_print_note = partial(print_note, "blis fit")

FEW_REQUESTS = 100
"""Fewer than these hardly move a coefficient from what is expected of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDeploymentOptions(DeploymentOptions):
    """The server that was recorded: a latency model is what `blis fit` learns."""

    engine: str = option("vllm", "Engine that was recorded.", choices=("vllm",))
    latency_model: str = option(
        "fitted",
        "Latency model whose coefficients are learned: of fitted all, of kernels what the host adds and a scale for "
        "each class of kernels.",
        choices=("fitted", "kernels"),
    )
    alpha_coeffs: tuple[float, ...] = option((), "Not used: coefficients are learned.", hidden=True)
    beta_coeffs: tuple[float, ...] = option((), "Not used: coefficients are learned.", hidden=True)
    coefficients: str | None = option(None, "Not used: coefficients are learned.", hidden=True)

    def __post_init__(self) -> None:
        DeploymentOptions.__post_init__(self)
        if self.alpha_coeffs or self.coefficients is not None:
            raise OptionError("blis fit learns coefficients, it takes none")
        if self.speculation is not None:
            raise OptionError("blis fit does not support speculative decoding")
        if self.dp > 1:
            raise OptionError(f"blis fit does not know dp; --dp must be 1, got {self.dp}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """The settings of `blis fit`: which recordings, of which server, and where the coefficients go."""

    deployment: RecordedDeploymentOptions = section(RecordedDeploymentOptions)
    traces: tuple[str, ...] = option(
        (),
        "Header files (YAML) of the recordings, all of the same server; or files of steps alone (TRACE.steps.csv).",
        positional=True,
        metavar="TRACE.yaml...",
    )
    output: str = written_file(
        "coefficients",
        "Write the coefficients here.",
        "coefficients.yaml",
        flags=("--output", "-o"),
        heading="Learning",
    )
    seed: int = option(0, "Seed of the step phases; the same seed gives the same coefficients.", at_least=0)
    reissue: bool = option(
        False,
        "Send by the recorded schedule and --max-concurrency, as the recording client did, "
        "instead of at the recorded send times.",
    )
    ignore_server_settings: bool = option(
        False, "Take no settings of the engine from the first recording; without it flags that are not given are."
    )
    design: str | None = written_file(
        "spec",
        "Learn nothing, and write a workload spec (YAML) here: five minutes of load, for `blis observe "
        "--workload-spec`, from which all coefficients of this server can be learned.",
    )
    check: bool = option(
        False,
        "Print which coefficients the recordings do not determine, so that what is expected decides, and what to "
        "record for each.",
    )
    format: str = format_option()
    json: bool = json_option()
    max_concurrency: int = option(0, "With --reissue: most requests in flight. 0: no limit.", at_least=0)

    def __post_init__(self) -> None:
        from traces import beside

        check_printed(self)
        if not self.traces and self.design is None:
            raise OptionError("give the header files of the recordings, as in `blis fit trace.yaml`")
        check_outputs(self, *beside(*self.traces))
        if self.max_concurrency and not self.reissue:
            raise OptionError("--max-concurrency needs --reissue: recorded send times are under their cap already")


def rewritten(arguments: list[str]) -> list[str]:
    """A command line with the settings of the recorded server, where it does not give these itself."""
    from replay.replay_options import with_server_settings

    return with_server_settings("blis fit", FitOptions, arguments)


def locate_invalid_setting(arguments: list[str], message: str) -> str | None:
    """The file and key of the setting of the recorded server that an error message is about, or None."""
    from replay.replay_options import locate_invalid_setting

    return locate_invalid_setting(FitOptions, arguments, message)


def run(options: FitOptions) -> int:
    """Learn, write the file, print what was learned on stdout; all else goes to stderr."""
    if options.design is not None:
        return _write_design(options, options.design)
    from blis_sim.options.progress import progress_bar
    from calibrate.fit.coefficients_file import text_of
    from calibrate.fit.table import fit_report
    from traces.text_file import write_text

    fitted = learn_coefficients(options, _print_note, progress_bar)
    write_text(Path(options.output), text_of(fitted.content))
    report = fit_report(fitted.learned, fitted.deployed, fitted.content, partial(_origin, options), options.check)
    report.print(printed_format(options))
    _print_note(f"wrote {options.output}")
    return 0


def _origin(options: FitOptions) -> "Provenance":
    from blis_sim.options.provenance import Provenance, command_line, input_hashes

    deployment = options.deployment
    return Provenance(
        command=command_line("blis fit", options),
        model=deployment.model,
        gpu=deployment.hardware,
        engine=deployment.engine,
        latency_model=deployment.latency_model,
        seed=options.seed,
        inputs=input_hashes(options),
    )


@dataclass(frozen=True, slots=True)
class Fitted:
    """The result of learning: coefficients with their latency model, and the content of their file."""

    learned: "LearningResult"
    deployed: "Learnable"
    content: dict[str, Any]


def learn_coefficients(options: FitOptions, on_note: "NoteCallback", progress: "Progress") -> Fitted:
    """Learn coefficients from recordings; `on_note` is called with each note, and `progress` with the progress.

    Raises BlisError.
    """
    from blis_sim.engine.deployment import resolve
    from calibrate.fit.coefficients_file import content
    from calibrate.fit.learn import learn, num_trials
    from calibrate.fit.recording import recording_of_steps
    from traces import read_trace
    from traces.server_settings import in_server_time
    from traces.steps import STEP_ENDINGS, read_steps

    deployment = resolve(_with_default_step_times(options.deployment))
    for note in deployment.notes:
        on_note(note)
    of_steps = [Path(path) for path in options.traces if path.endswith(STEP_ENDINGS)]
    traces = [in_server_time(read_trace(path, distinct=True)) for path in options.traces if Path(path) not in of_steps]
    _note_missing_client_cap(traces, options, on_note)
    recordings = [_recording(trace, options, deployment) for trace in traces]
    recordings += [recording_of_steps(path, read_steps(path), deployment.config) for path in of_steps]
    for note in _notes_on_steps(recordings):
        on_note(note)
    for recording in recordings:
        if refusals := recording.refusals(deployment.config):
            of_all = f"{len(refusals)} of {len(recording.arrivals)} requests"
            on_note(f"{recording.name}: {of_all} are left out, for the server as described refuses them: {refusals[0]}")
    num_answered = sum(each.num_answered for each in recordings)
    if traces and num_answered < FEW_REQUESTS:
        on_note(f"few requests to learn from, {num_answered}: what is expected decides most, see the last columns")
    deployed = _learnable_deployment(options.deployment, deployment)
    with progress("learning", num_trials(recordings, deployed)) as advance:
        learned = learn(recordings, deployed, deployment.config, seed=options.seed, on_progress=advance)
    return Fitted(learned, deployed, content(learned, recordings, deployed, deployment.config, options.seed))


def _write_design(options: FitOptions, file: str) -> int:
    """Write a load for a server that the default step times describe roughly."""
    from blis_sim.engine.deployment import resolve
    from calibrate.fit.design import design
    from traces.text_file import write_text

    deployment = resolve(_with_default_step_times(options.deployment))
    write_text(Path(file), design(deployment.config, deployment.latency))
    _print_note(f"wrote {file}")
    return 0


def _with_default_step_times(options: RecordedDeploymentOptions) -> DeploymentOptions:
    """Return the server with step times that need nothing learned: those of its deployment are not used."""
    settings = {each.name: getattr(options, each.name) for each in fields(DeploymentOptions)}
    return DeploymentOptions(**{**settings, "latency_model": DEFAULT_LATENCY_MODEL})


def _learnable_deployment(options: RecordedDeploymentOptions, deployment: "Deployment") -> "Learnable":
    """Return the latency model to learn, of a deployment. Raises EngineError for kernels that were not measured."""
    from calibrate.fit.terms import FittedDeployment

    if options.latency_model == "fitted":
        return FittedDeployment(deployment.model, deployment.gpu, deployment.tp)
    from calibrate.fit.terms import kernels_deployment

    placement = options.kernel_placement(deployment.tp, deployment.gpu)
    return kernels_deployment(deployment.model, deployment.gpu, placement, deployment.config.max_num_seqs)


def _note_missing_client_cap(traces: "list[Trace]", options: FitOptions, on_note: "NoteCallback") -> None:
    """Name the caps that show in recordings if none is given, and warn if all recordings have one."""
    from traces.client_cap import client_cap_of

    caps = [client_cap_of(trace.rows) for trace in traces]
    for trace, cap in zip(traces, caps, strict=True):
        if cap is not None and not options.max_concurrency:
            sending = f"--reissue --max-concurrency {cap.max_concurrency} sends as it did"
            on_note(f"warning: {trace.header_path}: {cap}; {sending}")
    if caps and all(caps):
        on_note("warning: all recordings are of a saturated server, which teach little alone; add one at a lower load")


def _recording(trace: "Trace", options: FitOptions, deployment: "Deployment") -> "Recording":
    from calibrate.fit.recording import recording_of
    from traces import read_itl
    from traces.server_settings import chunks_in_server_time
    from traces.steps import read_steps, steps_beside

    header_path = trace.header_path
    itl_path, steps_path = token_times_beside(header_path), steps_beside(header_path)
    return recording_of(
        trace,
        options.deployment.model,
        deployment.config,
        {} if itl_path is None else chunks_in_server_time(read_itl(itl_path), trace),
        options.max_concurrency if options.reissue else None,
        [] if steps_path is None else read_steps(steps_path),
    )


def _notes_on_steps(recordings: "Sequence[Recording]") -> "Iterator[str]":
    """Yield what recorded steps lack."""
    for recording in recordings:
        if (steps := recording.steps) is None:
            continue
        if steps.num_left_out:
            yield f"{recording.name}: {steps.num_left_out} steps are left out: drafts, idle times, or nothing computed"
        if steps.num_estimated:
            of_all = f"{steps.num_estimated} of {len(steps)}"
            yield f"{recording.name}: contexts of {of_all} steps are estimated from the KV cache in use"
        if not steps.has_starts and not recording.arrivals:
            yield f"{recording.name}: steps lack the time from one to the next, which requests would show"

"""The loop of `blis calibrate --watch`: read, compare, write, wait."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from blis_sim.bench.watch.drift import Comparison, compare_with_prediction, metrics_text, watch_page
from blis_sim.bench.watch.options import WatchOptions
from blis_sim.bench.watch.readings import Reading, Source, source_of
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.latency.sureness import sureness
from blis_sim.options import BlisError
from blis_sim.options.provenance import Provenance, command_line
from calibrate.compare import EXIT_CODE
from observe.errors import RunError
from traces.server_settings import blocks_of_one_engine
from traces.text_file import write_text

_MOST_COMPARISONS = 24 * 60
"""Comparisons that the page shows: a day of minutes."""


@dataclass(slots=True)
class Watch:
    """A watched server: its readings, its deployment, and the comparisons so far."""

    settings: WatchOptions
    source: Source
    deployment: Deployment
    history: list[Comparison] = field(default_factory=list)
    num_comparisons: int = 0
    has_drifted: bool = False

    def compare(self, failure: str) -> None:
        """Compare the last minutes, print and write the comparison; `failure` is the error of the last reading."""
        found = Comparison(time.time(), reason=failure, is_up=False) if failure else self._comparison()
        self.num_comparisons += 1
        self.has_drifted = self.has_drifted or bool(found.drifted)
        self.history = [*self.history[1 - _MOST_COMPARISONS :], found]
        at = time.strftime("%H:%M:%S", time.localtime(found.at_s))
        for line in found.lines:
            sys.stdout.write(f"{at} {line}\n")
        sys.stdout.flush()
        self._write(found)

    def _comparison(self) -> Comparison:
        return compare_with_prediction(
            self.source.readings,
            self.deployment,
            self.settings.deployment.coefficients,
            window_s=self.settings.watch_window,
            num_draws=self.settings.draws,
            tolerance=self.settings.tolerance,
        )

    def _write(self, found: Comparison) -> None:
        if self.settings.drift_metrics is not None:
            write_text(Path(self.settings.drift_metrics), metrics_text(found))
        if self.settings.html is not None:
            text = watch_page(self.settings.url, self.history, self._origin(), self.settings.watch_interval)
            write_text(Path(self.settings.html), text)

    def _origin(self) -> Provenance:
        command, deployment = command_line("blis calibrate --watch", self.settings), self.deployment
        sure = sureness(deployment.latency_name, deployment.notes)
        return Provenance(
            command=command,
            model=deployment.model.name,
            gpu=deployment.gpu.name,
            gpus_per_instance=deployment.num_gpus,
            engine=deployment.config.engine,
            latency_model=sure.latency_model,
            step_error=sure.step_error,
            step_error_source=sure.error_source,
        )


def watch(settings: WatchOptions) -> int:
    """Watch until enough comparisons are made, a figure has drifted, or the user interrupts.

    Returns the exit code: 3 when a figure has left its interval. Raises RunError or BlisError when the first reading
    fails.
    """
    source = source_of(settings, 2 * settings.watch_window)
    source.poll()
    watched = Watch(settings, source, _deployment(settings, source.readings[-1], _print_note))
    with suppress(KeyboardInterrupt):
        _wait_for_next(watched, settings)
    return EXIT_CODE if watched.has_drifted else 0


def _wait_for_next(watched: Watch, settings: WatchOptions) -> None:
    due = time.monotonic() + settings.watch_interval
    while True:
        wait_s = min(watched.source.poll_every_s, due - time.monotonic())
        time.sleep(max(0.0, wait_s))
        failure = ""
        try:
            watched.source.poll()
        except (BlisError, RunError) as error:
            failure = str(error)
        if time.monotonic() < due:
            continue
        watched.compare(failure)
        due = max(due + settings.watch_interval, time.monotonic())
        is_enough = watched.num_comparisons == settings.comparisons
        if is_enough or (watched.has_drifted and not settings.keep_watching):
            return


def _deployment(settings: WatchOptions, reading: Reading, on_note: Callable[[str], None]) -> Deployment:
    """Return the deployment of the flags, with model and KV blocks of the metrics page where these are not given."""
    options = settings.deployment
    given: dict[str, Any] = {each.name: getattr(options, each.name) for each in fields(DeploymentOptions)}
    if not options.model:
        given["model"] = reading.model_name
        on_note(f"the metrics page names the model {reading.model_name}")
    blocks = blocks_of_one_engine(reading.cache, reading.num_engines)
    if options.total_kv_blocks is None and blocks is not None and blocks > 1:
        given["total_kv_blocks"] = blocks
        on_note(f"the metrics page states {blocks:,} KV blocks")
    deployment = resolve(DeploymentOptions(**given))
    for note in deployment.notes:
        on_note(note)
    return deployment


def _print_note(line: str) -> None:
    sys.stderr.write(f"blis calibrate --watch: {line}\n")

"""SimAI's own runs: their command lines with our tables, and their output."""

import json
import shlex
from pathlib import Path
from typing import Any

from blis_sim.cli.main import run
from blis_sim.wings.vidur import settings as vidur

SCENARIOS = tuple(f"simai_aicb_scenario{number}" for number in range(1, 5))
POOLS = "simai_pd_70b_r4_p2d2"


def scenario_arguments(golden: Path) -> list[str]:
    """Return the flags of a scenario, of which only `config.json` was kept."""
    config = json.loads((golden / "config.json").read_text())
    cluster, requests = config["cluster_config"], config["request_generator_config"]
    words: list[str] = []
    for group, values in (
        (vidur.CLUSTER, cluster),
        (vidur.REPLICA, cluster["replica_config"]),
        (vidur.REQUESTS.kinds["synthetic"], requests),
        (vidur.LENGTHS.kinds["fixed"], requests["length_generator_config"]),
        (vidur.INTERVALS.kinds["poisson"], requests["interval_generator_config"]),
        (vidur.PREDICTOR.kinds["random_forrest"], config["execution_time_predictor_config"]),
        (vidur.METRICS, config["metrics_config"]),
    ):
        words += _flags(group, values)
    words += ["--global_scheduler_config_type", cluster["global_scheduler_config"]["name"]]
    return [*words, "--replica_scheduler_config_type", cluster["replica_scheduler_config"]["name"]]


def _flags(group: vidur.Group, values: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for setting in group.settings:
        value, name = values.get(setting.name), setting.flag
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, list):
            words += [f"--{name}", *map(str, value)]
        elif value is not None and setting.name != "output_dir":
            words += [f"--{name}", str(value)]
    return words


def pools_arguments(golden: Path) -> list[str]:
    """Return the flags of the run with separate pools, whose requests are those of its `requests.csv`."""
    words = shlex.split((golden / "COMMAND.txt").read_text())[3:]
    words[words.index("--request_generator_config_type") + 1] = "trace_replay"
    first = words.index("--synthetic_request_generator_config_num_requests")
    last = words.index("--trace_request_length_generator_config_trace_file") + 1
    flag = "--trace_request_generator_config"
    replayed = [f"{flag}_trace_file", str(golden / "requests.csv"), f"{flag}_time_scale_factor", "1"]
    return [*words[:first], *replayed, *words[last + 1 :]]


def simulated(words: list[str], source: str, out: Path, *, is_original: bool = True) -> Path:
    """Run a command line and return the folder that was written."""
    more = ["--operators", source, "--metrics_config_output_dir", str(out / "o")]
    assert run(["vidur", *words, *more, *(["--compat", "simai"] if is_original else [])]) == 0
    (folder,) = (out / "o").iterdir()
    return folder


def simulated_pools(vidur_folder: Path, out: Path, *, is_original: bool = True) -> Path:
    """Run the command line with separate pools and return the folder that was written."""
    source = f"vidur-tables:{vidur_folder}/tables/llama2_70b_a100_tp2_SIMAIFORK"
    return simulated(pools_arguments(vidur_folder / POOLS), source, out, is_original=is_original)

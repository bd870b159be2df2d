"""The output folder of Vidur: its configuration, requests, batches, operators, timelines and plots."""

import csv
import json
from datetime import datetime
from pathlib import Path
from typing import Any

from blis_sim.bench import BenchError
from blis_sim.bench.vidur import settings as vidur
from blis_sim.bench.vidur.batches import Batches, batches_of
from blis_sim.bench.vidur.catalogue import DEVICES, MODELS, NODES
from blis_sim.bench.vidur.settings import chosen, values_of
from blis_sim.bench.vidur.simulation import Simulated
from traces.text_file import write_text, writing

BATCH_COLUMNS = (
    "Batch Id",
    "batch_num_tokens",
    "batch_num_prefill_tokens",
    "batch_num_decode_tokens",
    "batch_size",
    "batch_execution_time",
)


def new_folder(options: Any) -> Path:
    """Make the folder of a run: of its instant, in the folder that the options name. Raises BenchError."""
    folder = Path(options.metrics_config_output_dir, datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f"))
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise BenchError(f"--metrics_config_output_dir: cannot make the folder {folder}: {error.strerror}") from error
    return folder


def write_folder(options: Any, simulated: Simulated, folder: Path) -> None:
    """Write all requested files. Raises BlisError."""
    from blis_sim.bench.vidur import files, plots

    given, operations = values_of(options, vidur.METRICS), {}
    write_config(options, folder)
    of_simai = options.compat == "simai" or len(simulated.cluster.pools) > 1
    requests = files.request_columns(simulated, of_simai=of_simai)
    if given["store_request_metrics"]:
        files.write_requests(requests, folder / "request_metrics.csv")
    batches = batches_of(simulated.logs)
    if given["store_batch_metrics"] and given["keep_individual_batch_metrics"]:
        write_batches(batches, folder / "batch_metrics.csv")
    if given["store_operation_metrics"] and simulated.has_operators:
        of_layers = files.operation_columns(simulated, batches)
        of_cpu = files.cpu_columns(simulated, batches)
        operations = {**of_layers, **of_cpu}
        if given["keep_individual_batch_metrics"]:
            files.write_operations(of_layers, folder / "operation_metrics.csv")
            files.write_operations(of_cpu, folder / "cpu_operation_metrics.csv")
    if given["enable_chrome_trace"]:
        files.write_chrome_trace(simulated, batches, folder)
    if given["write_json_trace"]:
        files.write_event_trace(simulated, batches, folder)
        files.write_cluster(simulated, folder)
    plots.write_plots(options, simulated, requests, batches, operations, folder)


def write_config(options: Any, folder: Path) -> None:
    """Write the configuration of the command line."""
    write_text(folder / "config.json", json.dumps(described(options, folder), indent=4))


def described(options: Any, folder: Path) -> dict[str, Any]:
    """Return the configuration as Vidur writes it."""
    replica = values_of(options, vidur.REPLICA)
    if options.compat == "vidur":
        for each in vidur.SIMAI_REPLICA:
            del replica[each.name]
    model, device, network = replica["model_name"], replica["device"], replica["network_device"]
    tflops, gib = DEVICES[device]
    replica["world_size"] = replica["num_pipeline_stages"] * replica["tensor_parallel_size"]
    replica["model_config"] = MODELS[model].described()
    replica["device_config"] = {"fp16_tflops": tflops, "total_memory_gb": gib, "name": device}
    replica["node_config"] = {"num_devices_per_node": NODES[network][0], "name": network}
    return {
        **values_of(options, vidur.MAIN),
        "cluster_config": {
            **values_of(options, vidur.CLUSTER),
            "replica_config": replica,
            "global_scheduler_config": _named(options, vidur.GLOBAL_SCHEDULER),
            "replica_scheduler_config": _named(options, vidur.REPLICA_SCHEDULER),
        },
        "request_generator_config": _described_requests(options),
        "execution_time_predictor_config": _described_predictor(options),
        "metrics_config": {**values_of(options, vidur.METRICS), "output_dir": str(folder)},
    }


def _described_predictor(options: Any) -> dict[str, Any]:
    of_simai = {each.name for each in vidur.SIMAI_PREDICTOR} if options.compat == "vidur" else set()
    return {name: value for name, value in _named(options, vidur.PREDICTOR).items() if name not in of_simai}


def _described_requests(options: Any) -> dict[str, Any]:
    named = _named(options, vidur.REQUESTS)
    if named["name"] == "trace_replay":
        return named
    lengths = _named(options, vidur.LENGTHS)
    seed = named.pop("seed")
    generators = {"length_generator_config": lengths, "interval_generator_config": _named(options, vidur.INTERVALS)}
    name = named.pop("name")
    return {"seed": seed, **generators, **named, "max_tokens": lengths["max_tokens"], "name": name}


def _named(options: Any, choice: vidur.Choice) -> dict[str, Any]:
    group = chosen(options, choice)
    return {**values_of(options, group), "name": group.name}


def write_batches(batches: Batches, path: Path) -> None:
    """Write a row for each batch."""
    counts = [each.astype(float) for each in (batches.num_tokens, batches.prefill_tokens, batches.decodes)]
    with writing(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(BATCH_COLUMNS)
        cells = [column.tolist() for column in (*counts, batches.sizes, batches.seconds)]
        writer.writerows(zip(range(len(batches)), *cells, strict=True))

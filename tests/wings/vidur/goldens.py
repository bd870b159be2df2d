"""Vidur's own runs: their command lines with our tables and requests, and their output."""

import csv
import gzip
import io
import shlex
from pathlib import Path

from blis_sim.cli.main import run

NAMES = (
    "70b_ft_fixed",
    "70b_orca_conv200_max1024",
    "70b_sarathi_conv200",
    "70b_sarathi_conv200_blocks600",
    "70b_sarathi_conv200_pp2",
    "70b_vllm_conv200",
    "70b_vllm_conv200_blocks600",
    "7ba_lightllm_conv200",
    "7ba_sarathi_conv1000_r2_lor",
    "7ba_sarathi_conv1000_r2_random",
    "7ba_sarathi_conv1000_r2_rr",
    "7ba_sarathi_pp2",
    "7ba_syn_gamma_zipf",
    "7ba_syn_poisson_fixed",
    "7ba_syn_poisson_uniform",
    "7ba_syn_static_tracelen",
    "7bh_sarathi_code300",
    "7bh_sarathi_conv1000",
    "7bh_vllm_conv1000",
)
LARGEST = "7ba_sarathi_convfull_r4_rr"
TABLES = {
    "70b": "llama2_70b_a100_tp2",
    "7ba": "llama2_7b_a100_tp1_SYNTHATTN",
    "7bh": "llama2_7b_h100_tp1_SYNTHATTN",
}


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, which may be gzipped."""
    if not path.exists():
        path = path.with_name(f"{path.name}.gz")
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return list(csv.DictReader(io.StringIO(text)))


def arguments_of(golden: Path, out: Path) -> list[str]:
    """Return the arguments of `blis vidur` for a run, whose recorded requests are those of its `requests.csv`."""
    words = shlex.split((golden / "COMMAND.txt").read_text())[3:]
    requests = out / "requests.csv"
    packed = golden / "requests.csv.gz"
    requests.write_bytes(
        gzip.decompress(packed.read_bytes()) if packed.exists() else (golden / "requests.csv").read_bytes()
    )
    flag = "--trace_request_generator_config_trace_file"
    if flag in words:
        words[words.index(flag) + 1] = str(requests)
        # These requests have been scaled already.
        words += ["--trace_request_generator_config_time_scale_factor", "1"]
    flag = "--trace_request_length_generator_config_trace_file"
    if flag in words:
        words[words.index(flag) + 1] = str(golden.parents[1] / "vidur-data" / "traces" / "splitwise_conv_1000.csv")
    tables = golden.parent / "tables" / TABLES[golden.name.split("_")[0]]
    words += [
        "--compat",
        "vidur",
        "--operators",
        f"vidur-tables:{tables}",
        "--metrics_config_output_dir",
        str(out / "o"),
    ]
    return ["vidur", *words]


def simulated(golden: Path, out: Path) -> Path:
    """Run a golden's command line and return the folder that was written."""
    assert run(arguments_of(golden, out)) == 0
    (folder,) = (out / "o").iterdir()
    return folder

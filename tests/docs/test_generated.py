"""Generated parts of pages equal the code."""

import importlib
import re

import pytest

from blis_sim.cli.commands import COMMANDS
from blis_sim.options import options_of
from blis_sim.wings.inference_sim.command import InferenceSimOptions
from mockserve.options.vllm_flags import read_table
from tests.docs.figures import replay_keys
from tests.docs.pages import PROJECT, run_script
from tests.wire.plain_http import call, complete
from tests.wire.serving import running_server
from traces.rows import TRACE_COLUMNS


def page(name: str) -> str:
    return (PROJECT / "docs" / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """Return the text under a heading, up to the next one of its level."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def shown_flags(name: str) -> set[str]:
    """Every flag of a command, those that turn a switch off included."""
    row = COMMANDS[name]
    return flags_in(getattr(importlib.import_module(row.module), row.options))


def flags_in(options_class: type) -> set[str]:
    return {flag for each in options_of(options_class) if not each.option.positional for flag in each.spellings}


@pytest.mark.slow
def test_the_generated_parts_are_up_to_date() -> None:
    done = run_script("docs/generate.py", "--check")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_setting_of_a_command_is_on_the_page_of_flags(name: str) -> None:
    text = page("cli.md")
    documented = section(text, f"blis {name}")
    for shared in ("Settings of the engine", "Settings of a cluster"):
        if f"(#{shared.lower().replace(' ', '-')})" in documented:
            documented += section(text, shared)
    assert shown_flags(name) - set(re.findall(r"`(-[\w-]+)`", documented)) == set()


def test_every_flag_that_pages_speak_of_exists() -> None:
    known = {flag for name in COMMANDS for flag in shown_flags(name)} | {
        "--help",
        "--help-all",
        "--version",
        "--install-completion",
        "--show-completion",
    }
    known |= {word for name in COMMANDS for word in name.split() if word.startswith("--")}
    known |= flags_in(InferenceSimOptions)
    known |= set(re.findall(r"`(--[\w-]+)`", page("cli.md")))
    known |= {spelling for spelling in read_table() if spelling.startswith("--")}
    others = {"--check", "--recording", "--output", "--flag", "--enable-x", "--disable-x", "--no-enable-x"}
    others |= {
        "--set",
        "--tail",
        "--render-url",
        "--enable-turbo-mode",
        "--greeting",
        "--build",
        "--save-result",
        "--save-detailed",
    }  # of programs that are not ours
    others |= {
        "--constraint",
        "--data",
        "--profile",
        "--retry",
        "--retry-connrefused",
        "--retry-delay",
        "--entrypoint",
        "--blis-flags",
    }
    others |= {
        "--features",
        "--mixed",
        "--test",
        "--dist",
        "--no-deps",
    }  # of the workshop, Node.js, xdist and pip
    others |= {"--endpoint-type", "--request-count", "--synthetic-input-tokens-mean", "--output-tokens-mean"}
    spoken_of = {
        flag
        for path in [PROJECT / "README.md", *(PROJECT / "docs").glob("*.md")]
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]+", path.read_text(encoding="utf-8"))
        if path.name not in ("accuracy.md", "published.md", "silicon.md")
    }
    assert spoken_of - known - others == set()


def test_the_metrics_on_the_page_are_those_that_a_server_exports() -> None:
    with running_server(tool_call_parser="hermes") as server:
        complete(server, max_tokens=3)
        exported = set(re.findall(r"^# TYPE (\S+)", call(server, "GET", "/metrics").body.decode(), re.MULTILINE))
    documented = set(re.findall(r"^\| `([\w:]+)` \|", section(page("serve.md"), "Metrics"), re.MULTILINE))
    assert documented == {name for name in exported if not name.endswith("_created")}
    assert len(documented) > 20


def test_the_columns_on_the_page_are_those_of_a_trace() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+)", section(page("trace-format.md"), "Rows"), re.MULTILINE)
    kinds = {int: "integer", float: "number", str: "text", bool: "true"}
    assert rows == [(column.name, kinds[column.kind]) for column in TRACE_COLUMNS]


def test_every_figure_that_a_replay_writes_is_explained() -> None:
    explained = section(page("replay.md"), "What is written")
    words = set(re.findall(r"`([\w*]+)`", explained))
    families = tuple(word.removesuffix("*") for word in words if word.endswith("_*"))
    missing = [key for key in replay_keys() if key not in words and not key.startswith(families)]
    assert missing == []


def test_the_readme_has_the_errors_of_the_page_of_figures() -> None:
    """The ordinary recordings as a range, the one with the largest errors and the saturated ones by themselves."""
    rows = section(page("accuracy.md"), "Replayed with `--engine vllm`").splitlines()
    saturated = [percentages(row.replace(cap, "")) for row in rows for cap in re.findall(r"\(cap of [^)]*\)", row)]
    rows = [row for row in rows if "(cap of" not in row]
    errors = sorted((figures[1], figures[0]) for row in rows if len(figures := percentages(row)) == 3)
    *ordinary, worst = errors
    e2e, ttft = [each[0] for each in ordinary], [each[1] for each in ordinary]
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    assert cells(readme, "the same server, `--engine blis`") == [
        f"{min(e2e):.0f} to {max(e2e):.0f} %",
        f"{min(ttft):.0f} to {max(ttft):.0f} %",
    ]
    assert cells(readme, "the same, with long prompts") == [f"{worst[0]:.0f} %", f"{worst[1]:.0f} %"]
    assert cells(readme, "the same, two saturated") == [
        f"up to {max(row[1] for row in saturated):.0f} %",
        f"up to {max(row[0] for row in saturated):.0f} %",
    ]
    learned = section(page("accuracy.md"), "Learned coefficients").splitlines()
    (ttft_6, e2e_6, *_), (ttft_w7, e2e_w7, *_) = (percentages(row) for row in learned if "**not seen**" in row)
    assert cells(readme, "Qwen3-14B on one H100") == [f"{e2e_6} and {e2e_w7} %", f"{ttft_6} and {ttft_w7} %"]
    kernels = section(page("published.md"), "kernels")
    largest = max(float(each) for each in re.findall(r"[+-]([\d.]+)% \| [+-][\d.]+% \|$", kernels, re.MULTILINE))
    median = last_figures(row_of(kernels, "**median"))[1]
    assert cells(readme, "eight servers with other models") == [f"{median} and {largest} %", ""]
    of_silicon = re.findall(r"([\d.]+)%", row_of(section(page("silicon.md"), "kernels"), "**main**"))
    assert f"INT4 is off by {of_silicon[0]} % in the median" in " ".join(readme.split())


def cells(text: str, first: str) -> list[str]:
    """Return the cells behind the first one of the row of a table that begins with `first`."""
    row = next(line for line in text.splitlines() if line.startswith(f"| {first}"))
    return [cell.strip() for cell in row.strip("|").split("|")[1:]]


def test_the_page_of_models_has_the_errors_of_the_pages_of_figures() -> None:
    """TTFT, E2E and ITL: of a recording not learned from, of servers with other models, of another GPU."""
    table = section(page("models.md"), "How a step is timed")
    accuracy, published = page("accuracy.md"), page("published.md")
    learned, replayed = (
        percentages(row_of(section(accuracy, part), "sweep_rate_agg_6rps_vanilla"))
        for part in ("Learned coefficients", "Replayed with `--engine vllm`")
    )
    fitted, kernels, physics = (
        last_figures(row_of(section(published, model), "**median"))
        for model in ("fitted", "kernels", "trained-physics")
    )
    kernels_there, physics_there = (
        last_figures(row_of(section(published, "Another GPU"), f"| {model} |"))
        for model in ("kernels", "trained-physics")
    )
    assert triples(row_of(table, "recordings of")) == [learned, replayed]
    assert triples(row_of(table, "with grouped KV heads on one H100 |")) == [fitted, replayed]
    assert triples(row_of(table, "other models in 16 bits")) == [kernels, physics]
    assert triples(row_of(table, "| another GPU |")) == [kernels_there, physics_there]


def triples(row: str) -> list[list[float]]:
    """The first three figures in a row in each of its last two cells."""
    found = [re.search(r"([\d.]+), ([\d.]+), ([\d.]+) %", cell) for cell in row.split("|")[3:5]]
    return [[float(each) for each in figures.groups()] if figures else [] for figures in found]


def row_of(table: str, part: str) -> str:
    """The only row, or the first, that contains `part`."""
    return next(row for row in table.splitlines() if part in row)


def last_figures(row: str) -> list[float]:
    """The last three percentages of a row."""
    return [float(each) for each in re.findall(r"([\d.]+)%", row)][-3:]


def percentages(row: str) -> list[float]:
    """MAPE of TTFT, E2E and ITL in a row of a table."""
    return [float(each) for each in re.findall(r"([\d.]+)% /", row)]

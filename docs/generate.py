"""Writes those parts of the documentation that are facts of the code: flags, routes, metrics, columns, the catalogue.

    python docs/generate.py [--check]

Each part stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->` in a page of this folder; the rest of the
page is written by hand. With --check nothing is written: the exit code is 1 if a part is not what the code says.
"""

import argparse
import asyncio
import importlib
import re
import sys
import typing
import urllib.request
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import compatibility
import typed_settings

from blis_sim.bench.candidates import read_prices
from blis_sim.cli.commands import COMMANDS, commands_in
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.latency.catalogue import gpu_entry, gpu_names, model_entry, model_names
from blis_sim.options import options_from, options_of
from blis_sim.options.command_line import DEFAULT_HEADING
from blis_sim.options.file_fields import keys_of
from blis_sim.options.option import Setting
from mockserve.listening import start
from mockserve.options.serve import ServeOptions
from mockserve.options.vllm_flags import ACTS, UNSEEN, read_table
from mockserve.routes.table import routes_under
from mockserve.serving.model import RouteCondition
from traces.rows import TRACE_COLUMNS
from traces.steps import STEP_COLUMNS
from traces.table import Column
from traces.trace_v2 import ITL_COLUMNS, HeaderFile

FOLDER = Path(__file__).resolve().parent
TYPES: Mapping[Any, str] = {int: "integer", float: "number", str: "text", bool: "true or false"}
PLURALS: Mapping[Any, str] = {int: "integers", float: "numbers", str: "texts"}


def commands() -> str:
    """One section per command, and those of the settings that all commands with an engine, or with several, share."""
    engine = options_of(DeploymentOptions)
    cluster = [setting for setting in options_of(ClusterOptions) if setting not in engine]
    sections = []
    for name in commands_in(""):
        row = COMMANDS[name]
        kind = getattr(importlib.import_module(row.module), row.options)
        text = f"## blis {name}\n\n{row.help}\n\n{_settings_tables(kind, without=[*engine, *cluster])}"
        names = {setting.name for setting in options_of(kind)}
        if names.issuperset(setting.name for setting in engine):
            text += "\n\nAnd the [settings of the engine](#settings-of-the-engine)"
            has_cluster = names.issuperset(setting.name for setting in cluster)
            text += ", and [of a cluster](#settings-of-a-cluster)." if has_cluster else "."
        sections.append(text)
    of_engine = _settings_tables(DeploymentOptions, without=[])
    of_cluster = _settings_tables(ClusterOptions, without=engine)
    return "\n\n".join(
        [
            *sections,
            f"## Settings of the engine\n\nThe same in every command that simulates one.\n\n{of_engine}",
            f"## Settings of a cluster\n\nThe same in `serve`, `run` and `replay`.\n\n{of_cluster}",
        ]
    )


def routes() -> str:
    """Every route of the server, with the first line of its handler's docstring."""
    rows = [
        (each.method, f"`{each.path}`", (each.handler.__doc__ or "").strip().partition("\n")[0], each.condition.value)
        for each in routes_under(list(RouteCondition))
    ]
    return table(("method", "path", "answer", "only with"), rows)


def metrics() -> str:
    """Every metric on the page of a server that has just started; when one was created is no metric of its own."""
    page = asyncio.run(_metrics_page())
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", page, re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", page, re.MULTILINE))
    rows = [(f"`{name}`", kind, helps[name]) for name, kind in kinds.items() if not name.endswith("_created")]
    return table(("name", "type", "meaning"), rows)


def flags_that_act() -> str:
    """The flags of vLLM that act here, by what they are about."""
    return _flags_by_subject(ACTS)


def flags_unseen() -> str:
    """The flags of vLLM that change nothing that a client or a prediction can see, by what they are about."""
    return _flags_by_subject(UNSEEN)


def _flags_by_subject(here: str) -> str:
    subjects: dict[str, dict[str, None]] = {}
    for flag in read_table().values():
        if flag.here == here:
            subjects.setdefault(flag.about, {})[f"`{flag.name}`"] = None
    rows = [(subject, f"{len(flags)}", " ".join(sorted(flags))) for subject, flags in sorted(subjects.items())]
    return table(("about", "count", "flags"), rows)


def flags_not_modelled() -> str:
    """The flags of vLLM that change there what they do not change here, and what is assumed instead."""
    flags: dict[str, dict[str, None]] = {}
    for flag in read_table().values():
        if flag.is_not_modelled:
            flags.setdefault(flag.here, {})[f"`{flag.name}`"] = None
    return table(("flags", "assumed"), [(" ".join(names), assumption) for assumption, names in flags.items()])


def trace_columns() -> str:
    """The columns of a trace."""
    rows = [
        (*cells, "required" if column.required else "on request" if column.on_request else "", column.help)
        for column, cells in _columns(TRACE_COLUMNS)
    ]
    return table(("column", "type", "presence", "meaning"), rows)


def itl_columns() -> str:
    """The columns of recorded token times."""
    return table(("column", "type", "meaning"), [(*cells, column.help) for column, cells in _columns(ITL_COLUMNS)])


def step_columns() -> str:
    """The columns of recorded steps."""
    return table(("column", "type", "meaning"), [(*cells, column.help) for column, cells in _columns(STEP_COLUMNS)])


def header_keys() -> str:
    """The keys of a trace header, with those inside them."""
    return table(("key", "value"), ((f"`{path}`", kind) for path, kind in _keys(HeaderFile, "")))


def models() -> str:
    """The catalogue of models, each with its default deployment."""
    rows = []
    for name in model_names():
        entry = model_entry(name)
        found = resolve(DeploymentOptions(model=name))
        sizes = (f"{found.model.max_model_len:,}", f"{found.config.total_kv_blocks:,}")
        aliases = ", ".join(f"`{alias}`" for alias in entry.aliases)
        where = (entry.source, ", ".join(entry.assumed))
        rows.append((f"`{name}`", aliases, entry.gpu, str(entry.tp), *sizes, *where))
    return table(("model", "other names", "GPU", "tp", "context", "KV blocks", "source", "not checked"), rows)


def gpus() -> str:
    """The catalogue of GPUs."""
    rows = []
    for name in gpu_names():
        entry = gpu_entry(name)
        gpu = entry.gpu
        peaks = ", ".join(f"{each:g}" if each else "-" for each in (gpu.tflops, gpu.tflops_fp8, gpu.tflops_fp4))
        links = (gpu.nvlink_gb_s, gpu.pcie_gb_s, gpu.network_gb_s)
        rates = (peaks, f"{gpu.bandwidth_tb_s:g}", ", ".join(f"{each:g}" if each else "-" for each in links))
        fractions = f"{gpu.mfu_prefill:g}, {gpu.mfu_decode:g}"
        aliases = ", ".join(f"`{alias}`" for alias in entry.aliases)
        memory = f"{gpu.memory_gib:g}, {gpu.cuda_memory_gib:g}"
        rows.append((f"`{name}`", aliases, *rates, memory, fractions, ", ".join(entry.assumed), entry.source))
    columns = ("TFLOP/s in 16, 8, 4 bits", "TB/s", "GB/s of NVLink, PCIe, network", "GiB as sold, for CUDA")
    return table(("GPU", "other names", *columns, "MFU of prefill, decode", "not published", "source"), rows)


def prices() -> str:
    """The list prices of GPUs."""
    found = read_prices(None).by_gpu
    rows = [(f"`{gpu}`", f"{price.per_hour:.2f}", price.source, price.as_of) for gpu, price in found.items()]
    return table(("GPU", "$ per hour", "source", "as of"), rows)


def compared_routes() -> str:
    """Every route with what is known of its likeness to vLLM's."""
    names = ("method", "path", "answer", "captured requests that agree", "tests")
    return table(names, compatibility.compared_routes())


def request_fields() -> str:
    """Every field of a request for text."""
    return table(("fields", "what becomes of them", "difference from vLLM", "tests"), compatibility.request_fields())


def differences() -> str:
    """Replies that differ on purpose."""
    return table(("captured request", "place", "why"), compatibility.meant_differences())


def parser_differences() -> str:
    """Differences on purpose under single parsers."""
    return table(("parsers", "requests", "why"), compatibility.parser_differences())


PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "cli.md": {"commands": commands},
    "serve.md": {"routes": routes, "metrics": metrics},
    "compatibility.md": {
        "compared routes": compared_routes,
        "request fields": request_fields,
        "differences": differences,
        "parser differences": parser_differences,
        "open requests": compatibility.open_requests,
    },
    "vllm-flags.md": {"acting": flags_that_act, "not modelled": flags_not_modelled, "unseen": flags_unseen},
    "trace-format.md": {
        "columns": trace_columns,
        "token times": itl_columns,
        "steps": step_columns,
        "header": header_keys,
    },
    "plan.md": {"prices": prices},
    "models.md": {"models": models, "gpus": gpus},
}
"""Page to the names of its parts to what makes them."""


def renewed(page: str, text: str) -> str:
    """The text of a page with its generated parts as they should be. Raises ValueError when one has no place."""
    for name, part in PARTS[page].items():
        start_mark, end_mark = f"<!-- generated: {name} -->\n", f"\n<!-- end of {name} -->"
        before, found_start, rest = text.partition(start_mark)
        _, found_end, after = rest.partition(end_mark)
        if not (found_start and found_end):
            raise ValueError(f"docs/{page} must have a place for {name!r}: {start_mark.strip()} and {end_mark.strip()}")
        text = before + start_mark + part() + end_mark + after
    return text


def main() -> int:
    """Renew all pages, or name those that are out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    only_checks = parser.parse_args().check
    num_outdated = 0
    pages = {FOLDER / page: renewed(page, (FOLDER / page).read_text(encoding="utf-8")) for page in PARTS}
    for path, new in {**pages, **typed_settings.texts()}.items():
        if new != path.read_text(encoding="utf-8"):
            num_outdated += 1
            name = path.relative_to(FOLDER.parent)
            sys.stdout.write(f"{name} {'is out of date: run `make docs`' if only_checks else 'renewed'}\n")
            if not only_checks:
                path.write_text(new, encoding="utf-8")
    return 1 if only_checks and num_outdated else 0


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(_line(cells) for cells in (names, ["---"] * len(names), *rows))


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _by_heading(options_class: type) -> Mapping[str, list[Setting]]:
    """Heading to settings: arguments without one, then those of the class itself, then those of its sections."""
    settings = options_of(options_class)
    found: dict[str, list[Setting]] = {"": [each for each in settings if each.option.positional]}
    for setting in sorted(settings, key=lambda each: bool(each.path and each.heading)):
        if not setting.option.positional:
            found.setdefault(setting.heading or DEFAULT_HEADING, []).append(setting)
    return found


def _settings_tables(options_class: type, without: Container[Setting]) -> str:
    """A table for each heading."""
    names = ("setting", "value", "default", "meaning")
    parts = []
    for heading, settings in _by_heading(options_class).items():
        rows = [tuple(_setting_cells(setting)) for setting in settings if setting not in without]
        if rows:
            parts.append((f"**{heading}**\n\n" if heading not in ("", DEFAULT_HEADING) else "") + table(names, rows))
    return "\n\n".join(parts)


def _setting_cells(setting: Setting) -> Iterator[str]:
    known = setting.option
    spellings = [known.metavar or setting.label] if known.positional else list(setting.flags)
    if _kind(setting) is bool:
        spellings.insert(1, f"--no-{spellings[0].removeprefix('--')}")
    yield ", ".join(f"`{each}`" for each in spellings)
    yield ", ".join(f"`{choice}`" for choice in filter(None, known.choices)) or _kind_text(setting)
    yield "required" if setting.required else _default(setting.default)
    yield known.help + (" Not shown by `--help`." if known.hidden else "")


def _kind_text(setting: Setting) -> str:
    kind, known = _kind(setting), setting.option
    if kind is bool:
        return ""
    is_list = typing.get_origin(kind) is tuple
    name = f"list of {PLURALS[typing.get_args(kind)[0]]}" if is_list else TYPES[kind]
    bounds = known.bounds
    above = "" if bounds.above is None else f" above {bounds.above:.10g}"
    infinity = "" if known.infinity is None else f" or `{known.infinity}`"
    return name + above + _bounds(bounds.at_least, bounds.at_most) + infinity


def _kind(setting: Setting) -> Any:
    """The type of a setting, without None."""
    if typing.get_origin(setting.type) is tuple:
        return setting.type
    return next((each for each in typing.get_args(setting.type) if each is not type(None)), setting.type)


def _default(value: Any) -> str:
    if value in (None, "", ()):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return f"`{','.join(map(str, value))}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _bounds(at_least: float | None, at_most: float | None) -> str:
    """The limits of a value, to follow its type."""
    if at_least is not None and at_most is not None:
        return f" from {at_least:.10g} to {at_most:.10g}"
    if at_least is not None:
        return f" from {at_least:.10g}"
    return "" if at_most is None else f" up to {at_most:.10g}"


async def _metrics_page() -> str:
    options = options_from(ServeOptions, model="qwen3-14b", host="127.0.0.1", port=0, tool_call_parser="hermes")
    server = await start(options, resolve(options.deployment))
    try:
        return await asyncio.to_thread(_read, f"http://{server.host}:{server.port}/metrics")
    finally:
        await server.stop()


def _read(url: str) -> str:
    with urllib.request.urlopen(url) as reply:
        return str(reply.read(), "utf-8")


def _columns(columns: Iterable[Column]) -> Iterator[tuple[Column, tuple[str, str]]]:
    for column in columns:
        yield column, (f"`{column.name}`", TYPES[column.kind] + _bounds(column.at_least, column.at_most))


def _keys(part: type, before: str) -> Iterator[tuple[str, str]]:
    """The path of every key, and what it holds."""
    for name, (kind, bounds, _) in keys_of(part).items():
        path = before + name
        inner = typing.get_args(kind)
        if typing.is_typeddict(kind):
            yield from _keys(kind, f"{path}.")
        elif inner:
            yield from _keys(inner[-1], f"{path}.CLASS." if len(inner) > 1 else f"{path}[].")
        else:
            choices = " or ".join(f"`{choice}`" if choice else "empty" for choice in bounds.choices)
            yield path, choices or TYPES[kind] + _bounds(bounds.at_least, None)


if __name__ == "__main__":
    sys.exit(main())

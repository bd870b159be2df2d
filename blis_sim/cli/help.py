"""Help of commands, with their settings under headings, of `blis` and of groups; and completion in shells."""

import importlib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from blis_sim.cli.commands import COMMANDS, FIRST_STEPS, GROUPS, CommandRow, commands_in
from blis_sim.options import OptionError, options_of
from blis_sim.options.option import Setting
from blis_sim.options.text import NUMBERS

_BOLD, _CYAN, _GREEN, _END = "\x1b[1m", "\x1b[36m", "\x1b[32m", "\x1b[0m"
_RULES = (
    (r"^()(Usage:|[A-Z][^\n:]*:$)", _BOLD),
    (r"^(  )(--?[a-zA-Z][^\n]*?)(?=  |$)", _CYAN),
    (r"^(  )(blis [^\n]*|[a-z]+(?: [a-z]+)?(?=  ))", _GREEN),
)


def coloured(page: str) -> str:
    """Return the page with coloured headings, flags and commands where standard output shows colours.

    NO_COLOR turns colours off and FORCE_COLOR turns them on, as in other programs.
    """
    if not _shows_colours():
        return page
    for pattern, code in _RULES:
        page = re.sub(pattern, rf"\1{code}\2{_END}", page, flags=re.MULTILINE)
    return page


def _shows_colours() -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


SCRIPTS: Mapping[str, str] = {
    "bash": """\
# In ~/.bashrc: eval "$(blis --completion bash)"
_blis() {
  local IFS=$'\\n' found
  found=$("$1" --complete "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)
  COMPREPLY=($(compgen -W "$found" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _blis blis
""",
    "zsh": """\
# In ~/.zshrc: eval "$(blis --completion zsh)"
_blis() {
  local -a found
  found=("${(@f)$("$words[1]" --complete "${(@)words[2,CURRENT-1]}" 2>/dev/null)}")
  compadd -- $found || _files
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _blis blis
""",
    "fish": """\
# In ~/.config/fish/config.fish: blis --completion fish | source
function __blis_complete
  set -l words (commandline -opc)
  set -l typed (commandline -ct)
  set -l fitting '^'(string escape --style=regex -- $typed)
  set -l found ($words[1] --complete $words[2..] 2>/dev/null | string match --entire --regex -- $fitting)
  if set -q found[1]
    printf '%s\\n' $found
  else
    __fish_complete_path $typed
  end
end
complete -c blis -f -a '(__blis_complete)'
""",
}
"""Shell to its script. Where nothing fits, each goes on with names of files."""


def candidates(words: Sequence[str]) -> list[str]:
    """Return the words that may come next: commands, choices of the flag before, or flags."""
    if words[:1] == ["help"]:
        words = words[1:]
    name = next((each for each in (" ".join(words[:2]), " ".join(words[:1])) if each in COMMANDS), None)
    if name is None:
        depth = len(words)
        known = [each.split() for each in (commands_in(words[0]) if words else COMMANDS)]
        return list(dict.fromkeys(each[depth] for each in known if len(each) > depth))
    row = COMMANDS[name]
    settings = options_of(getattr(importlib.import_module(row.module), row.options))
    for setting in settings:
        if words[-1] in setting.flags and setting.kind is not bool:
            return [choice for choice in setting.option.choices if choice]
    shown = [each for each in settings if not each.option.hidden and not each.option.positional]
    return [*(spelling for each in shown for spelling in each.spellings), "--help"]


DESCRIPTION = """Develop and test around vLLM without a GPU, and measure how close the simulation is.

Serve a vLLM look-alike, plan and predict deployments, record any server, replay the recording, compare the two.
"""

DEFAULT_HEADING = "Options"
"""Heading of settings without one."""

_WIDEST, _NARROWEST = 120, 52
"""Columns: longer lines are hard to read, and shorter ones are broken wherever the terminal does."""
_WIDEST_NAME = 30
"""Columns; the text behind a longer name begins on the next line."""

Row = tuple[str, str]
"""Spelling of a setting, or the name of a command, and its help."""

HELP_ROW = ("-h, --help", "Show this message and exit.")
_VERSION, _COMPLETION, _HELP = "--version", "--completion", "--help"
ALL = "all"
"""Topic of help on all settings."""
_MORE = "--help=GROUP and --help=FLAG explain the options that are only named here, --help=all explains all."


def command_page(options_class: type, row: CommandRow, program: str, topic: str = "") -> str:
    """The help of a command: of all settings, or where it has many of the main ones with the names of the others.

    `topic` is `all`, a group of settings or a flag. Raises OptionError for another one.
    """
    sections = _sections(options_class)
    if topic and topic != ALL:
        return _page("", "", _topic_section(options_class, sections, topic))
    arguments = map(_usage, by_heading(options_class).get("", ()))
    required = [
        _flag_syntax(each) for each in options_of(options_class) if each.required and not each.option.positional
    ]
    usage = " ".join([program, "[OPTIONS]", *required, *arguments])
    end = ""
    if row.main and topic != ALL:
        end = _MORE
        named = {f"{_HELP}={slug(name)}": _names(rows) for name, rows in sections.items() if name not in row.main}
        sections = {name: rows for name, rows in sections.items() if name in row.main}
        sections["More options, by group"] = list(named.items())
    shown = {"Examples": [(example, "") for example in row.examples], **sections}
    return _page(usage, row.help, shown, end)


def _names(rows: Iterable[Row]) -> str:
    return ", ".join(name.split(" ")[0].rstrip(",") for name, _ in rows)


def _topic_section(options_class: type, sections: Mapping[str, list[Row]], topic: str) -> Mapping[str, list[Row]]:
    """Return the section of a group, or the row of a flag. Raises OptionError for any other topic."""
    groups = {slug(heading): heading for heading in sections}
    alike = [topic] if topic in groups else [group for group in groups if topic in group]
    if len(alike) == 1:
        return {groups[alike[0]]: sections[groups[alike[0]]]}
    for setting in options_of(options_class):
        flags = () if setting.option.positional else setting.spellings
        if topic.lstrip("-") in {flag.lstrip("-") for flag in flags}:
            return {setting.heading or DEFAULT_HEADING: [(_flag_syntax(setting), _help_with_default(setting))]}
    raise OptionError(f"{_HELP}={topic}: no such group or flag, known are {', '.join([ALL, *groups])}")


def slug(heading: str) -> str:
    """The word by which `--help=` finds a group of settings."""
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def overview_page(group: str, program: str) -> str:
    """The help of `blis`, or of the commands of a group, none of them imported."""
    options = [
        ("-V, --version", "Print the version and exit."),
        (
            "--completion SHELL",
            'Print what completes commands and flags in bash, zsh or fish: eval "$(blis --completion bash)".',
        ),
        HELP_ROW,
    ]
    commands = [(name.removeprefix(f"{group} "), COMMANDS[name].help) for name in commands_in(group)]
    examples = [(example, "") for example in FIRST_STEPS] if not group else []
    return _page(
        f"{program} [OPTIONS] COMMAND [ARGS]...",
        GROUPS.get(group, DESCRIPTION),
        {"First steps": examples, DEFAULT_HEADING: options, "Commands": commands},
        f"Run `{program} COMMAND --help` for its options.",
    )


def by_heading(options_class: type) -> Mapping[str, list[Setting]]:
    """Heading to settings: arguments without one, then those of the class itself, then those of its sections."""
    settings = options_of(options_class)
    found: dict[str, list[Setting]] = {"": [each for each in settings if each.option.positional]}
    for setting in sorted(settings, key=lambda each: bool(each.path and each.heading)):
        if not setting.option.positional:
            found.setdefault(setting.heading or DEFAULT_HEADING, []).append(setting)
    return found


def _page(usage: str, text: str, sections: Mapping[str, Iterable[Row]], end: str = "") -> str:
    width = max(min(shutil.get_terminal_size().columns, _WIDEST), _NARROWEST) - 2
    parts = [
        *([_usage_lines(usage, width)] if usage else []),
        *(_wrapped(each, width, "  ") for each in re.split(r"\n\s*\n", text.strip()) if each),
    ]
    parts += ["\n".join((f"{heading}:", *_table(list(rows), width))) for heading, rows in sections.items() if rows]
    return coloured("\n\n".join([*parts, _wrapped(end, width, "  ")] if end else parts) + "\n")


def _usage_lines(usage: str, width: int) -> str:
    program, _, arguments = usage.partition(" [OPTIONS]")
    start = f"Usage: {program} "
    return textwrap.fill(
        f"[OPTIONS]{arguments}", width, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False
    )


def _wrapped(text: str, width: int, indent: str) -> str:
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)


def _table(rows: list[Row], width: int) -> Iterator[str]:
    first_width = min(max(len(name) for name, _ in rows), _WIDEST_NAME)
    for name, text in rows:
        lines = textwrap.wrap(text, width - first_width - 4, break_on_hyphens=False, break_long_words=False) or [""]
        if len(name) > first_width:
            yield f"  {name}"
            lines = lines if text else []
        else:
            lines[0] = f"  {name.ljust(first_width)}  {lines[0]}"
        for number, line in enumerate(lines):
            yield (line if number == 0 and len(name) <= first_width else f"{' ' * (first_width + 4)}{line}").rstrip()


def _sections(options_class: type) -> Mapping[str, list[Row]]:
    sections: dict[str, list[Row]] = {}
    for heading, settings in by_heading(options_class).items():
        for setting in settings:
            if not setting.option.hidden:
                sections.setdefault(heading or "Arguments", []).append(
                    (_flag_syntax(setting), _help_with_default(setting))
                )
    sections.setdefault(DEFAULT_HEADING, []).append(HELP_ROW)
    return sections


def _usage(argument: Setting) -> str:
    name = argument.option.metavar or argument.label
    return f"{name if argument.required else f'[{name}]'}{'...' if argument.is_repeated else ''}"


def _flag_syntax(setting: Setting) -> str:
    known, kind = setting.option, setting.kind
    if known.positional:
        return known.metavar or setting.label
    spellings = ", ".join(setting.flags)
    if kind is bool:
        return f"{spellings} / {setting.spellings[-1]}" if setting.default else spellings
    name = "LIST" if setting.is_list and not setting.is_repeated else {int: "N", float: "X"}.get(kind, "TEXT")
    return f"{spellings} {known.metavar or name}"


def _help_with_default(setting: Setting) -> str:
    known = setting.option
    text = f"{known.help} One of: {', '.join(filter(None, known.choices))}." if known.choices else known.help
    if setting.required:
        return f"{text} [required]"
    if setting.default in (None, "", ()) or setting.default is False or re.search(r"\bdefault\b", known.help, re.I):
        return text
    return f"{text} [default: {_default(setting)}]"


def _default(setting: Setting) -> str:
    if setting.kind is bool:
        return "on"
    if isinstance(setting.default, tuple):
        return ",".join(map(str, setting.default))
    return f"{setting.default:g}" if setting.kind in NUMBERS and abs(setting.default) < 1e6 else str(setting.default)


def show_overview(group: str, arguments: list[str], program: str) -> int:
    """Print the output that flags of `blis` or of a group request, by default the help. Returns the exit code.

    Raises OptionError for other arguments.
    """
    flag, equals, value = (arguments or [_HELP])[0].partition("=")
    flag = {"-h": _HELP, "-V": _VERSION}.get(flag, flag)
    words = [value] if equals else arguments[1:]
    if flag == _HELP:
        text = overview_page(group, program)
    elif flag == _VERSION and not words:
        text = f"{_version()}\n"
    elif flag == _COMPLETION and len(words) <= 1:
        text = _script(*words)
    else:
        known = ", ".join((_VERSION, f"{_COMPLETION} SHELL", _HELP))
        raise OptionError(f"no such option: {' '.join(arguments)}, known are {known}")
    sys.stdout.write(text)
    return 0


def _script(shell: str = "bash") -> str:
    if shell not in SCRIPTS:
        raise OptionError(f"--completion must be one of {', '.join(SCRIPTS)}, got {shell!r}")
    return SCRIPTS[shell]


def _version() -> str:
    from importlib.metadata import version
    from importlib.util import find_spec

    core = find_spec("blis_sim.engine.core")
    is_compiled = core is not None and core.origin is not None and not core.origin.endswith(".py")
    return f"{version('blis-mockserve')}{' (compiled engine)' if is_compiled else ''}"

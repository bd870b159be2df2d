"""Completion in bash: a script for it, and what may follow the words typed so far."""

import importlib
from collections.abc import Sequence

from blis_cli.commands import COMMANDS, members
from blis_options import options_of

SCRIPT = """\
# In ~/.bashrc: eval "$(blis --completion)"
_blis() {
  local IFS=$'\\n'
  COMPREPLY=($(compgen -W "$("$1" --complete "${COMP_WORDS[@]:1:COMP_CWORD-1}")" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _blis blis
"""
"""Where nothing fits, the shell goes on with names of files."""


def candidates(words: Sequence[str]) -> list[str]:
    """What may come next: words of commands, choices of the flag before, or flags."""
    if words[:1] == ["help"]:
        words = words[1:]
    name = next((each for each in (" ".join(words[:2]), " ".join(words[:1])) if each in COMMANDS), None)
    if name is None:
        depth = len(words)
        known = [each.split() for each in (members(words[0]) if words else COMMANDS)]
        return list(dict.fromkeys(each[depth] for each in known if len(each) > depth))
    row = COMMANDS[name]
    settings = options_of(getattr(importlib.import_module(row.module), row.options))
    for setting in settings:
        if words[-1] in setting.flags and setting.kind is not bool:
            return [choice for choice in setting.option.choices if choice]
    shown = [each for each in settings if not each.option.hidden and not each.option.positional]
    return [*(spelling for each in shown for spelling in each.spellings), "--help"]

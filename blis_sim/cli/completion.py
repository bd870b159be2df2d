"""Completion in shells: a script for each, and what may follow the words typed so far."""

import importlib
from collections.abc import Mapping, Sequence

from blis_sim.cli.commands import COMMANDS, members
from blis_sim.options import options_of

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
        known = [each.split() for each in (members(words[0]) if words else COMMANDS)]
        return list(dict.fromkeys(each[depth] for each in known if len(each) > depth))
    row = COMMANDS[name]
    settings = options_of(getattr(importlib.import_module(row.module), row.options))
    for setting in settings:
        if words[-1] in setting.flags and setting.kind is not bool:
            return [choice for choice in setting.option.choices if choice]
    shown = [each for each in settings if not each.option.hidden and not each.option.positional]
    return [*(spelling for each in shown for spelling in each.spellings), "--help"]

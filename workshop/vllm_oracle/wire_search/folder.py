"""A model folder with every mark that a parser of vLLM looks for in the vocabulary.

python -m workshop.vllm_oracle.wire_search.folder BASE OUT; BASE is a folder with a tokenizer.json and a config.json.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from workshop.ending import positional, run_command
from workshop.vllm_oracle.wire_search.markup import MARKS

SPARE_IDS = 64
"""Ids of the configuration beyond those of the tokenizer."""
CHAT = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def main() -> int:
    """Write the folder."""
    base, out = map(Path, positional("BASE", "OUT"))
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(each, normalized=False) for each in MARKS])
    tokenizer.save(str(out / "tokenizer.json"))
    settings = json.loads((base / "tokenizer_config.json").read_text())
    (out / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": CHAT}))
    config = json.loads((base / "config.json").read_text())
    size = tokenizer.get_vocab_size(with_added_tokens=True) + SPARE_IDS
    (out / "config.json").write_text(json.dumps({**config, "vocab_size": size}))
    (out / "generation_config.json").write_text((base / "generation_config.json").read_text())
    return 0


if __name__ == "__main__":
    run_command(main)

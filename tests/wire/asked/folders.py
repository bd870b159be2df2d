"""Model folders that a genuine vLLM and our server can both be started with: a byte-level vocabulary, and settings.

python -m tests.wire.asked.folders OUT writes them all.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

MARKS = ("<s>", "</s>", "<think>", "</think>", "<tool_call>", "</tool_call>")
VOCABULARY_SIZE = 300
"""More ids than the tokenizer has tokens, as many models have."""

CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
WITH_TOOLS = "{{ bos_token }}tools{{ tools | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
LIMITS = {"max_new_tokens": 7, "temperature": 0.5, "top_k": 3, "top_p": 0.25, "repetition_penalty": 1.5, "min_p": 0.1}

NUM_WORDS = 6500
"""Enough for all tokens of a genuine server's model where a request cannot choose them, as with beams."""


def byte_tokenizer(num_words: int = 0) -> Any:
    """A token for each byte, and the marks; nothing of it is trained, so it is the same everywhere.

    Then come words that no text is encoded as.
    """
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(f"w{number}" for number in range(num_words))]
    tokenizer = Tokenizer(models.BPE(vocab={each: number for number, each in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(MARKS[:2]))
    tokenizer.add_tokens([AddedToken(each, normalized=False) for each in MARKS[2:]])
    return tokenizer


def write_folder(
    folder: Path,
    chat_template: Any = CHAT,
    generation: Mapping[str, Any] | None = None,
    num_words: int = 0,
) -> Path:
    """A model folder. `chat_template` may be a list of named ones, or None."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer(num_words)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": MARKS[0], "eos_token": MARKS[1]}
    if chat_template is not None:
        settings["chat_template"] = chat_template
    _write(folder / "tokenizer_config.json", {**settings, "model_max_length": 4096})
    ids = {"bos_token_id": tokenizer.token_to_id(MARKS[0]), "eos_token_id": tokenizer.token_to_id(MARKS[1])}
    _write(folder / "config.json", {**_CONFIG, **ids, "vocab_size": VOCABULARY_SIZE + num_words})
    _write(folder / "generation_config.json", {**ids, **(generation or {})})
    return folder


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


_CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY_SIZE,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}

FOLDERS: Mapping[str, Mapping[str, Any]] = {
    "usual": {},
    "bare": {"chat_template": None},
    "named": {
        "chat_template": [{"name": "default", "template": CHAT}, {"name": "tool_use", "template": WITH_TOOLS}],
    },
    "limited": {"generation": LIMITS},
    "wide": {"num_words": NUM_WORDS},
}
"""By name: what is special about each folder."""


def write_folders(out: Path) -> None:
    """All of them."""
    for name, settings in FOLDERS.items():
        write_folder(out / name, **settings)


if __name__ == "__main__":
    write_folders(Path(sys.argv[1]))

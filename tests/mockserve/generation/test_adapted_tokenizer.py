"""Settings beside a tokenizer.json change it as they do in vLLM: the ids below are those of a genuine server."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, processors

from blis_sim.options import OptionError
from mockserve.generation.tokenizer import FileTokenizer, open_tokenizer, read_settings, special_tokens

LLAMA = {"tokenizer_class": "LlamaTokenizer", "model_type": "llama"}
LETTERS = "abcdefghijklmnopqrstuvwxyz[]"


def with_spaces() -> Any:
    """A vocabulary with a token for each byte, as Llama 2 has one."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *LETTERS]
    merges = [("h", "e"), ("l", "l"), ("\u2581", "he"), ("\u2581he", "ll"), ("\u2581hell", "o")]
    vocabulary = {each: number for number, each in enumerate([*tokens, *map("".join, merges)])}
    model = models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def opened(folder: Path, settings: Mapping[str, Any]) -> FileTokenizer:
    with_spaces().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return open_tokenizer(folder)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (" hello", [292]),
        (" hello  there's", [292, 259, 259, 279, 288, 277, 264, 42, 278]),
        ("<s>[user]", [1, 286, 280, 278, 264, 277, 287]),
        ("hello<s> there", [292, 1, 259, 279, 288, 277, 264]),
    ],
)
def test_the_class_of_llama_puts_a_space_before_a_text_and_none_behind_special_tokens(
    tmp_path: Path, text: str, ids: list[int]
) -> None:
    assert opened(tmp_path, LLAMA).encode(text) == ids


def test_the_file_alone_decides_where_spaces_go_under_other_classes(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_type": "llama"}
    assert opened(tmp_path, settings).encode(" hello") == [259, 292]
    assert opened(tmp_path, {**LLAMA, "model_type": "mistral"}).encode(" hello") == [259, 292]


def test_the_class_of_llama_decodes_what_it_has_encoded(tmp_path: Path) -> None:
    tokenizer = opened(tmp_path, LLAMA)
    assert tokenizer.decode(tokenizer.encode("hello there")) == "hello there"


def test_special_tokens_that_the_file_lacks_get_the_next_ids(tmp_path: Path) -> None:
    settings = {
        "bos_token": "<begin>",
        "eos_token": {"content": "</s>"},
        "extra_special_tokens": {"image_token": "<image>"},
        "additional_special_tokens": ["<never>"],
    }
    tokenizer = opened(tmp_path, settings)
    assert [tokenizer.marker_id(each) for each in ("<begin>", "<image>", "</s>", "<never>")] == [293, 294, 2, None]
    assert tokenizer.special_ids >= {293, 294}


def test_special_tokens_that_are_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"--tokenizer: special tokens of tokenizer_config\.json or .* must be text"):
        opened(tmp_path, {"bos_token": "\ud800"})


def test_the_map_of_special_tokens_of_an_older_folder_counts_where_no_added_tokens_are_listed(tmp_path: Path) -> None:
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named), encoding="utf-8")
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<a>"}}), encoding="utf-8")
    assert special_tokens(read_settings(tmp_path)) == {"bos_token": "<a>", "eos_token": "</s>"}
    listed = {**named, "added_tokens_decoder": {}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(listed), encoding="utf-8")
    assert special_tokens(read_settings(tmp_path)) == named

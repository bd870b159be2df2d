"""Small real tokenizers of every common make, trained on a few sentences."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from mockserve.generation.tokenizer import WORDS

CORPUS = (
    " ".join(WORDS),
    " ".join(word.capitalize() for word in WORDS) + ". And so on, as before.",
    'Prices rose by 12.5 % in 2024: {"city": "Paris", "ok": true}; naïve café, 日本語 😀.',
)


def byte_level_bpe() -> Any:
    """A vocabulary like that of GPT-2, Llama 3 and Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _trained(
        tokenizer, trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **_sizes(1500))
    )


def bytes_only() -> Any:
    """A byte-level vocabulary without a single merge: every character but a plain one is several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _trained(tokenizer, trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **_sizes(256)))


def word_piece() -> Any:
    """A vocabulary like BERT's: lower case, no spaces in the vocabulary."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trained = _trained(tokenizer, trainers.WordPieceTrainer(**_sizes(1200, "[UNK]", "[CLS]", "[SEP]")))
    ends = [("[CLS]", trained.token_to_id("[CLS]")), ("[SEP]", trained.token_to_id("[SEP]"))]
    trained.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    trained.enable_truncation(8)
    trained.enable_padding(length=8)
    return trained


def sentence_piece() -> Any:
    """A vocabulary like that of Llama 2 and Mistral: a mark for each space, also before the first word, and bytes for
    the rest."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    return _trained(tokenizer, trainers.BpeTrainer(**_sizes(1500, "<unk>", "<s>", "</s>", *bytes_)))


def unigram() -> Any:
    """A vocabulary like that of T5 and XLM-R."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return _trained(tokenizer, trainers.UnigramTrainer(unk_token="<unk>", **_sizes(900, "<unk>", "</s>")))


MAKES: dict[str, Callable[[], Any]] = {
    make.__name__: make for make in (byte_level_bpe, bytes_only, word_piece, sentence_piece, unigram)
}


def write_vocabulary(make: str, folder: Path) -> Path:
    """A folder with the tokenizer.json of a make."""
    target = folder / make
    target.mkdir()
    MAKES[make]().save(str(target / "tokenizer.json"))
    return target


def _sizes(vocabulary_size: int, *special: str) -> dict[str, Any]:
    return {"vocab_size": vocabulary_size, "special_tokens": list(special), "show_progress": False}


def _trained(tokenizer: Any, trainer: Any) -> Any:
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    return tokenizer

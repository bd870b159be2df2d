"""Which tokenizer, which chat template and which answers a server uses."""

from importlib.util import find_spec
from pathlib import Path

from mockserve.content.chat_templates.conversations import Conversations, open_conversations
from mockserve.content.composer import Composer
from mockserve.content.dataset import open_dataset
from mockserve.content.prose import Prose
from mockserve.content.tokens.tokenizer import Tokenizer, load_tokenizer
from mockserve.options.content import ContentOptions


def open_vocabulary(options: ContentOptions, vocabulary_size: int) -> tuple[Tokenizer, Conversations]:
    """Those of --tokenizer, else those of a MODEL that is a folder, else what is built in.

    A MODEL folder is used only if the tokenizers library is there: whoever names no tokenizer needs no library.
    Raises OptionError for files that cannot be read.
    """
    path = options.tokenizer
    if path is None and (Path(options.model) / "tokenizer.json").is_file() and find_spec("tokenizers") is not None:
        path = options.model
    folder = None
    if path is not None:
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
    return load_tokenizer(path, vocabulary_size), open_conversations(options, folder)


def new_composer(options: ContentOptions, tokenizer: Tokenizer) -> Composer:
    """The way of answering that the options ask for. Raises OptionError for a data set that cannot be read."""
    path = options.dataset_path
    return Composer(
        tokenizer=tokenizer,
        prose=Prose(tokenizer),
        fixed_tokens=options.default_output_tokens,
        echoes=options.mode == "echo",
        dataset=None if path is None else open_dataset(path, options.dataset_table_name),
    )

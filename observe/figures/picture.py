"""Pictures as files: the same figure gives the same bytes."""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traces.text_file import write_content

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figure: "Figure", path: str) -> None:
    """Write a figure to a file whose suffix says the format, .png, .svg or .pdf. Raises TraceError."""
    from matplotlib import rc_context

    kind = Path(path).suffix.removeprefix(".")
    # The date of today, under the name that the format has for it.
    metadata: dict[str, Any] = {} if kind == "png" else {"CreationDate" if kind == "pdf" else "Date": None}
    # Not straight to the file: matplotlib does not get over one that cannot be written.
    picture = BytesIO()
    with rc_context({"svg.hashsalt": "blis"}):
        figure.savefig(picture, format=kind, metadata=metadata)
    write_content(Path(path), picture.getvalue())

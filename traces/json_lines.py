"""A file with one JSON object per line, each on disk before the next."""

from pathlib import Path

from traces.append_file import AppendFile, open_with_header, whole_lines


class JsonLinesWriter:
    """Appends lines to a new file, or with `resume` to those of one that is there.

    Raises TraceError when the file cannot be made, and OSError when a line does not fit on the disk.
    """

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        earlier = whole_lines(path) if resume and path.is_file() else []
        if earlier:
            self._file = open_with_header(path, earlier[0].rstrip("\n"), earlier[1:])
        else:
            self._file = AppendFile(path)

    def write(self, line: str) -> None:
        """Append a line."""
        self._file.write(line + "\n")

    def close(self) -> None:
        """Close the file; nothing can be written afterwards."""
        self._file.close()

"""`--config FILE` of `vllm serve`."""

from pathlib import Path

import pytest

from blis_sim.options import OptionError
from mockserve.command import rewritten

FILE = """
model: from-file
port: 8123
served_model_name: [x, y]
enable-server-load-tracking: false
enforce-eager: true
compilation-config: {mode: 3}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "serve.yaml"
    path.write_text(FILE)
    return str(path)


def test_a_file_sets_what_flags_would_set(file: str) -> None:
    assert rewritten(["--config", file]) == [
        "--model", "from-file", "--port", "8123", "--no-enable-server-load-tracking", "--enforce-eager",
        "--served-model-name", '["x", "y"]',
        "--accepted-without-effect", "--compilation-config",
    ]  # fmt: skip


def test_the_command_line_comes_after_the_file_and_so_wins(file: str) -> None:
    ours = rewritten(["mine", "--port", "9", "--served-model-name", "z", f"--config={file}"])
    assert ours[0] == "mine"
    assert "from-file" not in ours
    assert [ours[index + 1] for index, each in enumerate(ours) if each == "--port"] == ["9"]
    assert ours[ours.index("--served-model-name") + 1] == '["z"]'


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.json", "{}", "--config must name a file that ends in .yaml or .yml, got '.*a.json'"),
        ("a.yaml", "[1]", "--config .*a.yaml must map names of flags to values, got list"),
        ("a.yaml", "{", "--config .*a.yaml cannot be read: line 1: expected the node content"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(OptionError, match=complaint):
        rewritten(["m", "--config", str(path)])


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(OptionError, match=r"--config nowhere.yaml cannot be read: No such file"):
        rewritten(["m", "--config", "nowhere.yaml"])


def test_one_file_is_enough(file: str) -> None:
    with pytest.raises(OptionError, match="--config may be given once"):
        rewritten(["m", "--config", file, "--config", file])


def test_reads_a_number_with_leading_zeros_as_the_command_line_does(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("port: 010\n")
    assert rewritten(["m", "--config", str(path)]) == rewritten(["m", "--port", "010"])


def test_refuses_a_flag_that_stands_twice(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("port: 1\nport: 2\n")
    with pytest.raises(OptionError, match="the key 'port' stands twice"):
        rewritten(["m", "--config", str(path)])

"""Servers that are only known by a certificate."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from blis_sim.options import BlisError
from observe.command import run
from observe.options import ObserveOptions
from traces import read_trace


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate of 127.0.0.1 that vouches for itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made with openssl")
    folder = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 "
        "-addext subjectAltName=IP:127.0.0.1 -addext keyUsage=critical,digitalSignature,keyCertSign "
        "-keyout key.pem -out cert.pem"
    )
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def secure_url(certificate: Path) -> Iterator[str]:
    command = [sys.executable, str(Path(__file__).parents[1] / "fake_server.py")]
    command += [str(certificate / "cert.pem"), str(certificate / "key.pem")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"https://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


def options(url: str, folder: Path, *, insecure: bool = False, ca_file: str | None = None) -> ObserveOptions:
    output = str(folder / "out")
    return ObserveOptions(
        url=url,
        model="ok",
        rate=100.0,
        num_requests=5,
        output_tokens=3,
        output=output,
        insecure=insecure,
        ca_file=ca_file,
    )


def test_a_certificate_that_is_not_trusted_ends_the_run(
    secure_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(options(secure_url, tmp_path)) == 1
    assert "TLS failed" in capsys.readouterr().err


def test_a_certificate_may_be_given_to_trust(secure_url: str, certificate: Path, tmp_path: Path) -> None:
    assert run(options(secure_url, tmp_path, ca_file=str(certificate / "cert.pem"))) == 0
    assert [row.status for row in read_trace(tmp_path / "out.yaml").rows] == ["ok"] * 5


def test_any_certificate_may_be_taken(secure_url: str, tmp_path: Path) -> None:
    assert run(options(secure_url, tmp_path, insecure=True)) == 0
    assert len(read_trace(tmp_path / "out.yaml").rows) == 5


def test_settings_of_tls_that_make_no_sense_are_refused(certificate: Path, tmp_path: Path) -> None:
    with pytest.raises(BlisError, match="--insecure needs a --url that begins with https://"):
        options("http://localhost:8000", tmp_path, insecure=True)
    with pytest.raises(BlisError, match="exclude each other"):
        options("https://localhost:8000", tmp_path, insecure=True, ca_file="x")
    with pytest.raises(BlisError, match="--ca-file /nope: No such file"):
        options("https://localhost:8000", tmp_path, ca_file="/nope")
    (tmp_path / "empty.pem").write_text("nothing")
    with pytest.raises(BlisError, match="no certificates in PEM form"):
        options("https://localhost:8000", tmp_path, ca_file=str(tmp_path / "empty.pem"))

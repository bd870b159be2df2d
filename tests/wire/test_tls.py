"""HTTPS, and client certificates."""

import shutil
import socket
import ssl
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import BlisError, options_from
from mockserve.http.sockets import server_context
from mockserve.options.serve import ServeOptions
from tests.patience import PATIENCE_S, wait_until
from tests.wire.plain_http import raw_completion
from tests.wire.serving import running_server


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


def test_https_with_a_certificate(certificate: Path) -> None:
    cert, key = str(certificate / "cert.pem"), str(certificate / "key.pem")
    trusting = ssl.create_default_context(cafile=cert)
    with running_server(ssl_certfile=cert, ssl_keyfile=key) as server:
        url = f"https://{server.host}:{server.port}/version"
        with urllib.request.urlopen(url, context=trusting) as reply:
            assert reply.read() == b'{"version":"0.33.0"}'


def test_https_with_a_certificate_made_at_the_start(certificate: Path) -> None:
    assert certificate.is_dir()  # else openssl is missing
    with running_server(self_signed_certs=True) as server:
        url = f"https://{server.host}:{server.port}/version"
        with urllib.request.urlopen(url, context=ssl._create_unverified_context()) as reply:
            assert reply.read() == b'{"version":"0.33.0"}'
        with pytest.raises(OSError, match=r"(?i)self.signed"):
            urllib.request.urlopen(url)


def test_without_openssl_no_certificate_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BlisError, match=r"^--self-signed-certs needs the program openssl, give --ssl-certfile"):
        server_context(options_from(ServeOptions, model="m", self_signed_certs=True).network.tls)


def test_a_client_that_does_not_read_is_cut_behind_tls_as_well(certificate: Path) -> None:
    cert, key = str(certificate / "cert.pem"), str(certificate / "key.pem")
    trusting = ssl.create_default_context(cafile=cert)
    settings: dict[str, Any] = {"ssl_certfile": cert, "ssl_keyfile": key, "max_unsent_kib": 64, "max_model_len": 32_768}
    with running_server(**settings) as server:
        plain = socket.create_connection((server.host, server.port), timeout=PATIENCE_S)
        with trusting.wrap_socket(plain, server_hostname=server.host) as slow:
            slow.sendall(raw_completion(prompt="x", stream=True, ignore_eos=True, max_tokens=30_000, logprobs=5))
            wait_until(
                lambda: (
                    server.service.delivery.slow_readers.num_cut
                    and not server.service.delivery.driver.num_unfinished_requests
                )
            )


def test_clients_need_a_certificate_when_they_must(certificate: Path) -> None:
    cert, key = str(certificate / "cert.pem"), str(certificate / "key.pem")
    stranger = ssl.create_default_context(cafile=cert)
    known = ssl.create_default_context(cafile=cert)
    known.load_cert_chain(cert, key)
    with running_server(ssl_certfile=cert, ssl_keyfile=key, ssl_ca_certs=cert, ssl_cert_reqs=2) as server:
        url = f"https://{server.host}:{server.port}/version"
        with urllib.request.urlopen(url, context=known) as reply:
            assert reply.status == 200
        with pytest.raises(OSError, match=r"(?i)certificate|closed|reset|eof"):
            urllib.request.urlopen(url, context=stranger).read()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"ssl_keyfile": "k"}, "--ssl-keyfile needs --ssl-certfile"),
        ({"ssl_cert_reqs": 1}, "--ssl-cert-reqs needs --ssl-certfile"),
        ({"ssl_certfile": "c", "ssl_cert_reqs": 1}, "--ssl-cert-reqs needs --ssl-ca-certs"),
        (
            {"ssl_certfile": "c", "self_signed_certs": True},
            "--self-signed-certs and --ssl-certfile exclude each other, give one of them",
        ),
        ({"root_path": "pre"}, "--root-path must start with /, got 'pre'"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(BlisError, match=f"^{complaint}$"):
        options_from(ServeOptions, model="m", **settings)


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cert.pem"
    with pytest.raises(BlisError, match=f"--ssl-certfile {path} cannot be used: No such file or directory"):
        server_context(options_from(ServeOptions, model="m", ssl_certfile=str(path)).network.tls)
    path.write_text("no certificate")
    with pytest.raises(BlisError, match=f"--ssl-certfile {path} cannot be used: "):
        server_context(options_from(ServeOptions, model="m", ssl_certfile=str(path)).network.tls)

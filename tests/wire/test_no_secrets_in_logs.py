"""Keys that clients send are in no line of the log, no metric and no entry of the journal."""

import base64
import logging
from collections.abc import Iterator

import pytest

from tests.patience import wait_until
from tests.wire.plain_http import call
from tests.wire.serving import TestServer, running_server

HEADERS = {
    "authorization": "Bearer planted-bearer-1",
    "x-api-key": "planted-key-2",
    "cookie": "session=planted-cookie-3",
    "x-goog-api-key": "planted-google-4",
    "proxy-authorization": "Basic " + base64.b64encode(b"ann:planted-basic-5").decode(),
    "referer": "https://h.example/?token=planted-referer-6",
}
TARGET = "/v1/chat/completions?api_key=planted-query-7&sig=planted-signature-8&page=2"
BODY = {
    "messages": [{"role": "user", "content": "my key is sk-proj-plantedplantedplanted"}],
    "max_tokens": 1,
    "openai_api_key": "planted-member-9",
    "tools": [{"type": "mcp", "authorization_token": "planted-mcp-10"}],
}


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with running_server(access_log=True, enable_log_requests=True, enable_playback_control=True) as found:
        yield found


def test_planted_keys_are_nowhere(server: TestServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for path, body in ((TARGET, BODY), (TARGET, {**BODY, "tools": []}), (TARGET.replace("chat", "none"), BODY)):
            call(server, "POST", path, body, HEADERS)
        call(server, "GET", TARGET.replace("/chat/completions", "/models"), None, HEADERS)
        wait_until(lambda: "page=2" in caplog.text and "/v1/models" in caplog.text)
    shown = [str(vars(record)) for record in caplog.records]
    shown += [call(server, "GET", path).body.decode() for path in ("/metrics", "/blis/requests", "/v1/models")]
    assert [text for text in shown if "planted" in text] == []
    assert call(server, "GET", "/blis/requests").json["count"] >= 2

#!/bin/sh
# You test a client in CI: two tests of an OpenAI client against a fake vLLM, in about ten seconds.
set -eu
cat > test_client.py <<'TEST'
import json, urllib.request


def ask(server, content):
    body = json.dumps({"model": "qwen/qwen3-14b", "messages": [{"role": "user", "content": content}]}).encode()
    request = urllib.request.Request(f"{server.base_url}/chat/completions", body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]


def test_the_reply_is_the_one_that_the_test_sets(blis_server):
    blis_server.reply("It is sunny.", last_user_regex="weather")
    assert ask(blis_server, "How is the weather?") == "It is sunny."


def test_the_server_shows_what_it_received(blis_server):
    ask(blis_server, "Hello")
    assert blis_server.requests[-1].last_user == "Hello"
TEST
python -m pytest -q test_client.py

/** Tests of the package: `node --test deploy/npm`. The same calls serve Vitest and Jest. */

import assert from "node:assert/strict";
import {after, before, beforeEach, test} from "node:test";

import {ServerError, startServer} from "./index.js";

let vllm;
before(async () => {
  vllm = await startServer("qwen3-14b", "--speed", "max");
});
beforeEach(() => vllm.clear());
after(() => vllm.stop());

async function ask(content, more = {}) {
  const body = JSON.stringify({model: "qwen3-14b", messages: [{role: "user", content}], max_tokens: 50, ...more});
  const headers = {"Content-Type": "application/json"};
  return fetch(`${vllm.baseURL}/chat/completions`, {method: "POST", headers, body});
}

test("a reply is what was set, and the server tells what it received", async () => {
  await vllm.reply("It is sunny.", {match: {last_user_regex: "(?i)weather"}});
  const answer = await (await ask("The weather?")).json();
  assert.equal(answer.choices[0].message.content, "It is sunny.");
  const [request] = await vllm.requests();
  assert.equal(request.lastUser, "The weather?");
  assert.equal(request.body.max_tokens, 50);
  assert.equal(request.answeredBy, "playback");
});

test("a reply calls a tool once", async () => {
  await vllm.reply("Done.");
  await vllm.reply(null, {toolCalls: [{name: "find", arguments: {city: "Paris"}}], times: 1});
  const [call] = (await (await ask("a")).json()).choices[0].message.tool_calls;
  assert.deepEqual([call.function.name, JSON.parse(call.function.arguments)], ["find", {city: "Paris"}]);
  assert.equal((await (await ask("b")).json()).choices[0].message.content, "Done.");
});

test("a reply is an error, or breaks off", async () => {
  await vllm.reply(null, {fault: 429, times: 1});
  assert.equal((await ask("a")).status, 429);
  await vllm.reply("one two three four", {fault: "disconnect; after_events=2"});
  await assert.rejects(async () => (await ask("b", {stream: true})).text());
});

test("what cannot be set is named", async () => {
  await assert.rejects(vllm.reply("a", {fault: "sleepy"}), /got 'sleepy'/);
});

test("a server that does not start says why", async () => {
  await assert.rejects(startServer("./no-such-model"), (error) => (
    error instanceof ServerError && error.message.includes("./no-such-model")
  ));
});

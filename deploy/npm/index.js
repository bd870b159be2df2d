/**
 * A mock vLLM server for tests: `const vllm = await startServer("qwen3-14b", "--speed", "max")`.
 *
 * The server is the program `blis` of the Python package, found on PATH or named by BLIS_PROGRAM.
 */

import {spawn} from "node:child_process";

const READY = /https?:\/\/[^\s/]+:\d+/;
const START_MS = 120_000;
const STOP_MS = 10_000;
const LAST_LINES = 10;

/** The server did not start; the message has the end of its log. */
export class ServerError extends Error {
  name = "ServerError";
}

/** A running server. `url` is its address, and `baseURL` what clients of OpenAI take. */
export class Server {
  #process;
  #log;

  constructor(url, process, log) {
    this.url = url;
    this.baseURL = `${url}/v1`;
    this.#process = process;
    this.#log = log;
  }

  /** The text that the server has written to standard output and standard error. */
  get log() {
    return this.#log.text;
  }

  /** Let later requests have this reply, streamed or whole. A later reply comes before earlier ones. */
  async reply(text, {reasoning, toolCalls, fault, times, match = {}} = {}) {
    const message = {text, reasoning, tool_calls: toolCalls};
    const given = Object.entries(message).filter(([, value]) => value !== undefined && value !== null && value !== "");
    const reply = given.length > 0 ? Object.fromEntries(given) : undefined;
    const fixture = {match, reply, fault: fault === undefined ? undefined : String(fault), times};
    await this.#call("POST", "/blis/playback", {fixtures: [fixture]});
  }

  /** Return the requests to a model since the start or the last `clear`, the oldest first. */
  async requests() {
    const {requests} = await this.#call("GET", "/blis/requests");
    return requests.map(({path, headers, model, last_user, body, answered_by}) => (
      {path, headers, model, lastUser: last_user, body, answeredBy: answered_by}
    ));
  }

  /** Change the faults of the server, such as `{rates: {overloaded: 0.5}}`: the fields of POST /blis/faults. */
  async setFaults(faults) {
    await this.#call("POST", "/blis/faults", faults);
  }

  /** Forget all replies that were set, the requests that were received, and all faults. */
  async clear() {
    for (const path of ["/blis/playback", "/blis/requests", "/blis/faults"]) {
      await this.#call("DELETE", path);
    }
  }

  /** End the server. */
  async stop() {
    await ended(this.#process);
  }

  async #call(method, path, body) {
    const content = body === undefined ? {} : {body: JSON.stringify(body), headers: {"Content-Type": "application/json"}};
    const response = await fetch(this.url + path, {method, ...content});
    const found = await response.json();
    if (!response.ok) {
      throw new Error(`${method} ${path}: ${found.error.message}`);
    }
    return found;
  }
}

/** Start `blis serve` with these words of its command line on a free port. Throws ServerError if it does not start. */
export async function startServer(...flags) {
  const own = ["--host", "127.0.0.1", "--port", "0", "--enable-fault-control", "--enable-playback-control"];
  const program = process.env.BLIS_PROGRAM ?? "blis";
  const child = spawn(program, ["serve", ...flags, ...own], {stdio: ["ignore", "pipe", "pipe"]});
  const log = {text: ""};
  const kill = () => child.kill("SIGKILL");
  process.once("exit", kill);
  child.once("close", () => process.off("exit", kill));
  try {
    return new Server(await address(child, log), child, log);
  } catch (error) {
    await ended(child);
    throw error;
  }
}

function address(child, log) {
  return new Promise((resolve, reject) => {
    const fail = (reason) => {
      clearTimeout(timer);
      const lines = log.text.trim().split("\n").slice(-LAST_LINES).join("\n");
      reject(new ServerError(`blis serve did not start: ${reason}\n${lines}`.trim()));
    };
    const timer = setTimeout(() => fail(`no address within ${START_MS / 1000} s`), START_MS);
    const read = (data) => {
      log.text += data;
      const found = READY.exec(log.text);
      if (found !== null) {
        clearTimeout(timer);
        resolve(found[0]);
      }
    };
    child.stdout.setEncoding("utf8").on("data", read);
    child.stderr.setEncoding("utf8").on("data", read);
    child.once("error", (error) => fail(`${error.message}; install it with pip, or name it by BLIS_PROGRAM`));
    child.once("close", (code) => fail(`exit code ${code}`));
  });
}

function ended(child) {
  if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) {
    return Promise.resolve();
  }
  return new Promise((resolve) => {
    const timer = setTimeout(() => child.kill("SIGKILL"), STOP_MS);
    child.once("close", () => {
      clearTimeout(timer);
      resolve();
    });
    child.kill("SIGTERM");
  });
}

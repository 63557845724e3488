// curl, as people type it.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { after, before, test } from "node:test";
import { promisify } from "node:util";

import { startCluster } from "./cluster.mjs";

const run = promisify(execFile);
let cluster;

before(async () => { cluster = await startCluster(); });
after(async () => cluster?.stop());

async function curl(...args) {
  const { stdout } = await run("curl", ["--silent", "--show-error",
                                        "--max-time", "60", ...args]);
  return stdout;
}

test("streams", async () => {
  const text = await curl(
    "--no-buffer", `${cluster.http}/v1/completions`, "--json",
    JSON.stringify({ prompt: "Once", max_tokens: 8, stream: true }));
  const events = text.trim().split("\n\n");
  assert.equal(events.at(-1), "data: [DONE]");
  for (const event of events.slice(0, -1)) {
    assert.ok(event.startsWith("data: {"), event);
    JSON.parse(event.slice(6));
  }
});

test("shows the head, the id it gave and the one that is made up", async () => {
  const named = await curl("--include", "-H", "X-Request-Id: mine",
                           `${cluster.http}/v1/completions`, "--json",
                           '{"prompt": "Once", "max_tokens": 1}');
  assert.match(named, /^HTTP\/1\.1 200 OK\r\n/);
  assert.match(named, /^x-request-id: mine\r$/mi);
  const unnamed = await curl("--include", `${cluster.http}/v1/completions`,
                             "--json", '{"prompt": "Once", "max_tokens": 1}');
  assert.match(unnamed, /^x-request-id: cmpl-[0-9a-f]{16}\r$/mi);
});

test("sends a body without saying how long it is", async () => {
  const text = await curl(
    "-H", "Transfer-Encoding: chunked", "-H", "Content-Type: application/json",
    "--data", '{"prompt": "Once", "max_tokens": 2}',
    `${cluster.http}/v1/completions`);
  assert.equal(JSON.parse(text).usage.completion_tokens, 2);
});

test("sees broken JSON refused", async () => {
  const status = await curl("--output", "/dev/null", "--write-out",
                            "%{http_code}", `${cluster.http}/v1/completions`,
                            "--data", "{");
  assert.equal(status, "400");
});

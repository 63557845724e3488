// A cluster of this build for one test file: `baton up`, and its end.
import { spawn } from "node:child_process";
import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const binaries = process.env.BATON_BIN_DIR;
const model = process.env.BATON_MODEL_DIR;

// Resolves with {http, grpc, stop}: the addresses, and a function that ends it.
// `chatTemplate`: in the place of the model's.
export async function startCluster(flags = [], chatTemplate = null) {
  const scratch = mkdtempSync(join(tmpdir(), "baton-clients-"));
  cpSync(model, join(scratch, "stories"), { recursive: true });
  if (chatTemplate !== null) {
    writeFileSync(join(scratch, "stories", "chat_template.jinja"),
                  chatTemplate);
  }
  const child = spawn(
    join(binaries, "baton"),
    ["up", "--model", join(scratch, "stories"), "--listen", "127.0.0.1:0",
     "--threads", "1", "--kv-memory", "64MiB", "--ready-fd", "3",
     "--die-with-parent", ...flags],
    { stdio: ["ignore", "inherit", "inherit", "pipe"] });
  const ended = new Promise((resolve) =>
    child.once("exit", (code, signal) => resolve({ code, signal })));
  const ready = await new Promise((resolve, reject) => {
    let text = "";
    child.stdio[3].on("data", (bytes) => {
      text += bytes;
      const end = text.indexOf("\n");
      if (end >= 0) resolve(JSON.parse(text.slice(0, end)));
    });
    ended.then((how) =>
      reject(new Error(`baton up ended: ${JSON.stringify(how)}`)));
  });
  return {
    http: `http://${ready.http}`,
    grpc: ready.grpc,
    async stop() {
      child.kill("SIGTERM");
      const how = await ended;
      rmSync(scratch, { recursive: true, force: true });
      if (how.code !== 0) {
        throw new Error(`baton up ended: ${JSON.stringify(how)}`);
      }
    },
  };
}

// Asks until `condition` holds; throws after a minute.
export async function eventually(condition, what) {
  const end = Date.now() + 60_000;
  while (Date.now() < end) {
    if (await condition()) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error(`not within a minute: ${what}`);
}

export async function getJson(url) {
  const response = await fetch(url);
  return await response.json();
}

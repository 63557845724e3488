// Renders kustomizations of deploy/kubernetes, as kubectl does.
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { parseAllDocuments, stringify } from "yaml";

export const source = resolve(process.env.BATON_SOURCE_DIR);
export const binDir = resolve(process.env.BATON_BIN_DIR);
export const kubernetes = join(source, "deploy/kubernetes");

function kustomize(folder) {
  const done = spawnSync("kubectl", ["kustomize", folder], {
    encoding: "utf8",
    timeout: 60_000,
  });
  if (done.status !== 0) {
    throw new Error(`kubectl kustomize ${folder}: ${done.stderr}`);
  }
  if (done.stderr !== "") {
    throw new Error(`kubectl kustomize ${folder} warns: ${done.stderr}`);
  }
  return parseAllDocuments(done.stdout).map((document) => {
    if (document.errors.length > 0) throw document.errors[0];
    return document.toJS();
  });
}

// A cluster that uses `components`, over the base.
function withComponents(name, components) {
  const folder = join(process.env.BATON_SCRATCH_DIR, name);
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  const at = (path) => relative(folder, join(kubernetes, path));
  writeFileSync(
    join(folder, "kustomization.yaml"),
    stringify({
      apiVersion: "kustomize.config.k8s.io/v1beta1",
      kind: "Kustomization",
      namespace: "baton",
      resources: [at("base")],
      components: components.map((c) => at(join("components", c))),
    }),
  );
  return kustomize(folder);
}

// Name of each overlay, and of each component over the base, to its manifests.
export function renderAll() {
  const folders = (path) => readdirSync(join(kubernetes, path)).sort();
  const all = new Map();
  for (const overlay of folders("overlays")) {
    all.set(`overlays/${overlay}`, kustomize(join(kubernetes, "overlays", overlay)));
  }
  for (const component of folders("components")) {
    all.set(`components/${component}`, withComponents(component, [component]));
  }
  return all;
}

// The folder of a file, for imports of packages beside it.
export const here = dirname(new URL(import.meta.url).pathname);

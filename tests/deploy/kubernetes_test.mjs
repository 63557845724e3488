// The manifests of deploy/kubernetes: each overlay, and each component over the
// base, as kubectl renders them.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { before, test } from "node:test";
import { join } from "node:path";
import { schemaProblems, typeProblems } from "./api_types.mjs";
import {
  adapterProblems,
  metricProblems,
  promtool,
  recordedSignals,
  signalProblems,
} from "./autoscaling.mjs";
import { addressProblems, flagProblems, gracePeriodProblems, jobProblems } from "./programs.mjs";
import {
  ofKind,
  portProblems,
  referenceProblems,
  securityProblems,
  selectorProblems,
} from "./references.mjs";
import { here, renderAll, source } from "./rendered.mjs";

const scratch = process.env.BATON_SCRATCH_DIR;
const packages = process.env.BATON_PACKAGES_DIR;
let all;

const CHECKS = {
  selectors: selectorProblems,
  ports: portProblems,
  references: referenceProblems,
  security: securityProblems,
  addresses: addressProblems,
  flags: (manifests) => flagProblems(manifests, scratch),
  "grace periods": gracePeriodProblems,
  jobs: jobProblems,
  signals: signalProblems,
  "metrics of the adapter": adapterProblems,
};

before(() => {
  all = renderAll();
});

test("the guide has every component and overlay", () => {
  const guide = readFileSync(join(source, "docs/kubernetes.md"), "utf8");
  for (const cluster of all.keys()) {
    const name = cluster.startsWith("components/") ? cluster.slice(11) : cluster;
    assert.ok(guide.includes(name), name);
  }
});

const named = () =>
  [...all].flatMap(([cluster, manifests]) =>
    manifests.map((m) => [`${cluster}: ${m.kind} ${m.metadata.name}`, m]),
  );

test("kubectl renders overlays and components", () => {
  assert.ok(all.size >= 14, `${[...all.keys()]}`);
  for (const [cluster, manifests] of all) {
    assert.equal(ofKind(manifests, "Deployment").length, 3, cluster);
    const names = manifests.map((m) => `${m.kind}/${m.metadata.name}`);
    assert.equal(new Set(names).size, names.length, cluster);
    for (const m of manifests) {
      const expected = m.kind === "Namespace" ? undefined : "baton";
      assert.equal(m.metadata.namespace, expected, `${cluster}: ${m.metadata.name}`);
    }
  }
});

test("fields are those of the Kubernetes API and of what extends it", async () => {
  assert.deepEqual(typeProblems(named(), packages), []);
  assert.deepEqual(await schemaProblems(named()), []);
});

for (const [name, check] of Object.entries(CHECKS)) {
  test(`${name} are right`, () => {
    for (const [cluster, manifests] of all) {
      assert.deepEqual(check(manifests), [], cluster);
    }
  });
}

test("the rules of autoscalers use metrics that there are", () => {
  assert.deepEqual(metricProblems(), []);
  assert.equal(recordedSignals().length, 7);
});

test("the control law gives what it should", (t) => {
  const said = promtool(scratch, join(here, "autoscaling_examples.yml"));
  if (said === null) return t.skip("no promtool (Debian: prometheus)");
  assert.equal(said, "");
});

// What is wrong is found: each mutation of a cluster that is right is reported
// by the check that it is for.
const find = (manifests, kind, name) => {
  const found = manifests.find((m) => m.kind === kind && m.metadata.name === name);
  assert.ok(found, `${kind} ${name}`);
  return found;
};
const pod = (manifests, name) => find(manifests, "Deployment", name).spec.template.spec;
const job = (manifests) => find(manifests, "Job", "baton-batch").spec.template.spec;
const setFlag = (container, name, value) => {
  const at = container.args.findIndex((a) => a.startsWith(`--${name}=`));
  assert.ok(at >= 0, name);
  container.args[at] = `--${name}=${value}`;
};
const policy = (manifests, name) => find(manifests, "NetworkPolicy", name).spec;

const MUTATIONS = [
  ["selectors", (m) => (find(m, "Service", "baton-decode").spec.selector["app.kubernetes.io/component"] = "decoder")],
  ["selectors", (m) => (find(m, "PodDisruptionBudget", "baton-prefill").spec.selector.matchLabels["app.kubernetes.io/name"] = "x")],
  ["selectors", (m) => (policy(m, "baton-prefill-to-decode").ingress[0].from[0].podSelector.matchLabels["app.kubernetes.io/component"] = "pre")],
  ["selectors", (m) => (find(m, "PodMonitor", "baton").spec.selector.matchLabels = { app: "baton" })],
  ["selectors", (m) => (find(m, "Deployment", "baton-decode").spec.selector.matchLabels = { "app.kubernetes.io/name": "baton" })],
  ["ports", (m) => (find(m, "Service", "baton-router").spec.ports[0].targetPort = "web")],
  ["ports", (m) => (pod(m, "baton-decode").containers[0].readinessProbe.httpGet.port = "http")],
  ["ports", (m) => delete pod(m, "baton-prefill").containers[0].livenessProbe],
  ["ports", (m) => (policy(m, "baton-prefill-out").egress[0].ports[0].port = "kv")],
  ["ports", (m) => (policy(m, "baton-metrics").ingress[0].ports[0].port = "stats")],
  ["references", (m) => (pod(m, "baton-router").serviceAccountName = "other")],
  ["references", (m) => (pod(m, "baton-router").containers[0].envFrom[0].configMapRef.name = "baton-model")],
  ["references", (m) => (pod(m, "baton-decode").volumes.find((v) => v.secret).secret.secretName = "no-such-secret")],
  ["references", (m) => pod(m, "baton-decode").volumes.pop()],
  ["references", (m) => (find(m, "Deployment", "baton-decode").spec.replicas = 2)],
  ["references", (m) => (find(m, "Certificate", "baton-decode").spec.issuerRef.name = "other")],
  ["security", (m) => delete pod(m, "baton-decode").securityContext.runAsNonRoot],
  ["security", (m) => (pod(m, "baton-router").containers[0].securityContext.readOnlyRootFilesystem = false)],
  ["security", (m) => (pod(m, "baton-router").containers[0].securityContext.capabilities.add = ["IPC_LOCK"])],
  ["security", (m) => delete pod(m, "baton-prefill").containers[0].resources.limits],
  ["addresses", (m) => setFlag(pod(m, "baton-decode").containers[0], "data-port", "8704")],
  ["addresses", (m) => setFlag(pod(m, "baton-router").containers[0], "prefill", "dns:baton-prefill:8702")],
  ["addresses", (m) => setFlag(pod(m, "baton-router").containers[0], "decode", "dns:baton-router:8702")],
  ["addresses", (m) => setFlag(pod(m, "baton-prefill").containers[0], "metrics", "127.0.0.1:9600")],
  ["addresses", (m) => pod(m, "baton-router").containers[0].volumeMounts.pop()],
  ["flags", (m) => pod(m, "baton-router").containers[0].args.push("--no-such-flag=1")],
  ["flags", (m) => setFlag(pod(m, "baton-decode").containers[0], "kv-memory", "120%")],
  ["flags", (m) => setFlag(pod(m, "baton-prefill").containers[0], "token-budget", "$(BATON_TOKENS)")],
  ["flags", (m) => (m.find((x) => x.kind === "ConfigMap" && x.metadata.name.startsWith("baton-router-")).data.BATON_PLACEMENT = "best")],
  ["grace periods", (m) => (pod(m, "baton-router").containers[0].lifecycle.preStop.exec.command[1] = "70")],
  ["grace periods", (m) => setFlag(pod(m, "baton-decode").containers[0], "drain-seconds", "90")],
  ["grace periods", (m) => delete pod(m, "baton-prefill").terminationGracePeriodSeconds],
  ["jobs", (m) => job(m).containers[0].args.push("--no-such-flag=1"), "components/batch-job"],
  ["jobs", (m) => setFlag(job(m).containers[0], "url", "http://baton-router:8001"), "components/batch-job"],
  ["jobs", (m) => job(m).containers[0].volumeMounts.pop(), "components/batch-job"],
  ["security", (m) => delete job(m).containers[0].securityContext.capabilities, "components/batch-job"],
  ["references", (m) => (job(m).volumes[0].persistentVolumeClaim.claimName = "other"), "components/batch-job"],
  ["selectors", (m) => (policy(m, "baton-batch-out").podSelector.matchLabels["app.kubernetes.io/component"] = "job"), "components/batch-job"],
  ["ports", (m) => (policy(m, "baton-batch-out").egress[0].ports[0].port = "web"), "components/batch-job"],
  ["signals", (m) => (find(m, "ScaledObject", "baton-decode").spec.triggers[0].metadata.query = "up")],
  ["signals", (m) => find(m, "ScaledObject", "baton-prefill").spec.triggers.pop()],
  ["metrics of the adapter", (m) => (find(m, "HorizontalPodAutoscaler", "baton-decode").spec.metrics[0].external.metric.name = "pressure"), "components/autoscaling-hpa"],
  ["signals", (m) => (find(m, "HorizontalPodAutoscaler", "baton-decode").spec.metrics[0].external.metric.selector.matchLabels.role = "prefill"), "components/autoscaling-hpa"],
];

MUTATIONS.forEach(([check, mutate, cluster = "overlays/secured"], n) => {
  test(`mutation ${n}, ${check}: ${mutate.toString().slice(7, 100)}`, () => {
    const manifests = structuredClone(all.get(cluster));
    assert.deepEqual(CHECKS[check](manifests), []);
    mutate(manifests);
    assert.notDeepEqual(CHECKS[check](manifests), []);
  });
});

test("fields and values that the API does not have are found", async () => {
  const wrong = (kind, name, mutate) => {
    const manifests = structuredClone(all.get("overlays/secured"));
    const manifest = find(manifests, kind, name);
    mutate(manifest);
    return manifest;
  };
  const cases = [
    wrong("Deployment", "baton-router", (m) => (m.spec.template.spec.containers[0].port = [])),
    wrong("Deployment", "baton-router", (m) => (m.spec.strategy.type = "Rolling")),
    wrong("Service", "baton-router", (m) => (m.spec.ports[0].port = "http")),
    wrong("NetworkPolicy", "baton-metrics", (m) => (m.spec.ingress[0].form = [])),
    wrong("ScaledObject", "baton-decode", (m) => (m.spec.maxReplicas = 3)),
    wrong("PodMonitor", "baton", (m) => (m.spec.endpoints = [])),
    wrong("Certificate", "baton-decode", (m) => (m.spec.secret = "x")),
  ];
  const problems = typeProblems(cases.map((m, n) => [`case ${n}:`, m]), packages);
  cases.forEach((_, n) =>
    assert.ok(problems.some((p) => p.startsWith(`case ${n}:`)), `case ${n}: ${problems}`),
  );
  const missing = wrong("Service", "baton-router", (m) => (m.spec.ports[0].port = 1.5));
  assert.notDeepEqual(await schemaProblems([["x", missing]]), []);
});

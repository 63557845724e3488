// Checks the autoscalers against the recording rules that they look at.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { parse, stringify } from "yaml";
import { kubernetes, source } from "./rendered.mjs";
import { ofKind } from "./references.mjs";

const rulesFile = join(kubernetes, "components/autoscaling-rules/pressure.yaml");
const rules = () => parse(readFileSync(rulesFile, "utf8")).spec;

// "prefill/ttft" of every pressure that is recorded.
export function recordedSignals() {
  return rules()
    .groups.flatMap((group) => group.rules)
    .filter((rule) => rule.record === "baton:scale:pressure")
    .map((rule) => `${rule.labels.role}/${rule.labels.signal}`);
}

// "prefill/ttft" of every pressure that an autoscaler looks at.
export function usedSignals(manifests) {
  const used = [];
  for (const hpa of ofKind(manifests, "HorizontalPodAutoscaler")) {
    for (const { external } of hpa.spec.metrics) {
      const { role, signal } = external.metric.selector.matchLabels;
      used.push(`${role}/${signal}`);
    }
  }
  for (const scaled of ofKind(manifests, "ScaledObject")) {
    for (const { metadata } of scaled.spec.triggers) {
      const [, role, signal] = metadata.query.match(
        /^max\(baton:scale:pressure\{namespace="baton",role="(\w+)",signal="(\w+)"\}\)$/,
      ) ?? [null, "?", metadata.query];
      used.push(`${role}/${signal}`);
    }
  }
  return used;
}

// Each autoscaler looks at all signals of its own pool, and at no others.
export function signalProblems(manifests) {
  const autoscalers = ["HorizontalPodAutoscaler", "ScaledObject"].flatMap((kind) =>
    ofKind(manifests, kind),
  );
  if (autoscalers.length === 0) return [];
  const problems = [];
  const recorded = recordedSignals();
  const used = usedSignals(manifests);
  for (const s of recorded) if (!used.includes(s)) problems.push(`nobody looks at ${s}`);
  for (const s of used) if (!recorded.includes(s)) problems.push(`${s} is not recorded`);
  for (const a of autoscalers) {
    const pool = a.metadata.name.replace("baton-", "");
    for (const s of usedSignals([a])) {
      if (!s.startsWith(`${pool}/`)) problems.push(`${a.metadata.name} looks at ${s}`);
    }
    if (a.spec.scaleTargetRef.name !== a.metadata.name) {
      problems.push(`${a.metadata.name} scales ${a.spec.scaleTargetRef.name}`);
    }
  }
  return problems;
}

// HorizontalPodAutoscalers ask for the metric that prometheus-adapter is told to
// make, and it makes it of what the rules record.
export function adapterProblems(manifests) {
  const file = join(kubernetes, "components/autoscaling-hpa/prometheus-adapter-values.yaml");
  const [rule, ...more] = parse(readFileSync(file, "utf8")).rules.external;
  const problems = [];
  if (more.length > 0) problems.push("more than one rule");
  if (!rule.seriesQuery.includes('__name__="baton:scale:pressure"')) {
    problems.push(`another series: ${rule.seriesQuery}`);
  }
  for (const hpa of ofKind(manifests, "HorizontalPodAutoscaler")) {
    for (const { external } of hpa.spec.metrics) {
      if (external.metric.name !== rule.name.as) {
        problems.push(`${hpa.metadata.name}: nobody makes ${external.metric.name}`);
      }
    }
  }
  return problems;
}

// Names in the rules that neither docs/metrics.md nor another rule has.
export function metricProblems() {
  const documented = readFileSync(join(source, "docs/metrics.md"), "utf8");
  const folder = join(source, "deploy/prometheus/rules");
  const others = existsSync(folder)
    ? readdirSync(folder).flatMap((file) => parse(readFileSync(join(folder, file), "utf8")).groups)
    : [];
  const recorded = [...others, ...rules().groups].flatMap((group) =>
    group.rules.map((rule) => rule.record),
  );
  const problems = [];
  for (const { expr } of rules().groups.flatMap((group) => group.rules)) {
    for (const name of expr.match(/\bbaton[_:][a-z0-9_:]+/g)) {
      const known = name.includes(":") ? recorded.includes(name) : documented.includes(`\`${name}`);
      if (!known) problems.push(`${name} is not known`);
    }
  }
  return problems;
}

// Runs `promtool` on the rules and on examples of what they come to; what it
// said, or null where there is no promtool.
export function promtool(scratch, examples) {
  const folder = join(scratch, "rules");
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "pressure.yml"), stringify(rules()));
  const test = parse(readFileSync(examples, "utf8"));
  writeFileSync(join(folder, "test.yml"), stringify({ ...test, rule_files: ["pressure.yml"] }));
  const done = spawnSync("promtool", ["test", "rules", "test.yml"], {
    cwd: folder,
    encoding: "utf8",
    timeout: 60_000,
  });
  if (done.error) return null;
  return done.status === 0 ? "" : done.stdout + done.stderr;
}

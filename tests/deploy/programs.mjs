// Checks what manifests give to Baton's programs, by asking the programs.
import { spawnSync } from "node:child_process";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { binDir } from "./rendered.mjs";
import { ofKind, selects } from "./references.mjs";

const title = (d) => `Deployment ${d.metadata.name}`;

// What a container's $(NAME) stand for, as the kubelet has it.
export function environmentOf(manifests, container) {
  const environment = {};
  for (const { configMapRef } of container.envFrom ?? []) {
    const map = ofKind(manifests, "ConfigMap").find(
      (m) => m.metadata.name === configMapRef.name,
    );
    Object.assign(environment, map?.data);
  }
  const fields = { "metadata.name": "pod-0", "status.podIP": "10.0.0.1" };
  for (const { name, value, valueFrom } of container.env ?? []) {
    environment[name] = value ?? fields[valueFrom.fieldRef.fieldPath];
  }
  return environment;
}

// Arguments with all $(NAME) filled in; those that cannot be stay.
export function argumentsOf(manifests, container) {
  const environment = environmentOf(manifests, container);
  return (container.args ?? []).map((argument) =>
    argument.replace(/\$\(([A-Za-z_][A-Za-z0-9_]*)\)/g, (whole, name) => environment[name] ?? whole),
  );
}

// The value of --FLAG=VALUE.
export function flag(args, name) {
  return args.find((a) => a.startsWith(`--${name}=`))?.slice(name.length + 3);
}

// Flags that the programs do not know, or values that they refuse: each program
// is started with its arguments, but with a model that is not there. It says so,
// unless it has stopped at the command line before, with exit code 2.
export function flagProblems(manifests, scratch) {
  const problems = [];
  for (const d of ofKind(manifests, "Deployment")) {
    const c = d.spec.template.spec.containers[0];
    const args = argumentsOf(manifests, c);
    for (const a of args) {
      if (a.includes("$(")) problems.push(`${title(d)}: nothing fills in ${a}`);
      if (!/^--[a-z-]+=/.test(a)) problems.push(`${title(d)}: ${a} is not --FLAG=VALUE`);
    }
    const used = (c.args ?? []).join(" ");
    for (const name of Object.keys(environmentOf(manifests, c))) {
      if (!name.startsWith("UCX_") && !used.includes(`$(${name})`)) {
        problems.push(`${title(d)}: no flag takes ${name}`);
      }
    }
    const folder = join(scratch, "empty");
    mkdirSync(folder, { recursive: true });
    const changed = args.map((a) => {
      if (a.startsWith("--model=")) return `--model=${folder}/no-such-model`;
      return a.replace(/=\/(etc\/baton|var\/lib)\/[a-z-]+$/, `=${folder}`);
    });
    const done = spawnSync(join(binDir, c.command[0]), changed, {
      encoding: "utf8",
      timeout: 60_000,
    });
    if (done.status !== 1) {
      problems.push(`${title(d)}: ${c.command[0]} says: ${done.stderr || done.stdout}`);
    }
  }
  return problems;
}

// The same of the job that answers a file of requests, which is not there: it
// says so. And whether it asks routers.
export function jobProblems(manifests) {
  const problems = [];
  for (const job of ofKind(manifests, "Job")) {
    const fail = (what) => problems.push(`Job ${job.metadata.name}: ${what}`);
    const c = job.spec.template.spec.containers[0];
    const done = spawnSync(join(binDir, c.command[0]), [...c.command.slice(1), ...c.args], {
      encoding: "utf8",
      timeout: 60_000,
    });
    const requests = c.args.find((a) => a.endsWith("/requests.jsonl"));
    if (done.status !== 1 || !done.stderr.includes(`cannot read ${requests}`)) {
      fail(`${c.command.join(" ")} says: ${done.stderr || done.stdout}`);
    }
    for (const path of c.args.filter((a) => a.startsWith("/"))) {
      if (!c.volumeMounts.some((m) => path.startsWith(`${m.mountPath}/`) && !m.readOnly)) {
        fail(`${path}: nothing that can be written is mounted there`);
      }
    }
    const [, name, port] = flag(c.args, "url")?.match(/^https?:\/\/([^:/]+):(\d+)$/) ?? [];
    const service = ofKind(manifests, "Service").find((s) => s.metadata.name === name);
    if (!service?.spec.ports.some((p) => p.name === "http" && p.port === Number(port))) {
      fail(`${flag(c.args, "url")}: no Service has that port for HTTP`);
    }
  }
  return problems;
}

// Ports of containers against the flags that open them, files of flags against
// the volumes that have them, and whether routers look where workers are.
export function addressProblems(manifests) {
  const problems = [];
  const ports = (d) =>
    Object.fromEntries(
      d.spec.template.spec.containers[0].ports.map((p) => [p.name, p.containerPort]),
    );
  const portOf = (address) => Number(address?.split(":").at(-1));
  const argsOf = (d) => argumentsOf(manifests, d.spec.template.spec.containers[0]);
  for (const d of ofKind(manifests, "Deployment")) {
    const args = argsOf(d);
    const router = d.metadata.name === "baton-router";
    const opened = {
      [router ? "grpc" : "control"]: portOf(flag(args, "listen")),
      metrics: portOf(flag(args, "metrics")),
    };
    if (router) opened.http = portOf(flag(args, "http"));
    if (flag(args, "data-port")) opened.data = Number(flag(args, "data-port"));
    const declared = ports(d);
    const names = new Set([...Object.keys(opened), ...Object.keys(declared)]);
    for (const name of names) {
      if (opened[name] !== declared[name]) {
        problems.push(
          `${title(d)}: port ${name} is ${declared[name]}, but flags open ${opened[name]}`,
        );
      }
    }
    for (const address of ["listen", "http", "metrics"]) {
      const value = flag(args, address);
      if (value !== undefined && !value.startsWith("0.0.0.0:")) {
        problems.push(`${title(d)}: --${address}=${value} cannot be reached`);
      }
    }
    const mounts = d.spec.template.spec.containers[0].volumeMounts;
    for (const a of args) {
      const path = a.match(/=(\/etc\/baton\/[^/]+|\/var\/lib\/[^/]+|\/model)/)?.[1];
      if (path && !mounts.some((m) => m.mountPath === path)) {
        problems.push(`${title(d)}: ${a}: nothing is mounted there`);
      }
    }
  }
  const router = ofKind(manifests, "Deployment").find((d) => d.metadata.name === "baton-router");
  for (const role of ["prefill", "decode"]) {
    const target = flag(argsOf(router), role) ?? "";
    const [, name, port] = target.match(/^dns:([^:]+):(\d+)$/) ?? [];
    const service = ofKind(manifests, "Service").find((s) => s.metadata.name === name);
    if (service === undefined) {
      problems.push(`${title(router)}: --${role}=${target}: no such Service`);
      continue;
    }
    if (service.spec.clusterIP !== "None") problems.push(`Service ${name} is not headless`);
    for (const d of ofKind(manifests, "Deployment")) {
      if (!selects({ matchLabels: service.spec.selector }, d.spec.template.metadata.labels)) continue;
      if (d.spec.template.spec.containers[0].command[0] !== `baton-${role}`) {
        problems.push(`Service ${name} has pods of ${title(d)}`);
      }
      if (ports(d).control !== Number(port)) {
        problems.push(`${title(router)}: ${target}, but ${title(d)} listens at ${ports(d).control}`);
      }
    }
  }
  return problems;
}

// Seconds that a process takes to end after its drain: a worker's server closes;
// a router's two do, and spans are sent.
const CLOSING = { worker: 2, router: 7 };

// Whether pods are killed before they have drained.
export function gracePeriodProblems(manifests) {
  const problems = [];
  for (const d of ofKind(manifests, "Deployment")) {
    const pod = d.spec.template.spec;
    const c = pod.containers[0];
    const sleep = c.lifecycle?.preStop?.exec?.command ?? ["sleep", "0"];
    if (sleep[0] !== "sleep") problems.push(`${title(d)}: preStop is no sleep`);
    const closing = c.command[0] === "baton-router" ? CLOSING.router : CLOSING.worker;
    const drain = Number(flag(argumentsOf(manifests, c), "drain-seconds"));
    const needed = Number(sleep[1]) + drain + closing;
    // Also false for NaN.
    if (!(pod.terminationGracePeriodSeconds >= needed)) {
      problems.push(
        `${title(d)}: ${pod.terminationGracePeriodSeconds} s of grace, but ${needed} s are needed`,
      );
    }
  }
  return problems;
}

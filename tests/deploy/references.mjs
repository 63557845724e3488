// Checks what the API server does not: that what manifests say of each other is
// true. Each function takes the manifests of one cluster and returns a list of
// problems.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { source } from "./rendered.mjs";

export const ofKind = (manifests, kind) => manifests.filter((m) => m.kind === kind);
const title = (m) => `${m.kind} ${m.metadata.name}`;

// What runs pods.
export const workloads = (manifests) =>
  manifests.filter((m) => m.kind === "Deployment" || m.kind === "Job");

export function selects(selector, labels) {
  const plain = Object.entries(selector?.matchLabels ?? {}).every(
    ([key, value]) => labels[key] === value,
  );
  return (
    plain &&
    (selector?.matchExpressions ?? []).every(({ key, operator, values }) => {
      if (operator !== "In") throw new Error(`operator ${operator}`);
      return values.includes(labels[key]);
    })
  );
}

// Workloads whose pods have the labels of a selector.
function selected(manifests, selector) {
  return workloads(manifests).filter((d) =>
    selects(selector, d.spec.template.metadata.labels),
  );
}

const containers = (deployment) => deployment.spec.template.spec.containers;
const portsOf = (deployment) =>
  containers(deployment).flatMap((c) => c.ports ?? []);
const hasPort = (deployment, port) =>
  typeof port === "number" || portsOf(deployment).some((p) => p.name === port);

export function selectorProblems(manifests) {
  const problems = [];
  const expect = (manifest, selector, what) => {
    if (selected(manifests, selector).length === 0) {
      problems.push(`${title(manifest)}: ${what} selects no pods`);
    }
  };
  for (const d of ofKind(manifests, "Deployment")) {
    if (!selects(d.spec.selector, d.spec.template.metadata.labels)) {
      problems.push(`${title(d)}: does not select its own pods`);
    }
    const others = selected(manifests, d.spec.selector).filter((o) => o !== d);
    for (const o of others) problems.push(`${title(d)}: selects pods of ${title(o)}`);
    for (const spread of d.spec.template.spec.topologySpreadConstraints ?? []) {
      if (!selects(spread.labelSelector, d.spec.template.metadata.labels)) {
        problems.push(`${title(d)}: spreads others than its own pods`);
      }
    }
  }
  for (const s of ofKind(manifests, "Service")) {
    expect(s, { matchLabels: s.spec.selector }, "its selector");
  }
  for (const kind of ["PodDisruptionBudget", "PodMonitor"]) {
    for (const m of ofKind(manifests, kind)) expect(m, m.spec.selector, "its selector");
  }
  for (const policy of ofKind(manifests, "NetworkPolicy")) {
    expect(policy, policy.spec.podSelector, "podSelector");
    for (const rule of [...(policy.spec.ingress ?? []), ...(policy.spec.egress ?? [])]) {
      for (const peer of [...(rule.from ?? []), ...(rule.to ?? [])]) {
        if (peer.podSelector) expect(policy, peer.podSelector, "a peer's podSelector");
      }
    }
  }
  return problems;
}

export function portProblems(manifests) {
  const problems = [];
  const expect = (manifest, workloads, port) => {
    for (const d of workloads.filter((w) => !hasPort(w, port))) {
      problems.push(`${title(manifest)}: ${title(d)} has no port "${port}"`);
    }
  };
  for (const s of ofKind(manifests, "Service")) {
    const pods = selected(manifests, { matchLabels: s.spec.selector });
    for (const port of s.spec.ports) expect(s, pods, port.targetPort ?? port.port);
  }
  for (const d of ofKind(manifests, "Deployment")) {
    for (const c of containers(d)) {
      for (const probe of ["startupProbe", "readinessProbe", "livenessProbe"]) {
        if (!c[probe]) problems.push(`${title(d)}: no ${probe}`);
        else expect(d, [d], c[probe].httpGet.port);
      }
    }
  }
  for (const m of ofKind(manifests, "PodMonitor")) {
    const pods = selected(manifests, m.spec.selector);
    for (const endpoint of m.spec.podMetricsEndpoints) expect(m, pods, endpoint.port);
  }
  for (const policy of ofKind(manifests, "NetworkPolicy")) {
    // Jobs open no ports.
    const own = selected(manifests, policy.spec.podSelector).filter(
      (w) => w.kind === "Deployment",
    );
    for (const rule of policy.spec.ingress ?? []) {
      for (const { port } of rule.ports ?? []) expect(policy, own, port);
    }
    for (const rule of policy.spec.egress ?? []) {
      const peers = (rule.to ?? []).flatMap((p) => selected(manifests, p.podSelector));
      for (const { port } of rule.ports ?? []) expect(policy, peers, port);
    }
  }
  return problems;
}

// Things that pods need and that are not here: docs/kubernetes.md has to say how
// the operator makes them.
export function referenceProblems(manifests) {
  const guide = readFileSync(join(source, "docs/kubernetes.md"), "utf8");
  const problems = [];
  const names = (kind) => ofKind(manifests, kind).map((m) => m.metadata.name);
  const made = {
    ConfigMap: names("ConfigMap"),
    ServiceAccount: names("ServiceAccount"),
    PersistentVolumeClaim: names("PersistentVolumeClaim"),
    Secret: [
      ...names("Secret"),
      ...ofKind(manifests, "Certificate").map((c) => c.spec.secretName),
    ],
    Issuer: names("Issuer"),
    Deployment: names("Deployment"),
  };
  const need = (manifest, kind, name, byOperator) => {
    if (made[kind].includes(name)) return;
    if (byOperator && guide.includes(`\`${name}\``)) return;
    problems.push(`${title(manifest)}: there is no ${kind} ${name}`);
  };
  for (const d of workloads(manifests)) {
    const pod = d.spec.template.spec;
    need(d, "ServiceAccount", pod.serviceAccountName, false);
    const volumes = pod.volumes ?? [];
    for (const v of volumes) {
      if (v.secret) need(d, "Secret", v.secret.secretName, true);
      if (v.configMap) need(d, "ConfigMap", v.configMap.name, false);
      if (v.persistentVolumeClaim) {
        need(d, "PersistentVolumeClaim", v.persistentVolumeClaim.claimName, true);
      }
    }
    for (const c of [...(pod.initContainers ?? []), ...pod.containers]) {
      for (const { configMapRef } of c.envFrom ?? []) {
        need(d, "ConfigMap", configMapRef.name, false);
      }
      for (const { valueFrom } of c.env ?? []) {
        if (valueFrom?.secretKeyRef) need(d, "Secret", valueFrom.secretKeyRef.name, true);
      }
      for (const mount of c.volumeMounts ?? []) {
        if (!volumes.some((v) => v.name === mount.name)) {
          problems.push(`${title(d)}: there is no volume ${mount.name}`);
        }
      }
    }
    for (const v of volumes) {
      const used = [...(pod.initContainers ?? []), ...pod.containers].some((c) =>
        c.volumeMounts.some((mount) => mount.name === v.name),
      );
      if (!used) problems.push(`${title(d)}: nobody mounts volume ${v.name}`);
    }
  }
  for (const c of ofKind(manifests, "Certificate")) {
    need(c, "Issuer", c.spec.issuerRef.name, false);
  }
  for (const i of ofKind(manifests, "Issuer")) {
    if (i.spec.ca) need(i, "Secret", i.spec.ca.secretName, false);
  }
  for (const kind of ["HorizontalPodAutoscaler", "ScaledObject"]) {
    for (const a of ofKind(manifests, kind)) {
      need(a, "Deployment", a.spec.scaleTargetRef.name, false);
      const target = ofKind(manifests, "Deployment").find(
        (d) => d.metadata.name === a.spec.scaleTargetRef.name,
      );
      if (target?.spec.replicas !== undefined) {
        problems.push(`${title(target)}: replicas, although ${title(a)} scales it`);
      }
    }
  }
  return problems;
}

// What Kubernetes calls "restricted", and what the image promises.
export function securityProblems(manifests) {
  const problems = [];
  const level = ofKind(manifests, "Namespace")[0]?.metadata.labels[
    "pod-security.kubernetes.io/enforce"
  ];
  for (const d of workloads(manifests)) {
    const pod = d.spec.template.spec;
    const fail = (what) => problems.push(`${title(d)}: ${what}`);
    if (pod.securityContext?.runAsNonRoot !== true) fail("may be root");
    if (pod.securityContext?.runAsUser !== 10001) fail("is not the image's user");
    if (pod.securityContext?.seccompProfile?.type !== "RuntimeDefault") fail("no seccomp");
    if (pod.automountServiceAccountToken !== false) fail("has a token of the API");
    for (const host of ["hostNetwork", "hostPID", "hostIPC"]) {
      if (pod[host]) fail(host);
    }
    for (const v of pod.volumes ?? []) if (v.hostPath) fail("hostPath");
    for (const c of [...(pod.initContainers ?? []), ...pod.containers]) {
      const s = c.securityContext ?? {};
      if (s.allowPrivilegeEscalation !== false) fail("allowPrivilegeEscalation");
      if (s.readOnlyRootFilesystem !== true) fail("its root can be written");
      if (!s.capabilities?.drop?.includes("ALL")) fail("keeps capabilities");
      const added = s.capabilities?.add ?? [];
      if (added.some((name) => name !== "IPC_LOCK")) fail("adds capabilities");
      if (added.length > 0 && level !== "privileged") fail("is not let in by its namespace");
      if (!c.resources?.requests?.memory || !c.resources?.limits?.memory) fail("no memory limit");
      if (!c.resources?.requests?.cpu) fail("no CPU request");
    }
  }
  return problems;
}

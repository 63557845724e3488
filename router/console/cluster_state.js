// What /api/cluster says, in the console's own words. Pure.

function number(value) {
  const result = Number(value);
  return Number.isFinite(result) && result > 0 ? result : 0;
}

function text(value) {
  return typeof value === 'string' ? value : '';
}

function list(value) {
  return Array.isArray(value) ? value : [];
}

// {name, workers, links, running, waiting}, with every field there and of the
// right type, whatever came.
export function readCluster(json) {
  return {
    name: text(json?.router_name),
    workers: list(json?.workers).map((worker) => ({
      name: text(worker?.name),
      role: worker?.role === 'prefill' ? 'prefill' : 'decode',
      address: text(worker?.address),
      connected: worker?.connected === true,
      usable: worker?.usable === true,
      standby: worker?.standby === true,
      whyNot: text(worker?.why_not),
      running: number(worker?.running),
      waiting: number(worker?.waiting),
      usedBlocks: Math.max(
          0, number(worker?.total_blocks) - number(worker?.free_blocks)),
      totalBlocks: number(worker?.total_blocks),
      adapters: list(worker?.adapters).map(text).filter((name) => name !== ''),
    })),
    links: list(json?.links).map((link) => ({
      prefill: text(link?.prefill_worker),
      decode: text(link?.decode_worker),
      usable: link?.usable === true,
      whyNot: text(link?.why_not),
      transport: text(link?.transport),
      bandwidth: number(link?.bandwidth_bytes),
      latency: number(link?.latency_seconds),
    })),
    running: number(json?.running_requests),
    waiting: number(json?.waiting_requests),
  };
}

function isOrAre(number) {
  return number === 1 ? 'is' : 'are';
}

// What is missing in a cluster that may still serve; empty: nothing.
function flaws(cluster) {
  const {workers, links} = cluster;
  // A dual worker that decodes has a side that stands by, and nothing is wrong.
  if (!workers.some((w) => w.role === 'prefill' && (w.usable || w.standby))) {
    return ['No prefill worker can serve'];
  }
  if (!links.some((link) => link.usable)) {
    return ['No prefill worker can hand over to a decode worker'];
  }
  const found = [];
  const lost = workers.filter((w) => !w.usable && !w.standby).length;
  if (lost > 0) {
    found.push(
        `${lost} of ${workers.length} workers ${isOrAre(lost)} out of service`);
  }
  const bad = links.filter((link) => !link.usable).length;
  if (bad > 0) {
    found.push(`${bad} of ${links.length} links ${isOrAre(bad)} not usable`);
  }
  return found;
}

// {level, label, detail}: how a cluster is. "healthy": all there. "degraded":
// something is missing. "down": no decode worker, so no request is served.
export function clusterState(cluster) {
  const workers = cluster.workers;
  if (workers.length === 0) {
    return {
      level: 'down',
      label: 'No workers',
      detail: 'The router knows no workers.',
    };
  }
  if (!workers.some((w) => w.role === 'decode' && w.usable)) {
    return {
      level: 'down',
      label: 'Cannot serve',
      detail: 'No decode worker can serve.',
    };
  }
  const found = flaws(cluster);
  if (found.length === 0) {
    return {level: 'healthy', label: 'Healthy', detail: ''};
  }
  return {
    level: 'degraded',
    label: 'Degraded',
    detail: `${found.join('; ')}.`,
  };
}

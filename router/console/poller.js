// Asks the router once a second how the cluster is.

import {readCluster} from './cluster_state.js';
import {readMetrics} from './history.js';

const TIMEOUT_MS = 4000;

export class Poller {
  #api;
  #periodMs;
  #listener;
  #timer = null;
  #isAsking = false;

  // Calls `listener` with {t, cluster, metrics, error}: seconds of the page's
  // clock, and either `error` (ApiError) or the other two.
  constructor(api, periodMs, listener) {
    this.#api = api;
    this.#periodMs = periodMs;
    this.#listener = listener;
    // Nobody looks at a hidden page.
    document.addEventListener('visibilitychange', () => this.#resume());
  }

  start() {
    this.#timer ??= setInterval(() => this.ask(), this.#periodMs);
    this.ask();
  }

  // Until the next start().
  stop() {
    clearInterval(this.#timer);
    this.#timer = null;
  }

  // One question at a time: a slow router gets fewer.
  async ask() {
    if (this.#isAsking || document.hidden) return;
    this.#isAsking = true;
    const t = performance.now() / 1e3;
    let report;
    try {
      const [cluster, metrics] = await Promise.all([
        this.#api.json('/api/cluster', {timeoutMs: TIMEOUT_MS}),
        this.#api.text('/metrics', {timeoutMs: TIMEOUT_MS}),
      ]);
      report = {
        t,
        cluster: readCluster(cluster),
        metrics: readMetrics(metrics),
        error: null,
      };
    } catch (error) {
      report = {t, cluster: null, metrics: null, error};
    } finally {
      this.#isAsking = false;
    }
    this.#listener(report);
  }

  #resume() {
    if (!document.hidden && this.#timer !== null) this.ask();
  }
}

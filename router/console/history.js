// What the last minutes were like, out of counters that only grow. Pure: time
// is passed in, in seconds.

import {histogramOf, parseMetrics, sumOf} from './metrics_text.js';

export const WINDOW_SECONDS = 300;
// After a longer silence, what the counters gained belongs to no moment.
const MAX_GAP_SECONDS = 10;

// How much a counter grew. One that fell began again at 0: the router was
// restarted.
export function increase(now, before) {
  return now < before ? now : now - before;
}

// The histogram of what came since `before`, with the same bounds as `now`.
export function histogramIncrease(now, before) {
  const restarted = before.bounds.length !== now.bounds.length ||
      now.bounds.some((bound, i) => bound !== before.bounds[i]) ||
      now.cumulative.some((value, i) => value < before.cumulative[i]);
  if (restarted) return now;
  return {
    bounds: now.bounds,
    cumulative: now.cumulative.map((value, i) => value - before.cumulative[i]),
  };
}

// All of them together; null when there is none. Those with other bounds than
// the last are of another router and left out.
export function histogramSum(histograms) {
  const last = histograms.at(-1);
  if (last === undefined) return null;
  const same = histograms.filter(
      (h) => h.bounds.length === last.bounds.length &&
          h.bounds.every((bound, i) => bound === last.bounds[i]));
  return {
    bounds: last.bounds,
    cumulative: last.bounds.map(
        (_, i) => same.reduce((sum, h) => sum + h.cumulative[i], 0)),
  };
}

// The value below which the share `q` of a histogram lies, linear within a
// bucket; the last finite bound when it lies beyond. Null without values.
export function quantile(histogram, q) {
  if (histogram === null) return null;
  const {bounds, cumulative} = histogram;
  const total = cumulative.at(-1);
  if (!(total > 0)) return null;
  const rank = q * total;
  const i = cumulative.findIndex((value) => value >= rank && value > 0);
  if (bounds[i] === Infinity) return i === 0 ? null : bounds[i - 1];
  const lower = i === 0 ? 0 : bounds[i - 1];
  const below = i === 0 ? 0 : cumulative[i - 1];
  return lower + (bounds[i] - lower) * (rank - below) / (cumulative[i] - below);
}

// What the console wants of a page of metrics; null for what is not there.
export function readMetrics(text) {
  const samples = parseMetrics(text);
  return {
    ttft: histogramOf(samples, 'baton_time_to_first_token_seconds'),
    itl: histogramOf(samples, 'baton_inter_token_latency_seconds'),
    tokens: sumOf(samples, 'baton_generation_tokens_total'),
    running: sumOf(samples, 'baton_num_requests_running'),
    waiting: sumOf(samples, 'baton_num_requests_waiting'),
  };
}

function histogramSince(now, before) {
  if (now === null || before === null) return null;
  return histogramIncrease(now, before);
}

const UNKNOWN = Object.freeze({
  ttft: null,
  itl: null,
  ttftP50: null,
  ttftP99: null,
  itlP50: null,
  itlP99: null,
  tokensPerSecond: null,
  running: null,
  waiting: null,
});

export class History {
  #last = null;
  #samples = [];

  // [{t, ttftP50, ttftP99, itlP50, itlP99, tokensPerSecond, running, waiting,
  // ...}], oldest first; null is "not known then".
  get samples() {
    return this.#samples;
  }

  // What readMetrics() gave at time `t`. The first one, and the first after a
  // long silence, is only what the next is compared with.
  add(t, metrics) {
    const before = this.#last;
    this.#last = {t, metrics};
    const sample = {
      ...UNKNOWN,
      t,
      running: metrics.running,
      waiting: metrics.waiting,
    };
    if (before !== null && t > before.t && t - before.t <= MAX_GAP_SECONDS) {
      const old = before.metrics;
      sample.ttft = histogramSince(metrics.ttft, old.ttft);
      sample.itl = histogramSince(metrics.itl, old.itl);
      sample.ttftP50 = quantile(sample.ttft, 0.5);
      sample.ttftP99 = quantile(sample.ttft, 0.99);
      sample.itlP50 = quantile(sample.itl, 0.5);
      sample.itlP99 = quantile(sample.itl, 0.99);
      if (metrics.tokens !== null && old.tokens !== null) {
        sample.tokensPerSecond =
            increase(metrics.tokens, old.tokens) / (t - before.t);
      }
    }
    this.#push(sample);
  }

  // The router did not answer at time `t`.
  miss(t) {
    this.#push({...UNKNOWN, t});
  }

  // Latencies of all requests of the last `seconds` before `t`; the rest as it
  // was last.
  recent(t, seconds) {
    const samples = this.#samples.filter((s) => s.t > t - seconds);
    const all = (key) =>
        histogramSum(samples.map((s) => s[key]).filter((h) => h !== null));
    const ttft = all('ttft');
    const itl = all('itl');
    const last = this.#samples.at(-1) ?? UNKNOWN;
    return {
      ttftP50: quantile(ttft, 0.5),
      ttftP99: quantile(ttft, 0.99),
      itlP50: quantile(itl, 0.5),
      itlP99: quantile(itl, 0.99),
      tokensPerSecond: last.tokensPerSecond,
      running: last.running,
      waiting: last.waiting,
    };
  }

  #push(sample) {
    this.#samples.push(sample);
    const first =
        this.#samples.findIndex((s) => s.t >= sample.t - WINDOW_SECONDS);
    if (first > 0) this.#samples.splice(0, first);
  }
}

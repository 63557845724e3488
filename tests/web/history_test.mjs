import assert from 'node:assert/strict';
import test from 'node:test';

import {histogramIncrease, histogramSum, History, increase, quantile,
        readMetrics, WINDOW_SECONDS} from '../../router/console/history.js';

const BOUNDS = [0.1, 0.2, 0.4, Infinity];

// The histogram of so many values per bucket.
function histogram(counts, bounds = BOUNDS) {
  let sum = 0;
  return {bounds, cumulative: counts.map((count) => (sum += count))};
}

function near(actual, expected) {
  assert.ok(Math.abs(actual - expected) < 1e-9, `${actual} is not ${expected}`);
}

function metrics(
    {ttft = [0, 0, 0, 0], itl = [0, 0, 0, 0], tokens = 0, running = 0,
     waiting = 0}) {
  return {
    ttft: histogram(ttft),
    itl: histogram(itl),
    tokens,
    running,
    waiting,
  };
}

test('quantiles are linear within a bucket', () => {
  const h = histogram([0, 10, 0, 0]);
  near(quantile(h, 0.5), 0.15);
  near(quantile(h, 0.99), 0.199);
  near(quantile(h, 1), 0.2);
  near(quantile(histogram([4, 0, 0, 0]), 0.5), 0.05);
  near(quantile(histogram([50, 49, 1, 0]), 0.5), 0.1);
  near(quantile(histogram([50, 48, 2, 0]), 0.99), 0.3);
});

test('a quantile of empty buckets between others lies where values are', () => {
  near(quantile(histogram([1, 0, 1, 0]), 0.75), 0.3);
});

test('beyond the last bound, the last bound is known', () => {
  assert.equal(quantile(histogram([0, 0, 0, 5]), 0.5), 0.4);
  assert.equal(quantile({bounds: [Infinity], cumulative: [5]}, 0.5), null);
});

test('nothing has no quantile', () => {
  assert.equal(quantile(histogram([0, 0, 0, 0]), 0.5), null);
  assert.equal(quantile(null, 0.5), null);
});

test('counters that fell began again at 0', () => {
  assert.equal(increase(7, 5), 2);
  assert.equal(increase(5, 5), 0);
  assert.equal(increase(3, 5), 3);
});

test('histograms are subtracted, or began again', () => {
  const before = histogram([5, 5, 0, 0]);
  assert.deepEqual(
      histogramIncrease(histogram([6, 5, 1, 0]), before).cumulative,
      [1, 1, 2, 2]);
  const restarted = histogram([7, 0, 0, 0]);  // more in one bucket, less in all
  assert.deepEqual(histogramIncrease(restarted, before), restarted);
  const other = histogram([9, 9], [0.5, Infinity]);
  assert.deepEqual(histogramIncrease(other, before), other);
});

test('histograms add up', () => {
  assert.equal(histogramSum([]), null);
  assert.deepEqual(
      histogramSum([histogram([1, 0, 0, 1]), histogram([0, 2, 0, 0])]),
      histogram([1, 2, 0, 1]));
  // One of a router with other bounds is left out.
  assert.deepEqual(
      histogramSum([histogram([9], [Infinity]), histogram([1, 0, 0, 0])]),
      histogram([1, 0, 0, 0]));
});

test('takes what it needs of a page of metrics', () => {
  const read = readMetrics([
    'baton_time_to_first_token_seconds_bucket{role="router",le="0.5"} 1',
    'baton_time_to_first_token_seconds_bucket{role="router",le="+Inf"} 2',
    'baton_generation_tokens_total{role="router"} 77',
    'baton_num_requests_running{role="router"} 3',
  ].join('\n'));
  assert.deepEqual(read, {
    ttft: {bounds: [0.5, Infinity], cumulative: [1, 2]},
    itl: null,
    tokens: 77,
    running: 3,
    waiting: null,
  });
});

test('the first report is what the next is compared with', () => {
  const history = new History();
  history.add(100, metrics({tokens: 1000, ttft: [9, 9, 9, 9], running: 2}));
  history.add(102, metrics({tokens: 1050, ttft: [9, 19, 9, 9], waiting: 4}));
  const [first, second] = history.samples;
  assert.equal(first.tokensPerSecond, null);
  assert.equal(first.ttftP50, null);
  assert.equal(first.running, 2);
  near(second.tokensPerSecond, 25);
  near(second.ttftP50, 0.15);
  near(second.ttftP99, 0.199);
  assert.equal(second.itlP50, null);
  assert.equal(second.waiting, 4);
});

test('a restarted router counts from 0', () => {
  const history = new History();
  history.add(1, metrics({tokens: 5000, itl: [900, 0, 0, 0]}));
  history.miss(2);
  history.add(3, metrics({tokens: 10, itl: [0, 0, 4, 0]}));
  const last = history.samples.at(-1);
  near(last.tokensPerSecond, 5);
  near(last.itlP50, 0.3);
  assert.equal(history.samples[1].running, null);
});

test('after a long silence it begins anew', () => {
  const history = new History();
  history.add(1, metrics({tokens: 10}));
  history.add(60, metrics({tokens: 1000}));
  assert.equal(history.samples.at(-1).tokensPerSecond, null);
  history.add(61, metrics({tokens: 1001}));
  near(history.samples.at(-1).tokensPerSecond, 1);
});

test('a clock that stands still divides nothing by 0', () => {
  const history = new History();
  history.add(1, metrics({tokens: 10}));
  history.add(1, metrics({tokens: 20}));
  assert.equal(history.samples.at(-1).tokensPerSecond, null);
});

test('metrics that are not there are not known', () => {
  const history = new History();
  const empty = readMetrics('');
  history.add(1, empty);
  history.add(2, empty);
  const {t, ...rest} = history.samples.at(-1);
  assert.equal(t, 2);
  for (const value of Object.values(rest)) assert.equal(value, null);
});

test('keeps the window, and no more', () => {
  const history = new History();
  for (let t = 0; t <= 1000; t += 1) history.add(t, metrics({tokens: t}));
  assert.equal(history.samples.length, WINDOW_SECONDS + 1);
  assert.equal(history.samples[0].t, 1000 - WINDOW_SECONDS);
});

test('recent latencies are those of all requests of that time', () => {
  const history = new History();
  history.add(0, metrics({}));
  history.add(1, metrics({ttft: [98, 0, 0, 0], tokens: 5}));
  history.add(2, metrics({ttft: [98, 0, 2, 0], tokens: 9, running: 3}));
  const recent = history.recent(2, 30);
  near(recent.ttftP99, 0.3);
  near(recent.tokensPerSecond, 4);
  assert.equal(recent.running, 3);
  assert.equal(recent.itlP50, null);
  near(history.recent(2, 1).ttftP50, 0.3);
  assert.equal(new History().recent(5, 30).ttftP50, null);
});

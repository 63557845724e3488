// The live cluster in headless Chromium.

import assert from 'node:assert/strict';
import test from 'node:test';

import {histogramText, link, worker} from './fake_router.mjs';
import {Fixture, TEST} from './fixture.mjs';

const at = new Fixture();

// Each page has 98 first tokens more within 10 to 20 ms and 2 within 100 to
// 250 ms, 10 gaps more within 2 to 4 ms, and 50 output tokens more.
function scriptedMetrics(page_number) {
  const n = page_number + 1;
  return [
    histogramText('baton_time_to_first_token_seconds',
                  ['0.01', '0.02', '0.1', '0.25', '+Inf'],
                  [0, 98 * n, 0, 2 * n, 0]),
    histogramText('baton_inter_token_latency_seconds',
                  ['0.002', '0.004', '+Inf'], [0, 10 * n, 0]),
    `baton_generation_tokens_total{role="router"} ${50 * n}`,
    `baton_num_requests_running{role="router"} ${page_number % 3}`,
    'baton_num_requests_waiting{role="router"} 17',
    '',
  ].join('\n');
}

// The points of a line, as [x, y] in the drawing.
async function points(page, series) {
  const d = await page.attribute(`[data-series=${series}]`, 'd');
  return [...d.matchAll(/([\d.]+) ([\d.]+)/g)].map(
      (match) => [Number(match[1]), Number(match[2])]);
}

test('draws latencies out of the histograms', TEST, async () => {
  at.router.metrics = scriptedMetrics;
  const page = await at.open({view: 'cluster'});
  await page.waitFor(
      () => document.querySelector('[data-series=ttftP50]')
                .getAttribute('data-points') >= 3);
  // 10 + 10 * 50 / 98 ms, and 100 + 150 * 1 / 2 ms.
  assert.equal(await page.text('[data-chart=ttft] .first dd'), '15.1 ms');
  assert.equal(await page.text('[data-chart=ttft] .second dd'), '175 ms');
  assert.equal(await page.text('[data-chart=itl] .first dd'), '3.00 ms');
  assert.equal(await page.text('[data-chart=itl] .second dd'), '3.98 ms');
  assert.equal(await page.text('[data-chart=requests] .second dd'), '17');
  const tokens = Number(await page.text('[data-chart=tokens] .first dd'));
  assert.ok(tokens > 5 && tokens <= 300, `${tokens} tokens/s`);

  // One report more than there are differences between reports.
  const before = at.router.metricsPages;
  const drawn = (await points(page, 'ttftP99')).length;
  const reports = at.router.metricsPages;
  assert.ok(drawn >= before - 2 && drawn <= reports - 1,
            `${drawn} points of ${before} to ${reports} reports`);
  // The axis goes to 200 ms, from 130 up to 8 in a drawing 150 high.
  for (const [, y] of await points(page, 'ttftP99')) {
    assert.ok(Math.abs(y - (130 - 122 * 0.175 / 0.2)) < 0.2, `${y}`);
  }
  const xs = (await points(page, 'ttftP50')).map(([x]) => x);
  assert.deepEqual(xs, [...xs].sort((a, b) => a - b));
  assert.equal(await page.isShown('[data-chart=ttft] .nothing'), false);

  // The arrow keys look back.
  await page.page.focus('[data-chart=requests] .plot');
  await page.page.keyboard.press('ArrowLeft');
  assert.match(await page.text('[data-chart=requests] .when'), /^0:0\d ago$/);
  assert.equal(await page.isShown('[data-chart=requests] .cursor'), true);
  await page.page.keyboard.press('Escape');
  assert.equal(await page.text('[data-chart=requests] .when'), '');
  at.assertClean();
});

test('shows pools, queues, KV use and links', TEST, async () => {
  at.router.cluster.workers = [
    worker('prefill', 0, {running: 3, waiting: 12, free_blocks: 1024}),
    worker('prefill', 1, {connected: false, usable: false,
                          why_not: 'is not connected', total_blocks: 0,
                          free_blocks: 0}),
    worker('decode', 0, {running: 31, free_blocks: 64,
                         adapters: ['sql', 'chat']}),
  ];
  at.router.cluster.links = [
    link('prefill-0', 'decode-0'),
    link('prefill-1', 'decode-0', {
      usable: false, why_not: 'is not paired', transport: '',
      bandwidth_bytes: 0, latency_seconds: 0,
    }),
  ];
  const page = await at.open({view: 'cluster'});
  await page.waitForText('#state-label', 'Degraded');
  assert.equal(await page.text('#banner-text'),
               '1 of 3 workers is out of service; ' +
                   '1 of 2 links is not usable.');
  const card = '[data-worker=prefill-0]';
  assert.match(await page.text(`${card} .figures`),
               /3,072 of 4,096 · 75%.*Running3.*Waiting12/);
  assert.equal(await page.attribute(`${card} .meter`, 'aria-valuenow'), '75');
  assert.equal(await page.attribute(`${card} .meter`, 'data-ratio'), '0.750');
  assert.equal(
      await page.page.$eval(`${card} .meter-fill`, (node) => node.style.width),
      '75%');
  assert.equal(await page.count('.meter-fill.nearly-full'), 1);
  assert.equal(await page.text('[data-worker=decode-0] .adapters'),
               'Adapters: sql, chat');
  assert.equal(await page.isShown(`${card} .adapters`), false);
  assert.equal(await page.text('[data-worker=prefill-1] .worker-state'),
               'Not connected');
  assert.equal(await page.text('#prefill-summary'), '1 of 2 workers serving');
  assert.equal(await page.text('#decode-summary'), '1 worker');
  const rows = await page.page.$$eval(
      '#link-rows tr', (nodes) => nodes.map((node) => node.textContent));
  assert.deepEqual(rows, [
    'prefill-1 → decode-0–––is not paired',
    'prefill-0 → decode-0local8.40 GB/s42.0 µsUsable',
  ]);
  assert.equal(await page.count('#link-lines path'), 2);
  assert.equal(await page.count('#link-lines .broken'), 1);

  // Cards stay the same elements while workers come and go.
  await page.page.$eval(card, (node) => (node.marked = true));
  at.router.cluster.workers = [at.router.cluster.workers[0],
                            at.router.cluster.workers[2]];
  at.router.cluster.links = [link('prefill-0', 'decode-0')];
  await page.waitForText('#state-label', 'Healthy');
  assert.equal(await page.count('.worker'), 2);
  assert.equal(await page.page.$eval(card, (node) => node.marked), true);
  assert.equal(await page.isShown('#banner'), false);

  at.router.cluster.workers = [];
  at.router.cluster.links = [];
  await page.waitForText('#state-label', 'No workers');
  assert.equal(await page.isShown('#prefill-empty'), true);
  assert.equal(await page.isShown('#links-empty'), true);
  at.assertClean();
});

test('a router that goes away and comes back', TEST, async () => {
  at.router.metrics = (n) => scriptedMetrics(n + 1000);
  const page = await at.open({view: 'cluster'});
  await page.waitFor(
      () => document.querySelector('[data-series=tokensPerSecond]')
                .getAttribute('data-points') >= 1);
  await at.router.stop();
  await page.waitForText('#state-label', 'Unreachable');
  assert.match(await page.text('#banner-text'), /does not answer. Trying/);
  // What was known last stays, greyed.
  assert.equal(await page.count('.worker'), 2);
  assert.equal(await page.count('#live.stale'), 1);

  at.router.model = {...at.router.model, id: 'another'};
  at.router.metrics = scriptedMetrics;  // counts from 0
  await at.router.start();
  await page.waitForText('#state-label', 'Healthy');
  await page.waitForText('#model', 'another');
  assert.equal(await page.count('#live.stale'), 0);
  await page.waitFor(
      () => document.querySelector('[data-series=tokensPerSecond]')
                .getAttribute('data-points') >= 3);
  // No jump down to less than nothing: 130 is the bottom of a drawing.
  for (const [, y] of await points(page, 'tokensPerSecond')) {
    assert.ok(y <= 130 && y >= 8, `${y}`);
  }
  const tokens = Number(await page.text('[data-chart=tokens] .first dd'));
  assert.ok(tokens > 0 && tokens <= 300, `${tokens} tokens/s`);
  at.assertClean(/ERR_/);
});

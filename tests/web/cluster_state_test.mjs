import assert from 'node:assert/strict';
import test from 'node:test';

import {clusterState, readCluster} from
    '../../router/console/cluster_state.js';

function worker(role, usable = true) {
  return {role, usable, name: role, connected: true};
}

function stateOf(workers, links) {
  return clusterState(readCluster({workers, links}));
}

const LINK = {prefill_worker: 'prefill', decode_worker: 'decode', usable: true};
const BROKEN = {...LINK, usable: false};

test('takes a side of a dual worker that stands by for no flaw', () => {
  const standby = {...worker('prefill', false), standby: true};
  assert.equal(stateOf([standby, worker('decode')], [LINK]).level, 'healthy');
  assert.equal(
      stateOf([standby, worker('decode'), worker('decode', false)],
              [LINK]).detail,
      '1 of 3 workers is out of service.');
  assert.equal(
      stateOf([worker('prefill'), {...worker('decode', false), standby: true}],
              [LINK]).level,
      'down');
});

test('says how a cluster is', () => {
  const prefill = worker('prefill');
  const decode = worker('decode');
  const cases = [
    [[], [], 'down'],
    [[prefill, decode], [LINK], 'healthy'],
    [[prefill, decode, worker('decode', false)], [LINK], 'degraded'],
    [[prefill, decode], [LINK, BROKEN], 'degraded'],
    [[prefill, decode], [BROKEN], 'degraded'],
    [[prefill, decode], [], 'degraded'],
    [[worker('prefill', false), decode], [BROKEN], 'degraded'],
    [[decode], [], 'degraded'],
    [[prefill, worker('decode', false)], [BROKEN], 'down'],
    [[prefill], [], 'down'],
  ];
  for (const [workers, links, level] of cases) {
    const state = stateOf(workers, links);
    assert.equal(state.level, level, JSON.stringify({workers, links}));
    assert.equal(state.detail === '', level === 'healthy');
  }
});

test('says what is missing', () => {
  const workers = [worker('prefill'), worker('prefill', false),
                   worker('decode')];
  assert.equal(stateOf(workers, [LINK]).detail,
               '1 of 3 workers is out of service.');
  assert.equal(
      stateOf([...workers, worker('decode', false)], [LINK, BROKEN]).detail,
      '2 of 4 workers are out of service; 1 of 2 links is not usable.');
});

test('reads a report', () => {
  const cluster = readCluster({
    router_name: 'router',
    running_requests: 3,
    waiting_requests: '4',
    workers: [{
      name: 'p', role: 'prefill', address: 'a:1', connected: true, usable: true,
      why_not: '', running: 1, waiting: 2, free_blocks: 30, total_blocks: 100,
      adapters: ['sql', 7, 'chat'],
    }],
    links: [{
      prefill_worker: 'p', decode_worker: 'd', usable: true, why_not: '',
      transport: 'ucx/tcp', bandwidth_bytes: 1e9, latency_seconds: 2e-5,
    }],
  });
  assert.deepEqual(cluster, {
    name: 'router',
    running: 3,
    waiting: 4,
    workers: [{
      name: 'p', role: 'prefill', address: 'a:1', connected: true, usable: true,
      standby: false, whyNot: '', running: 1, waiting: 2, usedBlocks: 70,
      totalBlocks: 100, adapters: ['sql', 'chat'],
    }],
    links: [{
      prefill: 'p', decode: 'd', usable: true, whyNot: '',
      transport: 'ucx/tcp', bandwidth: 1e9, latency: 2e-5,
    }],
  });
});

test('survives a report that is none', () => {
  for (const json of [null, 7, 'x', [], {}, {workers: 7, links: 'x'}]) {
    const cluster = readCluster(json);
    assert.deepEqual(cluster.workers, []);
    assert.deepEqual(cluster.links, []);
  }
  const [odd] = readCluster({
    workers: [{name: 7, total_blocks: 'NaN', free_blocks: 9}],
  }).workers;
  assert.equal(odd.name, '');
  assert.equal(odd.usedBlocks, 0);
  assert.equal(odd.usable, false);
  assert.equal(readCluster({workers: [null]}).workers.length, 1);
});

// The view of the live cluster: charts, the two pools, and the links.

import {LineChart} from './chart.js';
import {byId, el, setChildren, setText} from './dom.js';
import {axisCount, axisSeconds, bandwidth, count, latency, plural, rate,
        seconds} from './format.js';
import {History, WINDOW_SECONDS} from './history.js';
import {LinkLines} from './link_lines.js';
import {WorkerCard} from './worker_card.js';

// Over how long the latencies of "now" are taken.
const RECENT_SECONDS = 30;

const CHARTS = [
  {
    id: 'ttft',
    title: 'Time to first token',
    note: 'p50, p99',
    series: [
      {key: 'ttftP50', label: 'p50', tone: 'first'},
      {key: 'ttftP99', label: 'p99', tone: 'second'},
    ],
    format: seconds,
    axisFormat: axisSeconds,
    atLeast: 0.01,
    emptyText: 'No first tokens in the last 5 minutes',
  },
  {
    id: 'itl',
    title: 'Inter-token latency',
    note: 'p50, p99',
    series: [
      {key: 'itlP50', label: 'p50', tone: 'first'},
      {key: 'itlP99', label: 'p99', tone: 'second'},
    ],
    format: seconds,
    axisFormat: axisSeconds,
    atLeast: 0.01,
    emptyText: 'No tokens in the last 5 minutes',
  },
  {
    id: 'tokens',
    title: 'Output tokens',
    note: 'per second',
    series: [{key: 'tokensPerSecond', label: 'tokens/s', tone: 'first'}],
    format: rate,
    axisFormat: axisCount,
    atLeast: 10,
    emptyText: 'Nothing known yet',
  },
  {
    id: 'requests',
    title: 'Requests',
    note: 'at the router',
    series: [
      {key: 'running', label: 'running', tone: 'first'},
      {key: 'waiting', label: 'waiting', tone: 'second'},
    ],
    format: count,
    axisFormat: axisCount,
    atLeast: 4,
    emptyText: 'Nothing known yet',
  },
];

// The cards of one pool, kept as long as their workers are.
class Pool {
  #list;
  #summary;
  #empty;
  #cards = new Map();  // by address
  #elements = new Map();

  constructor(role) {
    this.#list = byId(`${role}-workers`);
    this.#summary = byId(`${role}-summary`);
    this.#empty = byId(`${role}-empty`);
  }

  // Elements of the cards by the workers' names.
  get elements() {
    return this.#elements;
  }

  update(workers) {
    const cards = new Map();
    this.#elements = new Map();
    for (const worker of workers) {
      const card = this.#cards.get(worker.address) ?? new WorkerCard();
      card.update(worker);
      cards.set(worker.address, card);
      this.#elements.set(worker.name, card.element);
    }
    this.#cards = cards;
    setChildren(this.#list, [...cards.values()].map((card) => card.element));
    const usable = workers.filter((worker) => worker.usable).length;
    const standby = workers.filter((worker) => worker.standby).length;
    setText(this.#summary, workers.length === 0 ?
        '' :
        usable === workers.length ?
        plural(usable, 'worker') :
        `${usable} of ${plural(workers.length, 'worker')} serving` +
            (standby === 0 ? '' : `, ${standby} standing by`));
    this.#empty.hidden = workers.length > 0;
  }
}

function linkRow(link) {
  return el(
      'tr', {class: link.usable ? '' : 'unusable'},
      el('th', {scope: 'row'},
         el('span', {class: 'prefill-name', text: link.prefill}),
         el('span', {class: 'arrow', 'aria-label': 'to', text: ' → '}),
         el('span', {class: 'decode-name', text: link.decode})),
      el('td', {text: link.transport === '' ? '–' : link.transport}),
      el('td', {class: 'number', text: bandwidth(link.bandwidth)}),
      el('td', {class: 'number', text: latency(link.latency)}),
      el('td', {},
         el('span', {
           class: `worker-state ${link.usable ? 'healthy' : 'degraded'}`,
           text: link.usable ? 'Usable' : link.whyNot || 'Not usable',
         })));
}

export class ClusterView {
  #history = new History();
  #charts;
  #pools = {prefill: new Pool('prefill'), decode: new Pool('decode')};
  #lines = new LinkLines(byId('link-lines'));
  #rows = byId('link-rows');
  #rowsKey = '';

  constructor() {
    this.#charts = CHARTS.map(
        (chart) => new LineChart({...chart, windowSeconds: WINDOW_SECONDS}));
    byId('charts').append(...this.#charts.map((chart) => chart.element));
  }

  // What the poller says.
  update({t, cluster, metrics, error}) {
    if (error === null) {
      this.#history.add(t, metrics);
      this.#showCluster(cluster);
    } else {
      this.#history.miss(t);
    }
    byId('live').classList.toggle('stale', error !== null);
    const current = this.#history.recent(t, RECENT_SECONDS);
    for (const chart of this.#charts) {
      chart.update(this.#history.samples, current, t);
    }
  }

  #showCluster(cluster) {
    for (const [role, pool] of Object.entries(this.#pools)) {
      pool.update(cluster.workers.filter((worker) => worker.role === role));
    }
    this.#lines.update(cluster.links, this.#pools.prefill.elements,
                       this.#pools.decode.elements);
    this.#showLinks(cluster.links);
  }

  // The table changes rarely: it is left alone while it says the same.
  #showLinks(links) {
    const key = JSON.stringify(links);
    if (key === this.#rowsKey) return;
    this.#rowsKey = key;
    const sorted = [...links].sort((a, b) => a.usable - b.usable);
    setChildren(this.#rows, sorted.map(linkRow));
    byId('links-table').hidden = links.length === 0;
    byId('links-empty').hidden = links.length > 0;
  }
}

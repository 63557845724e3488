// One worker of the cluster.

import {el, setAttributes, setText} from './dom.js';
import {count, percent} from './format.js';

// {label, level} of a worker: what the dot and the word beside it say.
function stateOf(worker) {
  if (worker.usable) return {level: 'healthy', label: 'Serving'};
  if (worker.standby) return {level: 'standby', label: 'Standing by'};
  if (!worker.connected) return {level: 'down', label: 'Not connected'};
  return {level: 'degraded', label: 'Out of service'};
}

function figure(label, value) {
  return el('div', {class: 'figure'}, el('dt', {text: label}), value);
}

export class WorkerCard {
  #name = el('h4');
  #address = el('p', {class: 'address'});
  #state = el('span', {class: 'worker-state'});
  #whyNot = el('p', {class: 'why-not'});
  #fill = el('div', {class: 'meter-fill'});
  #meter = el('div', {
    class: 'meter',
    role: 'meter',
    'aria-valuemin': '0',
    'aria-valuemax': '100',
  }, this.#fill);
  #usage = el('dd');
  #running = el('dd');
  #waiting = el('dd');
  #adapters = el('p', {class: 'adapters'});

  constructor() {
    this.element = el(
        'li', {class: 'worker'},
        el('div', {class: 'worker-head'},
           el('div', {class: 'worker-name'}, this.#name, this.#address),
           this.#state),
        this.#whyNot, this.#meter,
        el('dl', {class: 'figures'}, figure('KV blocks', this.#usage),
           figure('Running', this.#running),
           figure('Waiting', this.#waiting)),
        this.#adapters);
  }

  update(worker) {
    const {level, label} = stateOf(worker);
    setAttributes(this.element, {
      class: `worker ${worker.role}${worker.usable ? '' : ' unusable'}`,
      'data-worker': worker.name,
    });
    setText(this.#name, worker.name);
    setText(this.#address, worker.name === worker.address ? '' :
                                                            worker.address);
    setAttributes(this.#state, {class: `worker-state ${level}`});
    setText(this.#state, label);
    // "is not connected" says no more than the state does.
    const whyNot = worker.connected ? worker.whyNot : '';
    setText(this.#whyNot, whyNot);
    this.#whyNot.hidden = whyNot === '';

    const ratio =
        worker.totalBlocks === 0 ? 0 : worker.usedBlocks / worker.totalBlocks;
    const blocks = worker.totalBlocks === 0 ?
        '–' :
        `${count(worker.usedBlocks)} of ${count(worker.totalBlocks)}`;
    setAttributes(this.#meter, {
      'aria-label': `KV blocks in use on ${worker.name}`,
      'aria-valuenow': Math.round(ratio * 100),
      'aria-valuetext': `${percent(ratio)}, ${blocks} blocks`,
      'data-ratio': ratio.toFixed(3),
    });
    this.#fill.style.width = `${(100 * Math.min(1, ratio)).toFixed(1)}%`;
    this.#fill.classList.toggle('nearly-full', ratio >= 0.9);
    setText(this.#usage, worker.totalBlocks === 0 ?
        blocks : `${blocks} · ${percent(ratio)}`);
    setText(this.#running, count(worker.running));
    setText(this.#waiting, count(worker.waiting));
    setText(this.#adapters, `Adapters: ${worker.adapters.join(', ')}`);
    this.#adapters.hidden = worker.adapters.length === 0;
  }
}

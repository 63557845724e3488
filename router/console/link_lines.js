// The lines between the two pools, over the room that lies between them.

import {setAttributes, setChildren, svg} from './dom.js';

export class LinkLines {
  #drawing;
  #paths = new Map();
  #from = new Map();
  #to = new Map();
  #links = [];

  // `drawing` is an <svg> that covers the room between the pools.
  constructor(drawing) {
    this.#drawing = drawing;
    new ResizeObserver(() => this.#draw()).observe(drawing);
  }

  // `from` and `to` map names of prefill and decode workers to their cards.
  update(links, from, to) {
    this.#links = links;
    this.#from = from;
    this.#to = to;
    this.#draw();
  }

  #draw() {
    const box = this.#drawing.getBoundingClientRect();
    if (box.width < 20) return;  // the pools lie one above the other
    setAttributes(this.#drawing, {viewBox: `0 0 ${box.width} ${box.height}`});
    const middle = (card) => {
      const rect = card.getBoundingClientRect();
      return Math.round(rect.top + rect.height / 2 - box.top);
    };
    const seen = new Map();
    for (const link of this.#links) {
      const from = this.#from.get(link.prefill);
      const to = this.#to.get(link.decode);
      if (from === undefined || to === undefined) continue;
      const key = JSON.stringify([link.prefill, link.decode]);
      const path = this.#paths.get(key) ?? svg('path');
      const [y1, y2, half] = [middle(from), middle(to), box.width / 2];
      setAttributes(path, {
        d: `M0 ${y1}C${half} ${y1} ${half} ${y2} ${box.width} ${y2}`,
        class: link.usable ? 'link' : 'link broken',
      });
      seen.set(key, path);
    }
    this.#paths = seen;
    setChildren(this.#drawing, [...seen.values()]);
  }
}

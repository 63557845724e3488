// Lines over the last minutes, drawn as SVG.

import {el, setAttributes, setText, svg} from './dom.js';
import {clock} from './format.js';

const MARGIN = {left: 54, right: 10, top: 8, bottom: 20};
// Points further apart than this are not joined.
const MAX_STEP_SECONDS = 5;

// Tops of axes that read well, and into how many parts each is cut.
const TOPS = [[1, 4], [2, 4], [3, 3], [4, 4], [5, 5], [6, 3], [8, 4], [10, 4]];

// {top, step} of an axis that has room for `max`, and for `atLeast`. Pure.
export function niceAxis(max, atLeast) {
  const wanted = Math.max(max, atLeast) * (1 - 1e-9);
  const power = 10 ** Math.floor(Math.log10(wanted));
  const [factor, parts] =
      TOPS.find(([candidate]) => candidate * power >= wanted);
  return {top: factor * power, step: factor * power / parts};
}

// Runs of points that belong together: [[{t, value}, ...], ...], broken where a
// value is null or nothing was known for a while. Pure.
export function runsOf(samples, key) {
  const runs = [];
  let run = null;
  for (const sample of samples) {
    const value = sample[key];
    if (value === null || value === undefined) {
      run = null;
      continue;
    }
    if (run === null || sample.t - run.at(-1).t > MAX_STEP_SECONDS) {
      run = [];
      runs.push(run);
    }
    run.push({t: sample.t, value});
  }
  return runs;
}

function coordinate(value) {
  return String(Math.round(value * 10) / 10);
}

// The "d" of a path through the runs: {line, dots}, where `dots` has the points
// without neighbours, as lines without length whose round ends show. Pure.
export function pathsOf(runs, x, y) {
  const parts = {line: '', dots: ''};
  for (const run of runs) {
    const points =
        run.map(({t, value}) => `${coordinate(x(t))} ${coordinate(y(value))}`);
    if (run.length === 1) {
      parts.dots += `M${points[0]}h0`;
    } else {
      parts.line += `M${points.join('L')}`;
    }
  }
  return parts;
}

// One chart: a title, a legend with the figures of now, and one line per
// series. `series` is [{key, label, tone}]; `format` and `axisFormat` write
// values; `atLeast` is the smallest top of the axis.
export class LineChart {
  #options;
  #entries = [];
  #plot;
  #drawing;
  #grid;
  #note;
  #cursor;
  #cursorNote;
  #samples = [];
  #current = {};
  #now = 0;
  #width = 0;
  #height = 0;
  #cursorTime = null;

  constructor(options) {
    this.#options = options;
    const legend = el('dl', {class: 'legend'});
    this.#grid = svg('g', {class: 'grid'});
    this.#cursor = svg('line', {class: 'cursor', visibility: 'hidden'});
    this.#drawing =
        svg('svg', {'aria-hidden': 'true', focusable: 'false'}, this.#grid);
    for (const {key, label, tone} of options.series) {
      const value = el('dd', {text: '–'});
      legend.append(el('div', {class: `entry ${tone}`},
                       el('dt', {}, el('span', {class: 'swatch'}), label),
                       value));
      const line = svg('path', {class: `line ${tone}`, 'data-series': key});
      const dots = svg('path', {class: `line dots ${tone}`});
      // The first series lies on top.
      this.#grid.after(line, dots);
      this.#entries.push({key, value, line, dots});
    }
    this.#drawing.append(this.#cursor);
    this.#note = el('p', {class: 'nothing', text: options.emptyText});
    this.#cursorNote = el('span', {class: 'when'});
    this.#plot = el('div', {
      class: 'plot',
      tabindex: '0',
      role: 'group',
      'aria-label': `${options.title}, last 5 minutes; arrow keys look back`,
    }, this.#drawing, this.#note);
    this.element = el('figure', {class: 'card chart', 'data-chart': options.id},
                      el('figcaption', {},
                         el('h3', {text: options.title}),
                         el('span', {class: 'unit', text: options.note}),
                         this.#cursorNote),
                      legend, this.#plot);
    this.#listen();
  }

  // `samples` as of History; `current` has the legend's values by key.
  update(samples, current, now) {
    this.#samples = samples;
    this.#current = current;
    this.#now = now;
    this.#draw();
  }

  #listen() {
    new ResizeObserver(([entry]) => {
      this.#width = entry.contentRect.width;
      this.#height = entry.contentRect.height;
      this.#draw();
    }).observe(this.#plot);
    this.#plot.addEventListener('pointermove', (event) => {
      const left = this.#plot.getBoundingClientRect().left;
      this.#lookAt(this.#timeAt(event.clientX - left));
    });
    this.#plot.addEventListener('pointerleave', () => this.#lookAt(null));
    this.#plot.addEventListener('blur', () => this.#lookAt(null));
    this.#plot.addEventListener('keydown', (event) => {
      const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (step !== undefined) {
        this.#lookAt((this.#cursorTime ?? this.#now) + step);
        event.preventDefault();
      } else if (event.key === 'Escape') {
        this.#lookAt(null);
      }
    });
  }

  #x(t) {
    const width = this.#width - MARGIN.left - MARGIN.right;
    const age = (this.#now - t) / this.#options.windowSeconds;
    return MARGIN.left + width * (1 - age);
  }

  #timeAt(x) {
    const width = this.#width - MARGIN.left - MARGIN.right;
    const age = 1 - (x - MARGIN.left) / width;
    return this.#now - age * this.#options.windowSeconds;
  }

  #lookAt(time) {
    const first = this.#now - this.#options.windowSeconds;
    this.#cursorTime =
        time === null ? null : Math.min(this.#now, Math.max(first, time));
    this.#drawLegend();
  }

  #draw() {
    if (this.#width < 80 || this.#height < 40) return;  // not shown
    const {windowSeconds, atLeast} = this.#options;
    const shown =
        this.#samples.filter((s) => s.t >= this.#now - windowSeconds);
    const runs = this.#entries.map(({key}) => runsOf(shown, key));
    const values = runs.flat(2).map((point) => point.value);
    const axis = niceAxis(
        values.reduce((a, b) => Math.max(a, b), 0), atLeast);
    const bottom = this.#height - MARGIN.bottom;
    const y = (value) => bottom - (bottom - MARGIN.top) * value / axis.top;
    setAttributes(this.#drawing,
                  {viewBox: `0 0 ${this.#width} ${this.#height}`});
    this.#drawGrid(axis, y, bottom);
    this.#entries.forEach((entry, i) => {
      const {line, dots} = pathsOf(runs[i], (t) => this.#x(t), y);
      setAttributes(entry.line,
                    {d: line, 'data-points': runs[i].flat().length});
      setAttributes(entry.dots, {d: dots});
    });
    this.#note.hidden = values.length > 0;
    this.#drawLegend();
  }

  #drawGrid(axis, y, bottom) {
    const right = this.#width - MARGIN.right;
    const parts = [];
    for (let i = 0; i * axis.step <= axis.top * (1 + 1e-9); i += 1) {
      const height = coordinate(y(i * axis.step));
      parts.push(
          svg('line', {x1: MARGIN.left, x2: right, y1: height, y2: height}),
          svg('text', {
            x: MARGIN.left - 8,
            y: height,
            dy: '0.32em',
            'text-anchor': 'end',
            text: this.#options.axisFormat(i * axis.step),
          }));
    }
    const minutes = this.#options.windowSeconds / 60;
    for (let minute = minutes; minute >= 0; minute -= 1) {
      if (this.#width < 380 && minute % minutes !== 0) continue;
      parts.push(svg('text', {
        x: coordinate(this.#x(this.#now - minute * 60)),
        y: bottom + 15,
        'text-anchor': minute === minutes ? 'start' :
            minute === 0                  ? 'end' :
                                            'middle',
        text: minute === 0 ? 'now' : `−${minute} min`,
      }));
    }
    this.#grid.replaceChildren(...parts);
  }

  // The legend has the figures of now, or of the moment under the cursor.
  #drawLegend() {
    const time = this.#cursorTime;
    let at = this.#current;
    if (time !== null && this.#samples.length > 0) {
      const nearest = this.#samples.reduce(
          (a, b) => Math.abs(b.t - time) < Math.abs(a.t - time) ? b : a);
      at = Math.abs(nearest.t - time) <= MAX_STEP_SECONDS ? nearest : {};
    }
    for (const {key, value} of this.#entries) {
      setText(value, this.#options.format(at[key] ?? null));
    }
    setText(this.#cursorNote,
            time === null ? '' : `${clock(this.#now - time)} ago`);
    const x = time === null ? 0 : coordinate(this.#x(time));
    setAttributes(this.#cursor, {
      visibility: time === null ? 'hidden' : 'visible',
      x1: x,
      x2: x,
      y1: MARGIN.top,
      y2: Math.max(MARGIN.top, this.#height - MARGIN.bottom),
    });
  }
}

// A small line without axes through `values`, for the gaps of one answer.
export function drawSpark(drawing, path, values) {
  const {width, height} = drawing.viewBox.baseVal;
  const max = values.reduce((a, b) => Math.max(a, b), 0);
  const step = values.length > 1 ? width / (values.length - 1) : 0;
  const y = (value) => height - 2 - (height - 4) * (max > 0 ? value / max : 0);
  const points = values.map(
      (value, i) => `${coordinate(i * step)} ${coordinate(y(value))}`);
  setAttributes(path, {
    d: points.length > 1 ? `M${points.join('L')}` : '',
    'data-points': values.length,
  });
}

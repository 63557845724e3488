import assert from 'node:assert/strict';
import {readFileSync} from 'node:fs';
import test from 'node:test';

import {niceAxis, pathsOf, runsOf} from '../../router/console/chart.js';
import * as format from '../../router/console/format.js';

test('axes end in round numbers', () => {
  assert.deepEqual(niceAxis(0, 10), {top: 10, step: 2.5});
  assert.deepEqual(niceAxis(11, 10), {top: 20, step: 5});
  assert.deepEqual(niceAxis(20, 10), {top: 20, step: 5});
  assert.deepEqual(niceAxis(21, 10), {top: 30, step: 10});
  assert.deepEqual(niceAxis(37, 10), {top: 40, step: 10});
  assert.deepEqual(niceAxis(41, 10), {top: 50, step: 10});
  assert.deepEqual(niceAxis(81, 10), {top: 100, step: 25});
  for (let power = -5; power < 9; power += 1) {
    for (const factor of [1, 1.3, 2, 4.99, 5, 7.5, 9.99]) {
      const max = factor * 10 ** power;
      const {top, step} = niceAxis(max, 1e-9);
      assert.ok(top >= max * (1 - 1e-6), `${top} for ${max}`);
      assert.ok(top <= max * 2 * (1 + 1e-6), `${top} for ${max}`);
      assert.ok(Math.abs(top / step - Math.round(top / step)) < 1e-6);
    }
  }
});

test('lines break where nothing is known', () => {
  const samples = [
    {t: 1, v: 5}, {t: 2, v: 6}, {t: 3, v: null}, {t: 4, v: 7}, {t: 5},
    {t: 6, v: 0}, {t: 7, v: 1}, {t: 40, v: 2},
  ];
  assert.deepEqual(runsOf(samples, 'v').map((run) => run.map((p) => p.t)),
                   [[1, 2], [4], [6, 7], [40]]);
  assert.deepEqual(runsOf([], 'v'), []);
});

test('lines go through the points; a lone point is a dot', () => {
  const runs = [
    [{t: 0, value: 1}, {t: 1, value: 2.04}],
    [{t: 5, value: 0}],
    [{t: 7, value: 1}, {t: 8, value: 1}],
  ];
  assert.deepEqual(pathsOf(runs, (t) => t * 10, (v) => 100 - v),
                   {line: 'M0 99L10 98M70 99L80 99', dots: 'M50 100h0'});
  assert.deepEqual(pathsOf([], Number, Number), {line: '', dots: ''});
});

test('writes numbers for people', () => {
  const cases = [
    [format.seconds, 0.00042, '0.42 ms'],
    [format.seconds, 0.0421, '42.1 ms'],
    [format.seconds, 0.421, '421 ms'],
    [format.seconds, 0.9996, '1.00 s'],
    [format.seconds, 12.34, '12.3 s'],
    [format.seconds, null, '–'],
    [format.axisSeconds, 0, '0'],
    [format.axisSeconds, 0.0025, '2.5 ms'],
    [format.axisSeconds, 0.05, '50 ms'],
    [format.axisSeconds, 2.5, '2.5 s'],
    [format.count, 12345, '12,345'],
    [format.count, undefined, '–'],
    [format.rate, 0, '0'],
    [format.rate, 3.456, '3.46'],
    [format.rate, 45.67, '45.7'],
    [format.rate, 1234.5, '1,235'],
    [format.axisCount, 2500, '2.5k'],
    [format.axisCount, 0.5, '0.5'],
    [format.axisCount, 2e6, '2M'],
    [format.percent, 0, '0%'],
    [format.percent, 0.001, '<1%'],
    [format.percent, 0.125, '13%'],
    [format.percent, 1, '100%'],
    [format.bandwidth, 0, '–'],
    [format.bandwidth, 812e6, '812 MB/s'],
    [format.bandwidth, 4.2e9, '4.20 GB/s'],
    [format.bandwidth, 999.9e6, '1.00 GB/s'],
    [format.latency, 0, '–'],
    [format.latency, 0.000042, '42.0 µs'],
    [format.latency, 0.0015, '1.50 ms'],
    [format.clock, 75.2, '1:15'],
    [format.clock, 5, '0:05'],
  ];
  for (const [write, value, text] of cases) {
    assert.equal(write(value), text, `${write.name}(${value})`);
  }
  assert.equal(format.plural(1, 'worker'), '1 worker');
  assert.equal(format.plural(0, 'worker'), '0 workers');
});

// Relative luminance and contrast as WCAG 2.1 defines them.
function luminance(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => {
    const value = parseInt(colour.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(a, b) {
  const [dark, light] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (light + 0.05) / (dark + 0.05);
}

test('colours are legible in both themes', () => {
  const css = readFileSync(
      new URL('../../router/console/theme.css', import.meta.url), 'utf8');
  const [light, dark] = css.split('@media').map(
      (part) => Object.fromEntries([...part.matchAll(
          /--([a-z-]+): (#[0-9a-f]{6});/g)].map((m) => [m[1], m[2]])));
  assert.equal(Object.keys(dark).length, Object.keys(light).length);
  for (const [name, theme] of Object.entries({light, dark})) {
    const check = (text, ground, least) => {
      const ratio = contrast(theme[text], theme[ground]);
      assert.ok(ratio >= least,
                `${name}: ${text} on ${ground} has ${ratio.toFixed(2)}`);
    };
    for (const ground of ['ground', 'surface', 'sunken']) {
      for (const text of ['text', 'soft', 'accent', 'good', 'warn', 'bad',
                          'prefill', 'decode']) {
        check(text, ground, 4.5);
      }
    }
    for (const ground of ['bad-ground', 'warn-ground']) {
      check('text', ground, 4.5);
      check('soft', ground, 4.5);
    }
    check('on-accent', 'accent', 4.5);
    check('on-accent', 'accent-strong', 4.5);
    for (const graphic of ['line-first', 'line-second', 'edge-strong',
                           'decode-fill', 'prefill-fill']) {
      check(graphic, 'surface', graphic === 'prefill-fill' ? 2.5 : 3);
    }
  }
});

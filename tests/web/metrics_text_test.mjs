import assert from 'node:assert/strict';
import test from 'node:test';

import {histogramOf, parseMetrics, sumOf} from
    '../../router/console/metrics_text.js';

test('reads names, labels and values', () => {
  assert.deepEqual(parseMetrics([
    '# HELP a_total What it is, with a {brace} and a "quote".',
    '# TYPE a_total counter',
    'a_total 7',
    'b{x="1",y="two words"} 2.5e-3 1700000000000',
    'c{x="1",} +Inf',
    'd{} -Inf',
    'e{ x = "1" , y = "2" } -4',
    '',
  ].join('\n')), [
    {name: 'a_total', labels: {}, value: 7},
    {name: 'b', labels: {x: '1', y: 'two words'}, value: 0.0025},
    {name: 'c', labels: {x: '1'}, value: Infinity},
    {name: 'd', labels: {}, value: -Infinity},
    {name: 'e', labels: {x: '1', y: '2'}, value: -4},
  ]);
  assert.ok(Number.isNaN(parseMetrics('a NaN')[0].value));
});

test('reads escapes and signs in labels', () => {
  const [sample] = parseMetrics(
      String.raw`a{x="q\"b\\n\n}",y="a,b=\"c\""} 1`);
  assert.deepEqual(sample.labels, {x: 'q"b\\n\n}', y: 'a,b="c"'});
});

test('reads lines that end in CRLF', () => {
  assert.deepEqual(parseMetrics('a 1\r\nb 2\r\n').map((s) => s.value), [1, 2]);
});

test('leaves out what it does not understand', () => {
  const bad = ['a', 'a{', 'a{x="1" 2', 'a{x=1} 2', 'a b', '{x="1"} 2', '7 7',
               'a{x="1"}', '<html>', 'a{x="1}', 'a{x="1",,} 3'];
  assert.deepEqual(parseMetrics(bad.join('\n')), []);
  assert.deepEqual(parseMetrics([...bad, 'good 1'].join('\n')),
                   [{name: 'good', labels: {}, value: 1}]);
});

test('sums over series', () => {
  const samples = parseMetrics('a{x="1"} 1\na{x="2"} 2\nab 9\n');
  assert.equal(sumOf(samples, 'a'), 3);
  assert.equal(sumOf(samples, 'b'), null);
});

test('makes a histogram, summed over series and in order', () => {
  const samples = parseMetrics([
    'h_bucket{s="1",le="0.5"} 1',
    'h_bucket{s="1",le="+Inf"} 4',
    'h_bucket{s="1",le="0.25"} 1',
    'h_bucket{s="2",le="0.25"} 2',
    'h_bucket{s="2",le="0.5"} 2',
    'h_bucket{s="2",le="+Inf"} 3',
    'h_sum{s="1"} 9',
    'h_count{s="1"} 4',
  ].join('\n'));
  assert.deepEqual(histogramOf(samples, 'h'), {
    bounds: [0.25, 0.5, Infinity],
    cumulative: [3, 3, 7],
  });
});

test('has no histogram without buckets or without the last of them', () => {
  assert.equal(histogramOf(parseMetrics('h_count 3'), 'h'), null);
  assert.equal(histogramOf(parseMetrics('h_bucket{le="1"} 3'), 'h'), null);
  assert.equal(
      histogramOf(parseMetrics('h_bucket{le="x"} 3'), 'h'), null);
});

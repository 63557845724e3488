import assert from 'node:assert/strict';
import test from 'node:test';

import {SseParser} from '../../router/console/sse.js';

function parse(chunks) {
  const parser = new SseParser();
  return chunks.flatMap((chunk) => parser.push(chunk));
}

const bytes = (text) => new TextEncoder().encode(text);

const STREAM = bytes(
    ': a comment\n' +
    'data: {"text":"é, 漢字 and 👩‍🚀"}\n\n' +
    'event: x\r\ndata:no space\r\ndata:  two\r\n\r\n' +
    'id: 7\rdata: old Mac\r\r' +
    'data\n\n' +
    'data: [DONE]\n\n' +
    'data: not ended\n');
const EVENTS = [
  '{"text":"é, 漢字 and 👩‍🚀"}',
  'no space\n two',
  'old Mac',
  '',
  '[DONE]',
];

test('reads events in one piece', () => {
  assert.deepEqual(parse([STREAM]), EVENTS);
});

test('reads events byte by byte', () => {
  const single = [...STREAM].map((byte) => Uint8Array.of(byte));
  assert.deepEqual(parse(single), EVENTS);
});

test('reads events cut in two at every byte', () => {
  for (let cut = 0; cut <= STREAM.length; cut += 1) {
    assert.deepEqual(
        parse([STREAM.subarray(0, cut), STREAM.subarray(cut)]), EVENTS,
        `cut at ${cut}`);
  }
});

test('reads events cut in three', () => {
  for (let first = 0; first <= STREAM.length; first += 3) {
    for (let second = first; second <= STREAM.length; second += 2) {
      assert.deepEqual(
          parse([STREAM.subarray(0, first), STREAM.subarray(first, second),
                 STREAM.subarray(second)]),
          EVENTS, `cut at ${first} and ${second}`);
    }
  }
});

test('gives each event as soon as it is complete', () => {
  const parser = new SseParser();
  assert.deepEqual(parser.push(bytes('data: a')), []);
  assert.deepEqual(parser.push(bytes('\n')), []);
  assert.deepEqual(parser.push(bytes('\ndata: b\n\nda')), ['a', 'b']);
  assert.deepEqual(parser.push(bytes('ta: c\n\n')), ['c']);
});

test('replaces bytes that are no UTF-8', () => {
  assert.deepEqual(parse([
    bytes('data: x'), Uint8Array.of(0xff), bytes('y\n\n')]), ['x\ufffdy']);
});

test('refuses a line without end', () => {
  const parser = new SseParser();
  const piece = new Uint8Array(1 << 20).fill(0x61);
  assert.throws(() => {
    for (let i = 0; i < 17; i += 1) parser.push(piece);
  }, /no event stream/);
});

import assert from 'node:assert/strict';
import test from 'node:test';

import {ApiError, isKey, readError} from '../../router/console/api.js';
import {generate, Meter, readEvent} from '../../router/console/generation.js';
import {readNumber} from '../../router/console/parameters.js';

// An Api whose answer is `chunks` of text, after which it ends or breaks.
function apiOf(chunks, {breaks = false} = {}) {
  return {
    calls: [],
    async request(path, options) {
      this.calls.push({path, options});
      const body = new ReadableStream({
        start(controller) {
          for (const chunk of chunks) {
            controller.enqueue(new TextEncoder().encode(chunk));
          }
          if (breaks) {
            controller.error(new TypeError('network error'));
          } else {
            controller.close();
          }
        },
      });
      return new Response(body, {headers: {'x-request-id': 'r-1'}});
    },
  };
}

async function run(api, kind = 'prompt') {
  const events = [];
  let id;
  await generate(api, kind, {model: 'm'}, {
    signal: new AbortController().signal,
    onHeaders: (value) => (id = value),
    onEvent: (event) => events.push(event),
  });
  return {events, id};
}

test('reads events of completions and of chats', () => {
  assert.deepEqual(
      readEvent('{"choices":[{"text":"a","finish_reason":null}]}'),
      {text: 'a', thought: '', finishReason: null, usage: null});
  assert.deepEqual(
      readEvent('{"choices":[{"delta":{"role":"assistant"}}]}'),
      {text: '', thought: '', finishReason: null, usage: null});
  assert.deepEqual(
      readEvent('{"choices":[{"delta":{"content":"b"}}],"usage":null}'),
      {text: 'b', thought: '', finishReason: null, usage: null});
  assert.deepEqual(
      readEvent('{"choices":[{"delta":{"reasoning_content":"c"}}]}'),
      {text: '', thought: 'c', finishReason: null, usage: null});
  assert.deepEqual(
      readEvent('{"choices":[{"delta":{},"finish_reason":"length"}]}'),
      {text: '', thought: '', finishReason: 'length', usage: null});
  assert.deepEqual(
      readEvent('{"choices":[],"usage":{"completion_tokens":4}}'),
      {text: '', thought: '', finishReason: null, usage: {completion_tokens: 4}});
});

test('an event that is an error, or no event, ends it', () => {
  assert.throws(
      () => readEvent('{"error":{"message":"lost","code":503,"param":null}}'),
      (e) => e instanceof ApiError && e.message === 'lost' && e.code === '503');
  for (const bad of ['', '{', '7', 'null', '"x"']) {
    assert.throws(() => readEvent(bad), ApiError, bad);
  }
  // Of the right type, but of another shape: nothing in it.
  assert.equal(readEvent('{"choices":[{"text":{}}]}').text, '');
  assert.equal(readEvent('{"choices":{}}').text, '');
});

test('streams a whole answer', async () => {
  const api = apiOf(['data: {"choices":[{"text":"He', 'y"}]}\n\n',
                     'data: {"choices":[],"usage":{}}\n\ndata: [DONE]\n\n']);
  const {events, id} = await run(api);
  assert.equal(id, 'r-1');
  assert.equal(events.length, 2);
  assert.equal(events[0].text, 'Hey');
  assert.equal(api.calls[0].path, '/v1/completions');
  assert.equal(api.calls[0].options.method, 'POST');
});

test('a chat goes to its own path', async () => {
  const api = apiOf(['data: [DONE]\n\n']);
  await run(api, 'chat');
  assert.equal(api.calls[0].path, '/v1/chat/completions');
});

test('an answer that is not whole is an error', async () => {
  await assert.rejects(run(apiOf(['data: {"choices":[]}\n\n'])),
                       /ended before it was whole/);
  await assert.rejects(run(apiOf([], {breaks: true})), /connection broke/);
  await assert.rejects(run(apiOf(['data: {"error":{"message":"x"}}\n\n'])),
                       /^ApiError: x$/);
});

test('reads the error bodies of OpenAI, and survives others', () => {
  const error = readError(400, {
    error: {message: 'too hot', type: 'invalid_request_error',
            param: 'temperature', code: null},
  });
  assert.equal(error.message, 'too hot');
  assert.equal(error.param, 'temperature');
  assert.equal(error.code, null);
  assert.equal(error.status, 400);
  assert.equal(readError(500, {error: 'broken'}).message, 'broken');
  for (const body of [null, 7, 'x', [], {}, {error: {}}, {error: null}]) {
    assert.equal(readError(500, body), null);
  }
});

test('measures an answer', () => {
  const meter = new Meter(10);
  assert.equal(meter.ttft, null);
  assert.equal(meter.tokensPerSecond, null);
  meter.text(10.5);
  assert.equal(meter.ttft, 0.5);
  assert.equal(meter.tokensPerSecond, null);
  meter.text(10.75);
  meter.text(11.5);
  assert.deepEqual(meter.gaps, [0.25, 0.75]);
  assert.equal(meter.tokensPerSecond, 2);
  assert.equal(meter.isExact, false);
  meter.usage(5);  // one event had several tokens
  assert.equal(meter.tokensPerSecond, 4);
  assert.equal(meter.tokens, 5);
  assert.equal(meter.isExact, true);
});

test('reads numbers as they are typed', () => {
  assert.deepEqual(readNumber('', true), {value: null});
  assert.deepEqual(readNumber(' 7 ', true), {value: 7});
  assert.deepEqual(readNumber('0.5', false), {value: 0.5});
  assert.deepEqual(readNumber('-1', false), {value: -1});
  for (const [text, isWhole] of [['x', false], ['1,5', false], ['1.5', true],
                                 ['Infinity', false], ['NaN', true],
                                 ['99999999999999999999', true]]) {
    assert.equal(typeof readNumber(text, isWhole).problem, 'string', text);
  }
});

test('knows what can be a key', () => {
  assert.ok(isKey('sk-abc_123.~'));
  for (const bad of ['', 'a b', 'a\nb', 'schlüssel', '\u0000']) {
    assert.ok(!isKey(bad), bad);
  }
});

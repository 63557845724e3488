// One generation: the request, its stream, and how fast it was.

import {ApiError, readError} from './api.js';
import {SseParser} from './sse.js';

export const PATHS = {
  prompt: '/v1/completions',
  chat: '/v1/chat/completions',
};

// {text, thought, finishReason, usage} of one event of a streamed answer, with
// what is not in it left empty or null. Throws ApiError for an error, and for
// what is no such event.
export function readEvent(data) {
  let body;
  try {
    body = JSON.parse(data);
  } catch {
    body = null;
  }
  const error = readError(200, body);
  if (error !== null) throw error;
  if (body === null || typeof body !== 'object') {
    throw new ApiError(0, 'The stream has an event that is no JSON object.');
  }
  const choice = Array.isArray(body.choices) ? body.choices[0] : undefined;
  const text = choice?.delta?.content ?? choice?.text;
  const thought = choice?.delta?.reasoning_content;
  return {
    text: typeof text === 'string' ? text : '',
    thought: typeof thought === 'string' ? thought : '',
    finishReason: choice?.finish_reason ?? null,
    usage: body.usage ?? null,
  };
}

// Sends a request and calls `onHeaders(requestId)`, then `onEvent(event)` for
// each event. Returns when the answer is whole; throws ApiError when it is not,
// and an AbortError when `signal` ended it.
export async function generate(
    api, kind, body, {signal, onHeaders, onEvent}) {
  const response =
      await api.request(PATHS[kind], {method: 'POST', json: body, signal});
  onHeaders(response.headers.get('x-request-id'));
  const reader = response.body.getReader();
  const parser = new SseParser();
  try {
    for (;;) {
      const {done, value} = await reader.read();
      if (done) break;
      for (const data of parser.push(value)) {
        if (data === '[DONE]') return;
        onEvent(readEvent(data));
      }
    }
  } catch (error) {
    if (error instanceof ApiError || signal.aborted) throw error;
    throw new ApiError(0, 'The connection broke before the answer was whole.');
  } finally {
    // Ends what is still under way after an error; nothing after the end.
    reader.cancel().catch(() => {});
  }
  throw new ApiError(0, 'The answer ended before it was whole.');
}

// How fast an answer comes. Times are in seconds, of any one clock.
export class Meter {
  #sent;
  #first = null;
  #last = null;
  #events = 0;
  #tokens = null;
  #gaps = [];

  constructor(sent) {
    this.#sent = sent;
  }

  // New text arrived.
  text(t) {
    if (this.#first === null) {
      this.#first = t;
    } else {
      this.#gaps.push(t - this.#last);
    }
    this.#last = t;
    this.#events += 1;
  }

  // What the router counted, at the end.
  usage(outputTokens) {
    this.#tokens = outputTokens;
  }

  // Null before the first text.
  get ttft() {
    return this.#first === null ? null : this.#first - this.#sent;
  }

  // Output tokens; until the router says it, events with text, of which each
  // has at least one.
  get tokens() {
    return this.#tokens ?? this.#events;
  }

  get isExact() {
    return this.#tokens !== null;
  }

  // Between the first and the last; null before the second.
  get tokensPerSecond() {
    if (this.tokens < 2 || !(this.#last > this.#first)) return null;
    return (this.tokens - 1) / (this.#last - this.#first);
  }

  // Seconds between events with text.
  get gaps() {
    return this.#gaps;
  }
}

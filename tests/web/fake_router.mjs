// A router as the console sees it, whose every answer a test decides. Serves
// the console's files as the real one does.

import {readFile} from 'node:fs/promises';
import http from 'node:http';

const CONSOLE_DIR = new URL('../../router/console/', import.meta.url);
const TYPES = {
  css: 'text/css; charset=utf-8',
  html: 'text/html; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
  svg: 'image/svg+xml',
};

// One request for text, and the answer that the test gives it.
export class Generation {
  #response;

  constructor(kind, request, body, response) {
    this.kind = kind;  // "prompt" or "chat"
    this.headers = request.headers;
    this.body = body;
    this.#response = response;
    // Resolves when the client is gone, or all is sent.
    this.closed = new Promise((resolve) => response.on('close', resolve));
  }

  get isWhole() {
    return this.#response.writableFinished;
  }

  start(requestId = 'req-1') {
    this.#response.writeHead(200, {
      'content-type': 'text/event-stream',
      'x-request-id': requestId,
    });
    this.#response.flushHeaders();
  }

  raw(bytes) {
    this.#response.write(bytes);
  }

  event(object) {
    this.raw(`data: ${JSON.stringify(object)}\n\n`);
  }

  text(text) {
    this.event({choices: [this.kind === 'chat' ?
      {index: 0, delta: {content: text}, finish_reason: null} :
      {index: 0, text, finish_reason: null}]});
  }

  // Of a conversation: the model thinks.
  thought(text) {
    this.event({choices: [
      {index: 0, delta: {reasoning_content: text}, finish_reason: null},
    ]});
  }

  // The end of a good answer.
  finish(reason, usage) {
    this.event({choices: [this.kind === 'chat' ?
      {index: 0, delta: {}, finish_reason: reason} :
      {index: 0, text: '', finish_reason: reason}]});
    this.event({choices: [], usage});
    this.raw('data: [DONE]\n\n');
    this.#response.end();
  }

  // Ends the body without the end of the answer.
  end() {
    this.#response.end();
  }

  // Cuts the connection.
  destroy() {
    this.#response.destroy();
  }

  fail(status, error) {
    this.#response.writeHead(status, {'content-type': 'application/json'});
    this.#response.end(JSON.stringify({error}));
  }
}

// [count, ...] per bucket -> lines of the text format.
export function histogramText(name, bounds, counts) {
  let sum = 0;
  const lines = bounds.map((bound, i) => {
    sum += counts[i];
    return `${name}_bucket{role="router",le="${bound}"} ${sum}`;
  });
  return [`# TYPE ${name} histogram`, ...lines,
          `${name}_sum{role="router"} 1`,
          `${name}_count{role="router"} ${sum}`, ''].join('\n');
}

export function worker(role, index, more = {}) {
  return {
    name: `${role}-${index}`,
    role,
    address: `127.0.0.1:${role === 'prefill' ? 7100 + index : 7200 + index}`,
    connected: true,
    usable: true,
    why_not: '',
    running: 0,
    waiting: 0,
    free_blocks: 4096,
    total_blocks: 4096,
    ...more,
  };
}

export function link(prefill, decode, more = {}) {
  return {
    prefill_worker: prefill,
    decode_worker: decode,
    usable: true,
    why_not: '',
    transport: 'local',
    bandwidth_bytes: 8.4e9,
    latency_seconds: 4.2e-5,
    ...more,
  };
}

export class FakeRouter {
  #server = null;
  #port = 0;
  #generations = [];
  #waiting = [];

  constructor() {
    this.key = null;  // wanted when not null
    this.model = {id: 'stories', object: 'model', max_model_len: 512,
                  chat: true};
    this.adapters = [];  // names of models beside that one
    this.cluster = {
      router_name: 'router',
      workers: [worker('prefill', 0), worker('decode', 0)],
      links: [link('prefill-0', 'decode-0')],
      running_requests: 0,
      waiting_requests: 0,
    };
    // The n-th page of metrics (from 0 at every start of the router).
    this.metrics = () => '';
    this.metricsPages = 0;
    this.requests = [];  // {method, path, authorization}
  }

  static async start() {
    const router = new FakeRouter();
    await router.start();
    return router;
  }

  get url() {
    return `http://127.0.0.1:${this.#port}`;
  }

  // On the same port as before, when there was one.
  async start() {
    this.metricsPages = 0;
    this.#server = http.createServer((request, response) => {
      this.#answer(request, response).catch((error) => {
        response.destroy(error);
      });
    });
    await new Promise((resolve, reject) => {
      this.#server.on('error', reject);
      this.#server.listen(this.#port, '127.0.0.1', resolve);
    });
    this.#port = this.#server.address().port;
  }

  async stop() {
    const closed = new Promise((resolve) => this.#server.close(resolve));
    this.#server.closeAllConnections();
    await closed;
  }

  // The next request for text that comes, or came.
  nextGeneration() {
    const ready = this.#generations.shift();
    if (ready !== undefined) return Promise.resolve(ready);
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  async #answer(request, response) {
    const path = request.url;
    this.requests.push({
      method: request.method,
      path,
      authorization: request.headers.authorization ?? null,
    });
    if (path === '/' || path.startsWith('/console/')) {
      await this.#file(path, response);
      return;
    }
    if (this.key !== null &&
        request.headers.authorization !== `Bearer ${this.key}`) {
      this.#json(response, 401, {error: {
        message: 'no such key', type: 'authentication_error', param: null,
        code: 'invalid_api_key',
      }});
      return;
    }
    if (path === '/api/cluster') {
      this.#json(response, 200, this.cluster);
    } else if (path === '/v1/models') {
      this.#json(response, 200, {object: 'list', data: [
        this.model,
        ...this.adapters.map((id) => ({...this.model, id, parent: 'stories'})),
      ]});
    } else if (path === '/metrics') {
      response.writeHead(200, {'content-type': 'text/plain; version=0.0.4'});
      response.end(this.metrics(this.metricsPages));
      this.metricsPages += 1;
    } else if (path === '/v1/completions') {
      await this.#generate('prompt', request, response);
    } else if (path === '/v1/chat/completions') {
      await this.#generate('chat', request, response);
    } else {
      this.#json(response, 404, {error: {message: `no ${path} here`}});
    }
  }

  #json(response, status, object) {
    response.writeHead(status, {'content-type': 'application/json'});
    response.end(JSON.stringify(object));
  }

  async #file(path, response) {
    const name = path === '/' ? 'index.html' : path.slice('/console/'.length);
    const type = TYPES[name.split('.').at(-1)];
    let body = null;
    if (/^[a-z_]+\.[a-z]+$/.test(name) && type !== undefined) {
      body = await readFile(new URL(name, CONSOLE_DIR)).catch(() => null);
    }
    if (body === null) {
      this.#json(response, 404, {error: {message: `no ${path} here`}});
      return;
    }
    response.writeHead(200, {
      'content-type': type,
      'content-security-policy':
          "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
      'x-content-type-options': 'nosniff',
    });
    response.end(body);
  }

  async #generate(kind, request, response) {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const body = JSON.parse(Buffer.concat(chunks).toString('utf8'));
    const generation = new Generation(kind, request, body, response);
    const waiting = this.#waiting.shift();
    if (waiting === undefined) {
      this.#generations.push(generation);
    } else {
      waiting(generation);
    }
  }
}

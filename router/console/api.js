// Calls of the router's HTTP API, with the key where it wants one.

const KEY_NAME = 'baton.key';

// An answer that is an error, or no answer (status 0).
export class ApiError extends Error {
  constructor(status, message, {param = null, code = null} = {}) {
    super(message);
    this.name = 'ApiError';
    this.status = status;
    this.param = param;
    this.code = code;
  }
}

// The error of an OpenAI error body, or null when `body` is none.
export function readError(status, body) {
  const error = body?.error;
  if (typeof error === 'string') return new ApiError(status, error);
  if (typeof error?.message !== 'string') return null;
  return new ApiError(status, error.message, {
    param: typeof error.param === 'string' ? error.param : null,
    code: error.code === null || error.code === undefined ?
        null : String(error.code),
  });
}

// Whether `key` can be sent in a header.
export function isKey(key) {
  return /^[\x21-\x7e]+$/.test(key);
}

// The key of this tab. Browsers may forbid storage; then it is kept until the
// page is left.
export class KeyStore {
  #key;

  constructor() {
    try {
      this.#key = sessionStorage.getItem(KEY_NAME);
    } catch {
      this.#key = null;
    }
  }

  get key() {
    return this.#key;
  }

  set key(key) {
    this.#key = key;
    try {
      if (key === null) {
        sessionStorage.removeItem(KEY_NAME);
      } else {
        sessionStorage.setItem(KEY_NAME, key);
      }
    } catch {
      // Kept in memory only.
    }
  }
}

export class Api {
  #keys;
  #onRefused;

  // `onRefused` is called when the router answers 401: it wants a key, or
  // another one.
  constructor(keys, onRefused) {
    this.#keys = keys;
    this.#onRefused = onRefused;
  }

  // The response to a request, whose status is below 400. Throws ApiError, and
  // what fetch throws when `signal` aborts it.
  async request(path, {method = 'GET', json, signal} = {}) {
    const headers = {};
    const key = this.#keys.key;
    if (key !== null) headers.authorization = `Bearer ${key}`;
    if (json !== undefined) headers['content-type'] = 'application/json';
    let response;
    try {
      response = await fetch(path, {
        method,
        headers,
        body: json === undefined ? undefined : JSON.stringify(json),
        signal,
        cache: 'no-store',
        credentials: 'omit',
      });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new ApiError(0, 'The router does not answer.');
    }
    if (response.ok) return response;
    const error = await this.#errorOf(response);
    if (error.status === 401 && this.#keys.key === key) {
      this.#onRefused(key !== null);
    }
    throw error;
  }

  async json(path, {timeoutMs}) {
    return this.#timed(path, timeoutMs, (response) => response.json());
  }

  async text(path, {timeoutMs}) {
    return this.#timed(path, timeoutMs, (response) => response.text());
  }

  // A whole answer, or an ApiError, in time.
  async #timed(path, timeoutMs, read) {
    const abort = new AbortController();
    const timer = setTimeout(() => abort.abort(), timeoutMs);
    try {
      return await read(await this.request(path, {signal: abort.signal}));
    } catch (error) {
      if (error instanceof ApiError) throw error;
      if (error instanceof SyntaxError) {
        throw new ApiError(0, `${path} is not what was expected.`);
      }
      throw new ApiError(0, 'The router does not answer.');
    } finally {
      clearTimeout(timer);
    }
  }

  async #errorOf(response) {
    let body = null;
    try {
      body = await response.json();
    } catch {
      // Not JSON: the status has to do.
    }
    return readError(response.status, body) ??
        new ApiError(response.status,
                     `The router answered with HTTP ${response.status}.`);
  }
}

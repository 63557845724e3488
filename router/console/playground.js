// The playground: a prompt or a conversation, sent to the model, streamed back.

import {AnswerPanel} from './answer.js';
import {ApiError} from './api.js';
import {byId, el, setText} from './dom.js';
import {count, seconds} from './format.js';
import {generate, Meter} from './generation.js';
import {markParameter, offerContext, readParameters} from './parameters.js';
import {RequestPanel} from './request_panel.js';

const KINDS = ['prompt', 'chat'];
// Words for each kind of request.
const WORDS = {
  prompt: {
    label: 'Prompt',
    placeholder: 'Once upon a time',
    empty: 'Write the beginning of a text. The model goes on with it.',
    clear: 'Clear',
  },
  chat: {
    label: 'Message',
    placeholder: 'Say something',
    empty: 'Start a conversation. It is remembered until you clear it.',
    clear: 'New chat',
  },
};

function now() {
  return performance.now() / 1e3;
}

export class Playground {
  #api;
  #models = [];    // that there are
  #model = null;   // the one that is asked
  #kind = 'prompt';
  #messages = [];  // of the conversation, as the API has them
  #abort = null;   // while a request is under way
  #answer = new AnswerPanel();
  #request = new RequestPanel();
  #prompt = byId('prompt');
  #error = byId('error');

  constructor(api) {
    this.#api = api;
    byId('composer').addEventListener('submit', (event) => {
      event.preventDefault();
      this.#send();
    });
    byId('model-choice').addEventListener(
        'change', () => this.#setModel(this.#chosenModel()));
    byId('stop').addEventListener('click', () => this.#abort?.abort());
    byId('clear').addEventListener('click', () => this.#clear());
    byId('playground').addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.#send();
      } else if (event.key === 'Escape') {
        this.#abort?.abort();
      }
    });
    for (const kind of KINDS) {
      const tab = byId(`tab-${kind}`);
      tab.addEventListener('click', () => this.#choose(kind));
      tab.addEventListener('keydown', (event) => {
        if (event.key !== 'ArrowLeft' && event.key !== 'ArrowRight') return;
        const other = KINDS.find((name) => name !== kind);
        if (byId(`tab-${other}`).hidden) return;
        this.#choose(other);
        byId(`tab-${other}`).focus();
      });
    }
    this.#choose('prompt');
  }

  // What may be asked for: {id, hasChat, maxModelLen} each, the first of them
  // unless somebody chooses; none: not known.
  setModels(models) {
    this.#models = models;
    const ids = models.map((model) => model.id);
    const choice = byId('model-choice');
    if (ids.join('\n') !== [...choice.options].map((o) => o.value).join('\n')) {
      const chosen = choice.value;
      choice.replaceChildren(
          ...ids.map((id) => el('option', {value: id, text: id})));
      choice.value = ids.includes(chosen) ? chosen : (ids[0] ?? '');
    }
    byId('model-row').hidden = models.length < 2;
    const model = this.#chosenModel();
    const isOther = model?.id !== this.#model?.id;
    this.#setModel(model);
    if (model?.hasChat === true && isOther && this.#prompt.value === '' &&
        this.#abort === null && byId('answer').childElementCount === 0) {
      this.#choose('chat');
    }
  }

  #chosenModel() {
    const id = byId('model-choice').value;
    return this.#models.find((model) => model.id === id) ?? null;
  }

  #setModel(model) {
    this.#model = model;
    const hasChat = model?.hasChat === true;
    byId('tab-chat').hidden = !hasChat;
    if (!hasChat && this.#kind === 'chat') this.#choose('prompt');
    if (model !== null) offerContext(model.maxModelLen);
    this.#showButtons();
  }

  #choose(kind) {
    if (this.#abort !== null) return;
    const isOther = this.#kind !== kind;
    this.#kind = kind;
    for (const name of KINDS) {
      const tab = byId(`tab-${name}`);
      tab.setAttribute('aria-selected', String(name === kind));
      tab.tabIndex = name === kind ? 0 : -1;
    }
    byId('panel').setAttribute('aria-labelledby', `tab-${kind}`);
    const words = WORDS[kind];
    setText(byId('prompt-label'), words.label);
    this.#prompt.placeholder = words.placeholder;
    setText(byId('answer-empty'), words.empty);
    setText(byId('clear'), words.clear);
    byId('system-row').hidden = kind !== 'chat';
    if (isOther) this.#clear();
  }

  #clear() {
    this.#abort?.abort();
    this.#messages = [];
    this.#answer.clear();
    this.#showError(null);
  }

  #showButtons() {
    const isRunning = this.#abort !== null;
    byId('send').hidden = isRunning;
    byId('send').disabled = this.#model === null;
    byId('stop').hidden = !isRunning;
    for (const kind of KINDS) byId(`tab-${kind}`).disabled = isRunning;
  }

  #showError(error) {
    this.#error.hidden = error === null;
    setText(byId('error-message'), error?.message ?? '');
    const details = [];
    if (error?.param) details.push(`Parameter: ${error.param}`);
    if (error?.code) details.push(`Code: ${error.code}`);
    if (error?.status) details.push(`HTTP ${error.status}`);
    setText(byId('error-details'), details.join(' · '));
    markParameter(error?.param ?? null);
  }

  async #send() {
    if (this.#abort !== null || this.#model === null) return;
    const text = this.#prompt.value;
    if (text === '') {
      this.#prompt.focus();
      return;
    }
    const {values, problem} = readParameters();
    this.#showError(problem);
    if (problem !== null) {
      byId(`parameter-${problem.param}`).focus();
      return;
    }
    const body = {
      model: this.#model.id,
      ...this.#input(text),
      ...values,
      stream: true,
      stream_options: {include_usage: true},
    };
    this.#abort = new AbortController();
    this.#showButtons();
    setText(byId('announcement'), 'Sent');
    await this.#run(text, body, this.#abort);
    this.#abort = null;
    this.#showButtons();
  }

  // What the request says, in the API's words.
  #input(text) {
    if (this.#kind === 'prompt') return {prompt: text};
    const system = byId('system').value.trim();
    return {
      messages: [
        ...(system === '' ? [] : [{role: 'system', content: system}]),
        ...this.#messages,
        {role: 'user', content: text},
      ],
    };
  }

  // One request from beginning to end. Never throws what the world can cause.
  async #run(text, body, abort) {
    const isChat = this.#kind === 'chat';
    if (isChat) {
      this.#answer.beginTurn(text);
      this.#prompt.value = '';
    } else {
      this.#answer.beginPrompt(text);
    }
    const meter = new Meter(now());
    this.#request.begin(meter);
    let written = '';
    let thought = false;
    let end = 'It ended';
    let failure = null;
    try {
      await generate(this.#api, this.#kind, body, {
        signal: abort.signal,
        onHeaders: (id) => this.#request.requestId(id),
        onEvent: (event) => {
          written += event.text;
          thought ||= event.thought !== '';
          end = event.finishReason ?? end;
          this.#take(event, meter);
        },
      });
    } catch (error) {
      if (!(error instanceof ApiError) && !abort.signal.aborted) throw error;
      failure = abort.signal.aborted ? null : error;
      end = abort.signal.aborted ? 'Stopped by you' : 'It failed';
    }
    this.#answer.end();
    this.#request.end(end);
    this.#showError(failure);
    if (isChat) this.#keepTurn(text, written, thought);
    setText(byId('announcement'), failure === null ?
        `Done: ${count(meter.tokens)} tokens, first after ` +
            `${seconds(meter.ttft)}` : '');
  }

  #take(event, meter) {
    if (event.text !== '' || event.thought !== '') meter.text(now());
    if (event.thought !== '') this.#answer.think(event.thought);
    if (event.text !== '') this.#answer.append(event.text);
    if (event.usage !== null) {
      if (Number.isFinite(event.usage.completion_tokens)) {
        meter.usage(event.usage.completion_tokens);
      }
      this.#request.usage(event.usage);
    }
    this.#request.update();
  }

  // The conversation goes on from what was said; a message without an answer,
  // or thoughts, goes back to where it was written.
  #keepTurn(text, written, thought) {
    if (byId('answer').childElementCount === 0) return;  // cleared meanwhile
    if (written === '' && !thought) {
      this.#answer.dropTurn();
      if (this.#prompt.value === '') this.#prompt.value = text;
      return;
    }
    this.#messages.push({role: 'user', content: text},
                        {role: 'assistant', content: written});
  }
}

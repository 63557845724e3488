// The panel where answers appear: text after a prompt, or a conversation.

import {byId, el} from './dom.js';

// Within this many pixels of its end, the panel follows what is written.
const FOLLOW_PIXELS = 48;

export class AnswerPanel {
  #panel = byId('answer');
  #empty = byId('answer-empty');
  #written = null;  // the text node that grows
  #pending = '';
  #thought = null;  // another, of what the model thinks before it answers
  #pendingThought = '';
  #frame = null;

  // Shows a prompt, with room for its continuation, in place of all else.
  beginPrompt(prompt) {
    this.clear();
    const paragraph = el('p', {class: 'text'},
                         el('span', {class: 'given', text: prompt}));
    this.#panel.append(paragraph);
    this.#begin(paragraph);
  }

  // Adds what the user said to the conversation, and room for the answer.
  beginTurn(message) {
    this.#panel.append(this.#turn('user', 'You', message));
    const turn = this.#turn('assistant', 'Model', '');
    this.#panel.append(turn);
    this.#begin(turn.lastChild);
  }

  // Takes the last turn away: the user's message and its answer.
  dropTurn() {
    this.#panel.lastElementChild?.remove();
    this.#panel.lastElementChild?.remove();
    this.#forget();
    this.#empty.hidden = this.#panel.childElementCount > 0;
  }

  // New text; it is shown with the next frame.
  append(text) {
    if (this.#written === null) return;  // cleared meanwhile
    this.#pending += text;
    this.#frame ??= requestAnimationFrame(() => this.#flush());
  }

  // The same, of what the model thinks before it answers.
  think(text) {
    if (this.#written === null) return;
    this.#thought ??= this.#beginThought();
    this.#pendingThought += text;
    this.#frame ??= requestAnimationFrame(() => this.#flush());
  }

  // The answer is whole, or will not go on.
  end() {
    this.#flush();
    this.#panel.querySelector('.writing')?.classList.remove('writing');
    this.#panel.setAttribute('aria-busy', 'false');
  }

  clear() {
    this.#panel.replaceChildren();
    this.#empty.hidden = false;
    this.#forget();
  }

  #forget() {
    this.#written = null;
    this.#pending = '';
    this.#thought = null;
    this.#pendingThought = '';
  }

  #turn(role, label, text) {
    return el('article', {class: `turn ${role}`},
              el('h3', {text: label}),
              el('p', {class: 'text'}, el('span', {text})));
  }

  // In front of the paragraph of the answer.
  #beginThought() {
    const node = document.createTextNode('');
    this.#written.parentElement.parentElement.before(
        el('details', {class: 'thought', open: ''},
           el('summary', {text: 'Thoughts'}),
           el('p', {class: 'text'}, node)));
    return node;
  }

  #begin(paragraph) {
    this.#thought = null;
    this.#written = document.createTextNode('');
    paragraph.append(el('span', {class: 'written writing'}, this.#written));
    this.#empty.hidden = true;
    // Read out when it is whole, not token by token.
    this.#panel.setAttribute('aria-busy', 'true');
    this.#panel.scrollTop = this.#panel.scrollHeight;
  }

  #flush() {
    if (this.#frame !== null) cancelAnimationFrame(this.#frame);
    this.#frame = null;
    if (this.#written === null) return;
    if (this.#pending === '' && this.#pendingThought === '') return;
    const {scrollTop, scrollHeight, clientHeight} = this.#panel;
    const follows = scrollHeight - scrollTop - clientHeight < FOLLOW_PIXELS;
    this.#thought?.appendData(this.#pendingThought);
    this.#written.appendData(this.#pending);
    this.#pending = this.#pendingThought = '';
    if (follows) this.#panel.scrollTop = this.#panel.scrollHeight;
  }
}

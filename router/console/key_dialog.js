// Asks for an API key when the router wants one.

import {isKey} from './api.js';
import {byId, setText} from './dom.js';

export class KeyDialog {
  #keys;
  #dialog = byId('key-dialog');
  #input = byId('key-input');
  #error = byId('key-error');
  #button = byId('key-button');
  #onChange;

  // `onChange` is called when there is another key, or none any more.
  constructor(keys, onChange) {
    this.#keys = keys;
    this.#onChange = onChange;
    this.#button.hidden = keys.key === null;
    this.#button.addEventListener('click', () => this.open(''));
    byId('key-form').addEventListener('submit', (event) => {
      event.preventDefault();
      this.#accept(this.#input.value.trim());
    });
    byId('key-cancel').addEventListener('click', () => this.#dialog.close());
    byId('key-forget').addEventListener('click', () => {
      this.#keys.key = null;
      this.#dialog.close();
      this.#onChange();
    });
  }

  get isOpen() {
    return this.#dialog.open;
  }

  open(message) {
    this.#button.hidden = false;
    this.#input.value = '';
    this.#say(message);
    byId('key-forget').hidden = this.#keys.key === null;
    if (!this.#dialog.open) this.#dialog.showModal();
    this.#input.focus();
  }

  #accept(key) {
    if (!isKey(key)) {
      this.#say('A key is made of letters, digits and signs, without spaces.');
      return;
    }
    this.#keys.key = key;
    this.#dialog.close();
    this.#onChange();
  }

  #say(message) {
    setText(this.#error, message);
    this.#error.hidden = message === '';
    this.#input.setAttribute('aria-invalid', String(message !== ''));
  }
}

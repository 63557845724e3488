// One browser per file of tests; a made-up router and a page of its own per
// test.

import assert from 'node:assert/strict';
import {after, afterEach, before, beforeEach} from 'node:test';

import {ConsolePage, launchBrowser} from './console_page.mjs';
import {FakeRouter} from './fake_router.mjs';

// Of every test.
export const TEST = {timeout: 120000};

export class Fixture {
  #browser = null;
  router = null;
  page = null;

  constructor() {
    before(async () => {
      this.#browser = await launchBrowser();
    });
    after(async () => {
      await this.#browser?.close();
    });
    beforeEach(async () => {
      this.router = await FakeRouter.start();
      this.page = null;
    });
    afterEach(async () => {
      await this.page?.close();
      await this.router.stop();
    });
  }

  // `options` as of ConsolePage.open(); in place of the page before, if any.
  async open(options) {
    await this.page?.close();
    this.page = await ConsolePage.open(this.#browser, this.router.url, options);
    return this.page;
  }

  // Sends a prompt, and returns what the router got of it.
  async sendPrompt(text) {
    await this.page.ready();
    await this.page.chooseTab('prompt');
    await this.page.sendByKeyboard(text);
    return this.router.nextGeneration();
  }

  // Nothing went wrong that the test did not cause: `expected` matches the
  // browser's own words for requests that failed.
  assertClean(expected = null) {
    const errors = this.page.errors.filter(
        (error) => expected === null || !expected.test(error));
    assert.deepEqual(errors, []);
    assert.deepEqual(this.page.strangers, []);
    assert.deepEqual(this.page.dialogs, []);
  }
}

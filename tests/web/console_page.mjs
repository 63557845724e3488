// The console in a headless Chromium: what a person does and sees there.
//
// BATON_PUPPETEER names a module that exports puppeteer (tests/web/run makes
// it); BATON_CHROMIUM the browser.

import {pathToFileURL} from 'node:url';

const TIMEOUT_MS = 30000;

export async function launchBrowser() {
  const {default: puppeteer} =
      await import(pathToFileURL(process.env.BATON_PUPPETEER).href);
  return puppeteer.launch({
    executablePath: process.env.BATON_CHROMIUM,
    headless: true,
    args: [
      // Chromium refuses to run as root with its sandbox.
      ...(process.getuid() === 0 ? ['--no-sandbox'] : []),
      '--disable-dev-shm-usage',
      '--disable-gpu',
      '--disable-extensions',
      '--disable-background-networking',
      '--no-first-run',
    ],
  });
}

export class ConsolePage {
  #context;

  constructor(context, page, url) {
    this.#context = context;
    this.page = page;
    this.url = url;
    this.errors = [];     // of scripts and of the console
    this.strangers = [];  // requests to other origins
    this.dialogs = [];    // alert() and the like
  }

  // In a context of its own, without anybody's storage.
  static async open(browser, url, {
    view = '', dark = false, width = 1280, height = 900, scale = 1} = {}) {
    const context = await browser.createBrowserContext();
    const page = await context.newPage();
    const self = new ConsolePage(context, page, url);
    await page.setViewport({width, height, deviceScaleFactor: scale});
    await page.emulateMediaFeatures(
        [{name: 'prefers-color-scheme', value: dark ? 'dark' : 'light'}]);
    page.on('pageerror', (error) => self.errors.push(String(error)));
    page.on('console', (message) => {
      if (message.type() === 'error') self.errors.push(message.text());
    });
    page.on('request', (request) => {
      if (new URL(request.url()).origin !== new URL(url).origin) {
        self.strangers.push(request.url());
      }
    });
    page.on('dialog', (dialog) => {
      self.dialogs.push(dialog.message());
      dialog.dismiss();
    });
    await page.goto(`${url}/${view === '' ? '' : `#${view}`}`,
                    {waitUntil: 'load', timeout: TIMEOUT_MS});
    return self;
  }

  async close() {
    await this.#context.close();
  }

  async text(selector) {
    return this.page.$eval(selector, (node) => node.textContent);
  }

  async isShown(selector) {
    return this.page.$eval(selector, (node) => node.checkVisibility());
  }

  async attribute(selector, name) {
    return this.page.$eval(
        selector, (node, key) => node.getAttribute(key), name);
  }

  async count(selector) {
    return (await this.page.$$(selector)).length;
  }

  // Waits until the text of an element is, or has, what is given.
  async waitForText(selector, wanted) {
    const isRegExp = wanted instanceof RegExp;
    try {
      await this.page.waitForFunction((at, pattern, exact) => {
        const text = document.querySelector(at)?.textContent ?? '';
        return exact ? text === pattern : new RegExp(pattern).test(text);
      }, {timeout: TIMEOUT_MS}, selector, isRegExp ? wanted.source : wanted,
                                      !isRegExp);
    } catch (error) {
      const text = await this.text(selector).catch(() => 'nothing');
      throw new Error(`${selector} has "${text}", not ${wanted}`,
                      {cause: error});
    }
  }

  async waitFor(condition, ...args) {
    await this.page.waitForFunction(condition, {timeout: TIMEOUT_MS}, ...args);
  }

  // Puts text into a field, in place of what was there.
  async fill(selector, text) {
    await this.page.$eval(selector, (node) => {
      node.focus();
      node.select();
    });
    await this.page.keyboard.press('Backspace');
    await this.page.keyboard.sendCharacter(text);
  }

  async click(selector) {
    await this.page.click(selector);
  }

  // Ready to send: the model is known.
  async ready() {
    await this.waitFor(() => !document.getElementById('send').disabled);
  }

  async chooseTab(kind) {
    await this.click(`#tab-${kind}`);
  }

  async sendByKeyboard(text) {
    await this.fill('#prompt', text);
    await this.page.keyboard.down('Control');
    await this.page.keyboard.press('Enter');
    await this.page.keyboard.up('Control');
  }
}

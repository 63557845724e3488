// The console against a real router, whose address is BATON_CONSOLE_URL. Works
// with any model; BATON_CONSOLE_KEY is its key, when it wants one.

import assert from 'node:assert/strict';
import test, {after, before} from 'node:test';

import {ConsolePage, launchBrowser} from './console_page.mjs';

const url = process.env.BATON_CONSOLE_URL?.replace(/\/$/, '');
const key = process.env.BATON_CONSOLE_KEY;
const options = {skip: url === undefined ? 'no BATON_CONSOLE_URL' : false,
                 timeout: 120000};

let browser = null;
before(async () => {
  if (url !== undefined) browser = await launchBrowser();
});
after(async () => {
  await browser?.close();
});

async function open(view) {
  const console_page = await ConsolePage.open(browser, url, {view});
  if (key !== undefined) {
    await console_page.waitFor(
        () => document.getElementById('key-dialog').open);
    await console_page.fill('#key-input', key);
    await console_page.page.keyboard.press('Enter');
    console_page.errors.length = 0;  // the refusals
  }
  return console_page;
}

function assertClean(console_page) {
  assert.deepEqual(console_page.errors, []);
  assert.deepEqual(console_page.strangers, []);
}

test('a prompt streams back with its usage', options, async () => {
  const page = await open('playground');
  await page.ready();
  await page.chooseTab('prompt');
  await page.fill('#parameter-max_tokens', '24');
  await page.sendByKeyboard('Once upon a time');
  await page.waitForText('#request-end', /The model ended it|limit of tokens/);
  assert.ok((await page.text('.written')).length > 0);
  assert.match(await page.text('#request-ttft'), /^[0-9.]+ (ms|s)$/);
  assert.match(await page.text('#request-tokens'), /^[0-9]+$/);
  assert.match(await page.text('#request-prompt-tokens'), /^[0-9]+/);
  assert.notEqual(await page.text('#request-id'), '');
  assertClean(page);
  await page.close();
});

test('a wrong parameter is said to be wrong', options, async () => {
  const page = await open('playground');
  await page.ready();
  await page.chooseTab('prompt');
  await page.fill('#parameter-temperature', '-1');
  await page.sendByKeyboard('x');
  await page.waitForText('#error-details', /temperature.*400/);
  assert.equal(
      await page.attribute('#parameter-temperature', 'aria-invalid'), 'true');
  assert.deepEqual(page.strangers, []);
  await page.close();
});

test('the cluster is there and its lines are drawn', options, async () => {
  const page = await open('cluster');
  await page.waitForText('#state-label', 'Healthy');
  assert.ok(await page.count('#prefill-workers .worker') > 0);
  assert.ok(await page.count('#decode-workers .worker') > 0);
  assert.ok(await page.count('#link-rows tr') > 0);
  await page.waitFor(
      () => document.querySelector('[data-series=tokensPerSecond]')
                .getAttribute('data-points') >= 2);
  assertClean(page);
  await page.close();
});

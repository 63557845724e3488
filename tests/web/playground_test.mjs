// The playground, and the page as a whole, in headless Chromium.

import assert from 'node:assert/strict';
import test from 'node:test';

import {link, worker} from './fake_router.mjs';
import {Fixture, TEST} from './fixture.mjs';

const HACK = '<img src=x onerror="window.hacked=1"><script>hacked=1</script>';

const at = new Fixture();

test('streams text as it comes, and says how it went', TEST, async () => {
  const page = await at.open();
  await page.ready();
  assert.equal(await page.text('#model'), 'stories');
  await page.chooseTab('prompt');
  await page.fill('#parameter-max_tokens', '8');
  await page.fill('#parameter-temperature', '0.5');
  await page.fill('#parameter-seed', '7');
  const generation = await at.sendPrompt('Once');
  assert.deepEqual(generation.body, {
    model: 'stories',
    prompt: 'Once',
    max_tokens: 8,
    temperature: 0.5,
    seed: 7,
    stream: true,
    stream_options: {include_usage: true},
  });
  await page.waitForText('#request-end', 'Waiting for the first token');
  assert.equal(await page.text('.given'), 'Once');
  assert.equal(await page.isShown('#send'), false);

  generation.start('req-42');
  generation.text(' upon');
  await page.waitForText('.written', ' upon');
  await page.waitForText('#request-end', 'Streaming');
  assert.match(await page.text('#request-ttft'), /^[0-9.]+ (ms|s)$/);
  assert.equal(await page.attribute('#answer', 'aria-busy'), 'true');
  // A character, cut in the middle of its bytes.
  const bytes = Buffer.from(
      'data: {"choices":[{"index":0,"text":" a été 👩‍🚀"}]}\n\n');
  generation.raw(bytes.subarray(0, 42));
  generation.raw(bytes.subarray(42));
  await page.waitForText('.written', ' upon a été 👩‍🚀');
  assert.match(await page.text('#request-rate'), /^≈ [0-9.,]+$/);

  generation.finish('length', {
    prompt_tokens: 1234,
    completion_tokens: 8,
    total_tokens: 1242,
    prompt_tokens_details: {cached_tokens: 1200},
  });
  await page.waitForText('#request-end', 'Reached its limit of tokens');
  assert.equal(await page.text('#request-tokens'), '8');
  assert.equal(await page.text('#request-prompt-tokens'),
               '1,234 (1,200 cached)');
  assert.match(await page.text('#request-rate'), /^[0-9.,]+$/);
  assert.equal(await page.text('#request-id'), 'req-42');
  assert.equal(await page.attribute('#gaps-line', 'data-points'), '1');
  assert.equal(await page.attribute('#answer', 'aria-busy'), 'false');
  assert.match(await page.text('#announcement'), /^Done: 8 tokens/);
  assert.equal(await page.isShown('#send'), true);
  at.assertClean();
});

test('stop ends the request at the router', TEST, async () => {
  const page = await at.open();
  let generation = await at.sendPrompt('Go on');
  generation.start();
  generation.text(' for ever');
  await page.waitForText('.written', ' for ever');
  await page.click('#stop');
  await generation.closed;
  assert.equal(generation.isWhole, false);
  await page.waitForText('#request-end', 'Stopped by you');
  assert.equal(await page.text('.written'), ' for ever');
  assert.equal(await page.isShown('#error'), false);

  // Before the first token, and from the keyboard.
  generation = await at.sendPrompt('Again');
  await page.page.keyboard.press('Escape');
  await generation.closed;
  await page.waitForText('#request-end', 'Stopped by you');
  assert.equal(await page.isShown('#send'), true);
  at.assertClean();
});

test('an error names the parameter', TEST, async () => {
  const page = await at.open();
  await page.fill('#parameter-temperature', '101');
  const generation = await at.sendPrompt('x');
  generation.fail(400, {
    message: 'temperature is 101, it must be in [0, 100]',
    type: 'invalid_request_error', param: 'temperature', code: null,
  });
  await page.waitForText('#error-message',
                         'temperature is 101, it must be in [0, 100]');
  assert.equal(await page.text('#error-details'),
               'Parameter: temperature · HTTP 400');
  assert.equal(
      await page.attribute('#parameter-temperature', 'aria-invalid'), 'true');
  assert.equal(await page.attribute('#error', 'role'), 'alert');
  assert.equal(await page.text('#request-end'), 'It failed');

  // What cannot be a number is not even sent; a good request clears the error.
  await page.fill('#parameter-temperature', 'hot');
  await page.sendByKeyboard('x');
  await page.waitForText('#error-message', 'temperature is not a number.');
  await page.fill('#parameter-temperature', '');
  const next = await at.sendPrompt('y');
  assert.equal('temperature' in next.body, false);
  await page.waitFor(() => document.getElementById('error').hidden);
  next.destroy();
  assert.equal(
      await page.attribute('#parameter-temperature', 'aria-invalid'), 'false');
  at.assertClean(/status of 400|ERR_|empty response/i);
});

test('an answer that breaks off keeps its text and says so', TEST, async () => {
  const page = await at.open();
  const cases = [
    [(g) => g.event({error: {message: 'the worker is lost', code: 503}}),
     'the worker is lost'],
    [(g) => g.end(), 'The answer ended before it was whole.'],
    [(g) => g.destroy(), 'The connection broke before the answer was whole.'],
  ];
  for (const [breakOff, message] of cases) {
    const generation = await at.sendPrompt('Tell');
    generation.start();
    generation.text(' me');
    await page.waitForText('.written', ' me');
    breakOff(generation);
    await page.waitForText('#error-message', message);
    assert.equal(await page.text('.written'), ' me');
    assert.equal(await page.text('#request-end'), 'It failed');
    generation.destroy();
  }
  at.assertClean(/ERR_/);
});

test('markup in what comes from outside stays text', TEST, async () => {
  at.router.model.id = HACK;
  at.router.cluster.router_name = HACK;
  at.router.cluster.workers = [
    worker('prefill', 0, {name: HACK, address: HACK}),
    worker('decode', 0, {name: `${HACK}2`, usable: false, why_not: HACK}),
  ];
  at.router.cluster.links = [link(HACK, `${HACK}2`, {
    usable: false, why_not: HACK, transport: HACK,
  })];
  at.router.metrics = () =>
      `${HACK}\nbaton_num_requests_running{x="${HACK}"} 1`;
  const page = await at.open();
  const generation = await at.sendPrompt(HACK);
  generation.start(encodeURIComponent(HACK));
  generation.text(HACK);
  generation.event({error: {message: HACK, param: HACK, code: HACK}});
  await page.waitForText('#error-message', HACK);
  assert.equal(await page.text('.written'), HACK);
  assert.equal(await page.text('.given'), HACK);
  assert.equal(await page.text('#model'), HACK);
  assert.equal(await page.text('#prefill-workers h4'), HACK);
  assert.equal(await page.text('#decode-workers .why-not'), HACK);
  assert.match(await page.text('#link-rows'), /<img/);
  assert.equal(await page.count('img'), 0);
  assert.equal(await page.count('script'), 1);
  assert.equal(await page.page.evaluate(() => window.hacked), undefined);
  at.assertClean();
});

test('a conversation is remembered until it is cleared', TEST, async () => {
  const page = await at.open();
  await page.ready();
  // A model with a template is first of all there to chat with.
  assert.equal(await page.attribute('#tab-chat', 'aria-selected'), 'true');
  await page.fill('#system', 'Be brief.');
  await page.sendByKeyboard('Hello');
  const first = await at.router.nextGeneration();
  assert.equal(first.kind, 'chat');
  assert.deepEqual(first.body.messages, [
    {role: 'system', content: 'Be brief.'},
    {role: 'user', content: 'Hello'},
  ]);
  first.start();
  first.text('Hi');
  first.finish('stop', {prompt_tokens: 5, completion_tokens: 1});
  await page.waitForText('#request-end', 'The model ended it');
  assert.equal(await page.page.$eval('#prompt', (node) => node.value), '');

  // A message without an answer is not part of it, and not lost.
  await page.sendByKeyboard('And?');
  const failed = await at.router.nextGeneration();
  failed.fail(429, {message: 'too many requests', param: null, code: null});
  await page.waitForText('#error-message', 'too many requests');
  assert.equal(await page.page.$eval('#prompt', (node) => node.value), 'And?');
  assert.equal(await page.count('.turn'), 2);

  await page.sendByKeyboard('More');
  const second = await at.router.nextGeneration();
  assert.deepEqual(second.body.messages.slice(1), [
    {role: 'user', content: 'Hello'},
    {role: 'assistant', content: 'Hi'},
    {role: 'user', content: 'More'},
  ]);
  second.start();
  second.text('No');
  second.finish('stop', {prompt_tokens: 9, completion_tokens: 1});
  await page.waitFor(() => document.querySelectorAll('.turn').length === 4);
  await page.waitFor(() => !document.getElementById('send').hidden);

  await page.click('#clear');
  assert.equal(await page.count('.turn'), 0);
  await page.sendByKeyboard('Anew');
  const third = await at.router.nextGeneration();
  assert.equal(third.body.messages.length, 2);
  third.destroy();
  at.assertClean(/status of 429|ERR_/);
});

test('what the model thinks stands before its answer', TEST, async () => {
  const page = await at.open();
  await page.ready();
  await page.sendByKeyboard('2 + 2?');
  const first = await at.router.nextGeneration();
  first.start();
  first.thought('Two');
  await page.waitForText('.thought .text', 'Two');
  first.thought(' and two.');
  first.text('4');
  first.finish('stop', {prompt_tokens: 5, completion_tokens: 3});
  await page.waitForText('#request-end', 'The model ended it');
  assert.equal(await page.text('.thought .text'), 'Two and two.');
  assert.equal(await page.text('.turn.assistant > .text'), '4');

  // It is not told again; and the next answer has its own, if any.
  await page.sendByKeyboard('3 + 3?');
  const second = await at.router.nextGeneration();
  assert.deepEqual(second.body.messages, [
    {role: 'user', content: '2 + 2?'},
    {role: 'assistant', content: '4'},
    {role: 'user', content: '3 + 3?'},
  ]);
  second.start();
  second.thought('Six');
  second.finish('length', {prompt_tokens: 9, completion_tokens: 1});
  await page.waitFor(() => document.querySelectorAll('.thought').length === 2);
  await page.waitFor(() => !document.getElementById('send').hidden);
  // Thoughts without an answer stay where they are.
  assert.equal(await page.count('.turn'), 4);
  at.assertClean();
});

test('chat is offered only where there is a template', TEST, async () => {
  at.router.model.chat = false;
  const page = await at.open();
  await page.ready();
  assert.equal(await page.isShown('#tab-chat'), false);
  assert.equal(await page.attribute('#tab-prompt', 'aria-selected'), 'true');
  assert.equal(await page.isShown('#system-row'), false);
  await page.page.focus('#tab-prompt');
  await page.page.keyboard.press('ArrowLeft');
  assert.equal(await page.attribute('#tab-prompt', 'aria-selected'), 'true');
  at.assertClean();
});

test('an adapter can be chosen, as long as it is there', TEST, async () => {
  const have = (names) => {
    at.router.adapters = names;
    at.router.cluster.workers = [
      worker('prefill', 0), worker('decode', 0, {adapters: names})];
  };
  const page = await at.open();
  await page.ready();
  assert.equal(await page.isShown('#model-row'), false);
  await page.chooseTab('prompt');

  have(['sql', '<b>chat']);
  await page.waitForText('#model-choice', 'storiessql<b>chat');
  assert.equal(await page.isShown('#model-row'), true);
  await page.page.select('#model-choice', 'sql');
  let generation = await at.sendPrompt('Once');
  assert.equal(generation.body.model, 'sql');
  generation.start();
  generation.finish('stop', {prompt_tokens: 1, completion_tokens: 0});
  await page.waitForText('#request-end', /./);

  // Another one goes: the choice stays; and what was typed stays a prompt.
  have(['sql']);
  await page.waitForText('#model-choice', 'storiessql');
  assert.equal(await page.page.$eval('#model-choice', (node) => node.value),
               'sql');
  assert.equal(await page.attribute('#tab-prompt', 'aria-selected'), 'true');
  have([]);
  await page.waitForText('#model-choice', 'stories');
  assert.equal(await page.isShown('#model-row'), false);
  generation = await at.sendPrompt('Once more');
  assert.equal(generation.body.model, 'stories');
  generation.destroy();
  at.assertClean();
});

test('asks for a key when the router wants one', TEST, async () => {
  at.router.key = 'sk-right';
  const page = await at.open();
  await page.waitFor(() => document.getElementById('key-dialog').open);
  await page.waitForText('#state-label', 'Key needed');
  await page.fill('#key-input', 'not a key');
  await page.page.keyboard.press('Enter');
  await page.waitForText('#key-error', /without spaces/);
  await page.fill('#key-input', 'sk-wrong');
  await page.page.keyboard.press('Enter');
  await page.waitForText('#key-error', 'The router did not accept this key.');
  await page.fill('#key-input', 'sk-right');
  await page.page.keyboard.press('Enter');
  await page.waitForText('#state-label', 'Healthy');
  assert.equal(await page.page.evaluate(
                   () => document.getElementById('key-dialog').open), false);
  const generation = await at.sendPrompt('x');
  assert.equal(generation.headers.authorization, 'Bearer sk-right');
  generation.destroy();

  // The key is this tab's: it outlives a reload, and is nowhere but there.
  await page.page.reload();
  await page.waitForText('#state-label', 'Healthy');
  assert.equal(await page.page.evaluate(() => localStorage.length), 0);
  assert.deepEqual(await page.page.cookies(), []);
  assert.equal(page.page.url().includes('sk-'), false);

  // Nobody is asked again and again.
  await page.click('#key-button');
  await page.click('#key-forget');
  await page.waitFor(() => document.getElementById('key-dialog').open);
  await page.click('#key-cancel');
  const asked = at.router.requests.length;
  await page.waitForText('#state-label', 'Key needed');
  assert.equal(await page.isShown('#key-button'), true);
  assert.ok(at.router.requests.length <= asked + 2);
  at.assertClean(/status of 401|ERR_/);
});

test('is dark where people like it dark', TEST, async () => {
  const brightness = () => page.page.evaluate(() => {
    const colour = (node) => getComputedStyle(node).backgroundColor;
    const numbers = colour(document.documentElement).match(/\d+/g);
    return numbers.slice(0, 3).map(Number).reduce((a, b) => a + b) / 3;
  });
  const page = await at.open({dark: true});
  assert.ok(await brightness() < 60);
  await page.page.emulateMediaFeatures(
      [{name: 'prefers-color-scheme', value: 'light'}]);
  assert.ok(await brightness() > 200);
  at.assertClean();
});

test('fits a phone', TEST, async () => {
  at.router.cluster.workers.push(
      worker('decode', 1, {name: 'decode-with-quite-a-long-name.example'}));
  for (const view of ['playground', 'cluster']) {
    const page = await at.open({view, width: 360, height: 740});
    await page.waitForText('#state-label', 'Healthy');
    const [width, wanted] = await page.page.evaluate(
        () => [document.documentElement.clientWidth,
               document.documentElement.scrollWidth]);
    assert.ok(wanted <= width, `${view} is ${wanted} wide on ${width}`);
    at.assertClean();
  }
});

test('is worked by keyboard alone', TEST, async () => {
  const page = await at.open();
  await page.ready();
  const seen = [];
  for (let i = 0; i < 16; i += 1) {
    await page.page.keyboard.press('Tab');
    const id = await page.page.evaluate(() => {
      const node = document.activeElement;
      return node.id || node.className;
    });
    if (seen.includes(id)) break;
    seen.push(id);
  }
  for (const id of ['skip', 'to-playground', 'to-cluster', 'tab-chat', 'clear',
                    'answer', 'system', 'prompt', 'send',
                    'parameter-max_tokens', 'parameter-seed']) {
    assert.ok(seen.includes(id), `Tab does not reach ${id}: ${seen}`);
  }
  // Every field has a name, and every id that is referred to is there.
  const nameless = await page.page.evaluate(() => {
    const fields = [...document.querySelectorAll('input, textarea')];
    const without = fields.filter((node) => node.labels.length === 0);
    const references = [...document.querySelectorAll(
        '[aria-labelledby], [aria-controls]')].flatMap((node) => [
      node.getAttribute('aria-labelledby'),
      node.getAttribute('aria-controls'),
    ]).filter((id) => id !== null && document.getElementById(id) === null);
    return [...without.map((node) => node.id), ...references];
  });
  assert.deepEqual(nameless, []);
  at.assertClean();
});

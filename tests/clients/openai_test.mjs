// The `openai` package, as its users call it.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import OpenAI from "openai";

import { eventually, getJson, startCluster } from "./cluster.mjs";

let cluster;
let client;

before(async () => {
  cluster = await startCluster();
  client = new OpenAI({
    baseURL: `${cluster.http}/v1`, apiKey: "none", maxRetries: 0 });
});
after(async () => cluster?.stop());

const story = { model: "stories", prompt: "Once upon a time", temperature: 0,
                max_tokens: 24 };

test("lists the model", async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.deepEqual(names, ["stories"]);
  assert.equal((await client.models.retrieve("stories")).owned_by, "baton");
});

test("completes a text", async () => {
  const answer = await client.completions.create(story);
  assert.equal(answer.object, "text_completion");
  assert.equal(answer.choices.length, 1);
  assert.equal(answer.choices[0].finish_reason, "length");
  assert.ok(answer.choices[0].text.length > 20, answer.choices[0].text);
  assert.equal(answer.usage.completion_tokens, 24);
  assert.equal(answer.usage.total_tokens,
               answer.usage.prompt_tokens + 24);
});

test("streams the same text", async () => {
  const whole = await client.completions.create(story);
  const stream = await client.completions.create(
    { ...story, stream: true, stream_options: { include_usage: true } });
  let text = "";
  let chunks = 0;
  let usage = null;
  for await (const chunk of stream) {
    chunks += 1;
    text += chunk.choices[0]?.text ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].text);
  assert.ok(chunks > 2, `only ${chunks} chunks`);
  assert.equal(usage.completion_tokens, 24);
});

test("chats", async () => {
  const answer = await client.chat.completions.create({
    model: "stories", temperature: 0, max_completion_tokens: 16,
    messages: [
      { role: "system", content: "Once upon a time" },
      { role: "user",
        content: [{ type: "text", text: "there was a dog" }] }] });
  assert.equal(answer.object, "chat.completion");
  assert.equal(answer.choices[0].message.role, "assistant");
  assert.ok(answer.choices[0].message.content.length > 0);
  assert.ok(answer.id.startsWith("chatcmpl-"));
});

test("streams a chat through the package's own helper", async () => {
  const body = { model: "stories", temperature: 0, max_tokens: 16,
                 messages: [{ role: "user", content: "Once upon a time" }] };
  const whole = await client.chat.completions.create(body);
  const runner = client.chat.completions.stream(body);
  let text = "";
  runner.on("content", (delta) => { text += delta; });
  const final = await runner.finalChatCompletion();
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(final.choices[0].message.content, text);
  assert.equal(final.choices[0].finish_reason,
               whole.choices[0].finish_reason);
});

test("gives log-probabilities", async () => {
  const answer = await client.chat.completions.create({
    model: "stories", temperature: 0, max_tokens: 5, logprobs: true,
    top_logprobs: 3,
    messages: [{ role: "user", content: "Once upon a time" }] });
  const { content } = answer.choices[0].logprobs;
  assert.equal(content.length, answer.usage.completion_tokens);
  for (const token of content) {
    assert.equal(token.top_logprobs.length, 3);
    // Greedy: the likeliest one was taken.
    assert.equal(token.top_logprobs[0].token, token.token);
    assert.ok(token.logprob <= 0);
    assert.equal(Buffer.from(token.bytes).toString(), token.token);
  }
});

test("stops at a stop string, and answers n times", async () => {
  const answer = await client.completions.create(
    { ...story, max_tokens: 60, n: 6, temperature: 1.5, seed: 5,
      stop: ["."] });
  assert.equal(answer.choices.length, 6);
  for (const choice of answer.choices) {
    assert.ok(!choice.text.includes("."), choice.text);
  }
  const texts = new Set(answer.choices.map((choice) => choice.text));
  assert.ok(texts.size > 1, "all answers are the same");
});

test("answers with JSON that a schema allows", async () => {
  const schema = {
    type: "object",
    properties: {
      name: { type: "string", maxLength: 20 },
      age: { type: "integer", minimum: 1, maximum: 99 },
      pet: { enum: ["cat", "dog"] },
    },
    required: ["name", "age", "pet"],
    additionalProperties: false,
  };
  for (let seed = 0; seed < 4; ++seed) {
    const answer = await client.chat.completions.create({
      model: "stories", temperature: 1, seed, max_tokens: 200,
      messages: [{ role: "user", content: "Once upon a time" }],
      response_format: {
        type: "json_schema", json_schema: { name: "child", schema } },
    });
    assert.equal(answer.choices[0].finish_reason, "stop");
    const child = JSON.parse(answer.choices[0].message.content);
    assert.deepEqual(Object.keys(child), ["name", "age", "pet"]);
    assert.ok(child.age >= 1 && child.age <= 99, child.age);
    assert.ok(["cat", "dog"].includes(child.pet), child.pet);
  }
});

test("gives responses", async () => {
  const asked = { model: "stories", input: "Once upon a time", temperature: 0,
                  max_output_tokens: 16, instructions: "Tell a story." };
  const whole = await client.responses.create(asked);
  assert.equal(whole.object, "response");
  assert.equal(whole.status, "incomplete");
  assert.equal(whole.incomplete_details.reason, "max_output_tokens");
  assert.ok(whole.output_text.length > 10, whole.output_text);
  assert.equal(whole.usage.output_tokens, 16);

  const stream = client.responses.stream(asked);
  let text = "";
  stream.on("response.output_text.delta", (event) => { text += event.delta; });
  const final = await stream.finalResponse();
  assert.equal(text, whole.output_text);
  assert.equal(final.output[0].content[0].text, text);

  // All that was said is sent again: nothing is stored.
  const next = await client.responses.create({
    ...asked, input: [{ role: "user", content: asked.input }, ...whole.output,
                      { role: "user", content: "And then?" }] });
  assert.ok(next.usage.input_tokens > whole.usage.input_tokens + 16);
  await assert.rejects(
    client.responses.create({ ...asked, previous_response_id: whole.id }),
    (error) => error instanceof OpenAI.BadRequestError
      && error.param === "previous_response_id");
});

test("gives responses that a schema allows", async () => {
  const schema = {
    type: "object",
    properties: { name: { type: "string", maxLength: 20 },
                  pet: { enum: ["cat", "dog"] } },
    required: ["name", "pet"], additionalProperties: false,
  };
  const answer = await client.responses.parse({
    model: "stories", temperature: 1, input: "Once upon a time",
    max_output_tokens: 200,
    text: { format: { type: "json_schema", name: "pet", strict: true,
                      schema } } });
  assert.equal(answer.status, "completed");
  assert.deepEqual(Object.keys(JSON.parse(answer.output_text)),
                   ["name", "pet"]);
});

test("wrong parameters are errors of the right class", async () => {
  await assert.rejects(
    client.completions.create({ ...story, temperature: -1 }),
    (error) => error instanceof OpenAI.BadRequestError &&
      error.status === 400 && error.param === "temperature");
  await assert.rejects(
    client.completions.create({ ...story, model: "gpt-9" }),
    (error) => error instanceof OpenAI.NotFoundError &&
      error.code === "model_not_found");
  await assert.rejects(
    client.chat.completions.create({ model: "stories", messages: [] }),
    (error) => error instanceof OpenAI.BadRequestError &&
      error.param === "messages");
  await assert.rejects(
    client.chat.completions.create({
      model: "stories", messages: [{ role: "user", content: "Hi" }],
      response_format: { type: "json_schema", json_schema: {
        name: "x", schema: { not: {} } } } }),
    (error) => error instanceof OpenAI.BadRequestError &&
      error.param === "json_schema" && /"not" at #/.test(error.message));
  await assert.rejects(
    client.completions.create({ ...story, prompt: "word ".repeat(2000) }),
    (error) => error instanceof OpenAI.BadRequestError &&
      error.param === "prompt" && /the context is/.test(error.message));
});

test("an aborted stream ends the work", async () => {
  const stream = await client.completions.create(
    { ...story, max_tokens: 480, stream: true, ignore_eos: true });
  for await (const chunk of stream) {
    assert.ok(chunk.id);
    break;  // the package closes the connection
  }
  await eventually(async () => {
    const state = await getJson(`${cluster.http}/api/cluster`);
    return state.running_requests === 0 &&
      state.workers.every((worker) => worker.running === 0);
  }, "no request runs");
});

test("an abort signal does, too", async () => {
  const controller = new AbortController();
  const pending = client.completions.create(
    { ...story, max_tokens: 480, ignore_eos: true },
    { signal: controller.signal });
  controller.abort();
  await assert.rejects(pending, OpenAI.APIUserAbortError);
});

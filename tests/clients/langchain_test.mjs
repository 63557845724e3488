// LangChain's OpenAI chat model.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { HumanMessage, SystemMessage } from "@langchain/core/messages";
import { ChatOpenAI } from "@langchain/openai";

import { startCluster } from "./cluster.mjs";

let cluster;
let model;

before(async () => {
  cluster = await startCluster();
  model = new ChatOpenAI({
    model: "stories", temperature: 0, maxTokens: 20, maxRetries: 0,
    apiKey: "none", configuration: { baseURL: `${cluster.http}/v1` } });
});
after(async () => cluster?.stop());

const messages = [new SystemMessage("Once upon a time"),
                  new HumanMessage("there was a little dog")];

test("invokes", async () => {
  const answer = await model.invoke(messages);
  assert.ok(answer.content.length > 0);
  assert.equal(answer.usage_metadata.output_tokens, 20);
});

test("streams the same words", async () => {
  const whole = await model.invoke(messages);
  let text = "";
  let chunks = 0;
  for await (const chunk of await model.stream(messages)) {
    text += chunk.content;
    chunks += 1;
  }
  assert.equal(text, whole.content);
  assert.ok(chunks > 1, `only ${chunks} chunks`);
});

test("answers several at a time", async () => {
  const answers = await model.batch([messages, messages, messages]);
  assert.equal(answers.length, 3);
  assert.equal(answers[0].content, answers[2].content);
});

test("says the same over the Responses API", async () => {
  const responses = new ChatOpenAI({
    model: "stories", temperature: 0, maxTokens: 20, maxRetries: 0,
    useResponsesApi: true,
    apiKey: "none", configuration: { baseURL: `${cluster.http}/v1` } });
  const whole = await model.invoke(messages);
  assert.equal((await responses.invoke(messages)).text, whole.content);
  let text = "";
  for await (const chunk of await responses.stream(messages)) {
    text += chunk.text;
  }
  assert.equal(text, whole.content);
});

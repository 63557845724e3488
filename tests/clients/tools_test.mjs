// Tools, as users of the `openai` and LangChain packages have them called.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { ChatOpenAI } from "@langchain/openai";
import OpenAI from "openai";

import { startCluster } from "./cluster.mjs";

// Calls as Hermes and Qwen write them, of a model that knows of none.
const template = `{%- for m in messages %}{{ m.content or "" }}
{%- for call in m.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{
call.function.arguments | tojson }}}
</tool_call>{% endfor %} {% endfor %}`;

const pet = {
  type: "function",
  function: {
    name: "adopt", description: "Takes a pet home",
    parameters: {
      type: "object",
      properties: { kind: { enum: ["cat", "dog"] },
                    name: { type: "string", maxLength: 12 } },
      required: ["kind", "name"], additionalProperties: false,
    },
  },
};
const request = {
  model: "stories", temperature: 1, max_tokens: 200, tools: [pet],
  messages: [{ role: "user", content: "Once upon a time" }],
};

let cluster;
let client;

before(async () => {
  cluster = await startCluster([], template);
  client = new OpenAI({
    baseURL: `${cluster.http}/v1`, apiKey: "none", maxRetries: 0 });
});
after(async () => cluster?.stop());

function check(call) {
  assert.equal(call.type, "function");
  assert.match(call.id, /^call_/);
  assert.equal(call.function.name, "adopt");
  const made = JSON.parse(call.function.arguments);
  assert.deepEqual(Object.keys(made), ["kind", "name"]);
  assert.ok(["cat", "dog"].includes(made.kind), made.kind);
}

test("a response calls a tool, and the conversation goes on", async () => {
  const asked = {
    model: "stories", temperature: 1, max_output_tokens: 200,
    input: "Once upon a time", parallel_tool_calls: false,
    tools: [{ type: "function", ...pet.function }],
    tool_choice: { type: "function", name: "adopt" } };
  const answer = await client.responses.create(asked);
  assert.equal(answer.status, "completed");
  assert.deepEqual(answer.output.map((item) => item.type), ["function_call"]);
  const [call] = answer.output;
  check({ type: "function", id: call.call_id, function: call });

  const stream = client.responses.stream(asked);
  let written = "";
  stream.on("response.function_call_arguments.delta",
            (event) => { written += event.delta; });
  const final = await stream.finalResponse();
  assert.equal(final.output[0].arguments, written);
  check({ type: "function", id: final.output[0].call_id,
          function: final.output[0] });

  const next = await client.responses.create({
    ...asked, tool_choice: "none", max_output_tokens: 8,
    input: [{ role: "user", content: asked.input }, call,
            { type: "function_call_output", call_id: call.call_id,
              output: "It is asleep." }] });
  assert.equal(next.output[0].type, "message");
  assert.ok(next.usage.input_tokens > answer.usage.input_tokens);
});

test("a tool is called, and the conversation goes on", async () => {
  const answer = await client.chat.completions.create({
    ...request, seed: 1,
    tool_choice: { type: "function", function: { name: "adopt" } } });
  const { message, finish_reason } = answer.choices[0];
  assert.equal(finish_reason, "tool_calls");
  assert.equal(message.content, null);
  assert.equal(message.tool_calls.length, 1);
  check(message.tool_calls[0]);
  const next = await client.chat.completions.create({
    ...request, seed: 2, max_tokens: 8, tool_choice: "none",
    messages: [
      ...request.messages, message,
      { role: "tool", tool_call_id: message.tool_calls[0].id,
        content: "done" }] });
  assert.equal(next.choices[0].message.tool_calls, undefined);
  assert.ok(next.choices[0].message.content.length > 0);
});

test("the package's own helper puts a stream of it together", async () => {
  const stream = client.chat.completions.stream({
    ...request, seed: 3, tool_choice: "required",
    parallel_tool_calls: false });
  const { message, finish_reason } =
    (await stream.finalChatCompletion()).choices[0];
  assert.equal(finish_reason, "tool_calls");
  assert.equal(message.tool_calls.length, 1);
  check(message.tool_calls[0]);
});

test("LangChain binds tools, and takes structured output", async () => {
  const model = new ChatOpenAI({
    model: "stories", apiKey: "none", temperature: 1, maxTokens: 200,
    maxRetries: 0, configuration: { baseURL: `${cluster.http}/v1` } });
  const called = await model.bindTools([pet], { tool_choice: "adopt" })
    .invoke("Once upon a time");
  assert.equal(called.tool_calls.length, 1);
  assert.equal(called.tool_calls[0].name, "adopt");
  assert.ok(["cat", "dog"].includes(called.tool_calls[0].args.kind));
  for (const method of ["jsonSchema", "functionCalling"]) {
    const made = await model
      .withStructuredOutput(pet.function.parameters, { name: "pet", method })
      .invoke("Once upon a time");
    assert.deepEqual(Object.keys(made), ["kind", "name"], method);
  }
});

// Three rounds with tools in each SDK and API, whole and as a stream: `node rounds.mjs URL MODEL`. Prints the texts.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import * as agents from "@openai/agents";
import * as ai from "ai";
import OpenAI from "openai";
import { z } from "zod";

const [url, name] = process.argv.slice(2);
const baseURL = `${url}/v1`;
const openai = createOpenAI({ baseURL, apiKey: "key" });
const compatible = createOpenAICompatible({ name: "local", baseURL, apiKey: "key" });
const models = {
  "ai: OpenAI, responses": openai(name),
  "ai: OpenAI, chats": openai.chat(name),
  "ai: compatible": compatible.chatModel(name),
  "ai: Anthropic": createAnthropic({ baseURL, apiKey: "key" })(name),
};
const done = [];
const weather = async ({ city }) => (done.push(city), `sunny in ${city}`);
const note = async ({ text }) => (done.push(text), `noted ${text}`);
const city = z.object({ city: z.string() });
const text = z.object({ text: z.string() });
const tools = {
  weather: ai.tool({ description: "The weather.", inputSchema: city, execute: weather }),
  note: ai.tool({ description: "Takes a note.", inputSchema: text, execute: note }),
};
const stopWhen = (ai.stepCountIs ?? ai.isStepCount)(5);

async function rounds(model, stream) {
  const messages = [];
  const texts = [];
  for (const n of [1, 2, 3]) {
    messages.push({ role: "user", content: `ROUND-${n}` });
    const ask = { model, messages, tools, stopWhen, maxRetries: 0, maxOutputTokens: 500 };
    if (stream) {
      const answer = ai.streamText({ ...ask, onError: ({ error }) => console.error(error) });
      let streamed = "";
      for await (const piece of answer.textStream) streamed += piece;
      texts.push(streamed);
      messages.push(...(await answer.response).messages);
    } else {
      const answer = await ai.generateText(ask);
      texts.push(answer.text);
      messages.push(...answer.response.messages);
    }
  }
  return texts;
}

async function agentRounds(Model, stream) {
  const client = new OpenAI({ baseURL, apiKey: "key", maxRetries: 0 });
  const agent = new agents.Agent({
    name: "agent",
    model: new Model(client, name),
    tools: [
      agents.tool({ name: "weather", description: "The weather.", parameters: city, execute: weather }),
      agents.tool({ name: "note", description: "Takes a note.", parameters: text, execute: note }),
    ],
  });
  let history = [];
  const texts = [];
  for (const n of [1, 2, 3]) {
    const input = [...history, { role: "user", content: `ROUND-${n}` }];
    const result = await agents.run(agent, input, { stream });
    if (stream) for await (const _ of result) continue;
    history = result.history;
    texts.push(result.finalOutput);
  }
  return texts;
}

agents.setTracingDisabled(true); // traces go to OpenAI
const found = {};
for (const stream of [false, true]) {
  const kind = stream ? "stream" : "whole";
  for (const [label, model] of Object.entries(models)) found[`${label}, ${kind}`] = await rounds(model, stream);
  found[`agents: responses, ${kind}`] = await agentRounds(agents.OpenAIResponsesModel, stream);
  found[`agents: chats, ${kind}`] = await agentRounds(agents.OpenAIChatCompletionsModel, stream);
}
console.log(JSON.stringify({ found, done }));

// Objects beside tools in each SDK and API, whole, as a stream and cut: `node objects.mjs URL MODEL`. Prints what came.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import * as ai from "ai";
import { createOllama } from "ollama-ai-provider-v2";
import { z } from "zod";

const [url, name] = process.argv.slice(2);
const baseURL = `${url}/v1`;
const openai = createOpenAI({ baseURL, apiKey: "key" });
const models = {
  "OpenAI, responses": openai(name),
  "OpenAI, chats": openai.chat(name),
  compatible: createOpenAICompatible({ name: "local", baseURL, supportsStructuredOutputs: true }).chatModel(name),
  Anthropic: createAnthropic({ baseURL, apiKey: "key" })(name),
  Ollama: createOllama({ baseURL: `${url}/api` })(name),
};
const schema = z.object({ city: z.string(), people: z.number() });
const done = [];
const tools = {
  weather: ai.tool({
    description: "The weather.",
    inputSchema: z.object({ place: z.string() }),
    execute: async ({ place }) => (done.push(place), `sunny in ${place}`),
  }),
};
const stopWhen = (ai.stepCountIs ?? ai.isStepCount)(3);
const found = {};
for (const [label, model] of Object.entries(models)) {
  const ask = { model, tools, stopWhen, maxRetries: 0, prompt: "WEATHER", output: ai.Output.object({ schema }) };
  const whole = await ai.generateText({ ...ask, maxOutputTokens: 300 });
  const stream = ai.streamText({ ...ask, maxOutputTokens: 300, onError: ({ error }) => console.error(error) });
  for await (const _ of stream.textStream) continue;
  const cut = await ai.generateText({ ...ask, maxOutputTokens: 15 });
  const cutStream = ai.streamText({ ...ask, maxOutputTokens: 15, onError: ({ error }) => console.error(error) });
  let streamed = "";
  for await (const piece of cutStream.textStream) streamed += piece;
  found[label] = {
    whole: whole.output,
    stream: await stream.output,
    cut: [cut.text, cut.finishReason],
    cutStream: [streamed, await cutStream.finishReason],
  };
}
console.log(JSON.stringify({ found, done }));

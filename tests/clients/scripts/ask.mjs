// Asks a server in two APIs by the package `ai`, and prints what came: `node ask.mjs URL MODEL`.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, embedMany, generateText, streamText, tool } from "ai";
import { z } from "zod";

const [url, name] = process.argv.slice(2);
const openai = createOpenAICompatible({ name: "local", baseURL: `${url}/v1`, supportsStructuredOutputs: true });
const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" });
const weather = tool({
  description: "The weather of a city.",
  inputSchema: z.object({ city: z.enum(["Rome", "Oslo"]) }),
});
const answer = z.object({ color: z.enum(["red", "green"]), sure: z.boolean() });

async function all(model) {
  const ask = { model, prompt: "Hello", maxRetries: 0 };
  const text = await generateText({ ...ask, maxOutputTokens: 9 });
  const stream = streamText({ ...ask, maxOutputTokens: 9 });
  let streamed = "";
  for await (const piece of stream.textStream) streamed += piece;
  const calls = await generateText({ ...ask, maxOutputTokens: 200, tools: { weather }, toolChoice: "required" });
  const streamedCalls = streamText({ ...ask, maxOutputTokens: 200, tools: { weather }, toolChoice: "required" });
  const object = await generateText({ ...ask, maxOutputTokens: 100, output: Output.object({ schema: answer }) });
  return {
    text: text.text,
    reason: text.finishReason,
    tokens: text.usage.outputTokens,
    streamed,
    calls: calls.toolCalls.map((call) => call.input),
    streamedCalls: (await streamedCalls.toolCalls).map((call) => call.input),
    object: object.output,
  };
}

const embedded = await embedMany({ model: openai.textEmbeddingModel(name), values: ["one", "two"] });
const found = { openai: await all(openai.chatModel(name)), anthropic: await all(anthropic(name)) };
console.log(JSON.stringify({ ...found, embeddings: embedded.embeddings }));

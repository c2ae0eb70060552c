// openai for Node: runs the cases that come as JSON on standard input, and tells what came of each
// on standard output, as `python/sdk_clients.py` does for the other clients.

import OpenAI, { OpenAIError } from "openai";

const text = async (stream) => {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
};

const sound = () => {
  const head = Buffer.from("RIFF\0\0\0\0WAVEfmt ", "latin1");
  return new File([Buffer.concat([head, Buffer.alloc(3200)])], "sound.wav");
};

const ask = (client, { api, body, stream, form }) => {
  const asked = stream ? { ...body, stream: true } : body;
  switch (api) {
    case "chat": return client.chat.completions.create(asked);
    case "completions": return client.completions.create(asked);
    case "responses": return client.responses.create(asked);
    case "embeddings": return client.embeddings.create(asked);
    case "models": return client.models.list();
    case "transcription": return client.audio.transcriptions.create({ model: form.model, file: sound() });
    default: throw new Error(`no call for ${api}`);
  }
};

// The class of what came, as far as a client can tell: the SDK's answers are plain objects.
const run = async (client, asked) => {
  const seen = {};
  try {
    const call = ask(client, asked);
    const response = await call.asResponse();
    seen.status = response.status;
    seen.headers = Object.fromEntries(response.headers);
    const copy = asked.stream ? undefined : response.clone();
    const data = await call;
    if (asked.stream) {
      seen.events = [];
      for await (const event of data) seen.events.push(event);
    } else {
      seen.body = await copy.json().catch(() => JSON.parse(JSON.stringify(data)));
    }
  } catch (error) {
    if (!(error instanceof OpenAIError)) throw error;
    seen.exception = { class: error.constructor.name, status: error.status ?? null };
    seen.status = error.status ?? seen.status;
    if (error.headers) seen.headers = Object.fromEntries(error.headers);
    seen.body = error.error ?? null;
  }
  return seen;
};

const { base, key, cases } = JSON.parse(await text(process.stdin));
const client = new OpenAI({ baseURL: base, apiKey: key, maxRetries: 0, timeout: 120_000 });
const done = {};
for (const asked of cases) done[asked.name] = await run(client, asked);
process.stdout.write(JSON.stringify(done));

// Leaves a chat at its first text, and reads the answer again with the official transport, as after a reload.
const [version, url, gate] = process.argv.slice(2);
const { DefaultChatTransport, readUIMessageStream } = await import(version === "6" ? "ai6" : "ai");

const messages = [{ id: "u", role: "user", parts: [{ type: "text", text: "hello" }] }];
const leaving = new AbortController();
const first = await new DefaultChatTransport({ api: url }).sendMessages({
  trigger: "submit-message", chatId: "judge", messages, abortSignal: leaving.signal,
});
for await (const chunk of first) if (chunk.type === "text-delta") break;
leaving.abort();
const transport = new DefaultChatTransport({ api: url });
const stream = await transport.reconnectToStream({ chatId: "judge" });
await fetch(gate);
let latest;
for await (const each of readUIMessageStream({ stream })) latest = each;
const after = await transport.reconnectToStream({ chatId: "judge" });
console.log(JSON.stringify({ message: latest, after }));

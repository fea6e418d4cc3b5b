// Gives words to a run as soon as it calls a tool, with the official client of the protocol: "agui", or a version of `ai`.
// Also sends a second message meanwhile, as that client does it.
const [kind, url] = process.argv.slice(2);
const second = [];
let outcome;
const steer = async (thread) => {
  const body = JSON.stringify({ text: "WORDS for the run" });
  const response = await fetch(`${url}/${thread}/steer`, { method: "POST", headers: { "content-type": "application/json" }, body });
  return (await response.json()).outcome;
};
let messages;
if (kind === "agui") {
  const { HttpAgent } = await import("@ag-ui/client");
  const make = (id) => new HttpAgent({ url, threadId: "judge", initialMessages: [{ id, role: "user", content: "hello" }] });
  const agent = make("u");
  agent.subscribe({
    onToolCallStartEvent: () => {
      outcome ??= steer("judge");
      second.push(make("v").runAgent().then(() => "answered", (error) => String(error)));
    },
  });
  await agent.runAgent();
  messages = agent.messages;
} else {
  const { DefaultChatTransport, readUIMessageStream } = await import(kind === "6" ? "ai6" : "ai");
  const transport = new DefaultChatTransport({ api: url });
  const send = (id) => transport.sendMessages({
    trigger: "submit-message", chatId: "judge", messages: [{ id, role: "user", parts: [{ type: "text", text: "hello" }] }],
  });
  for await (const each of readUIMessageStream({ stream: await send("u") })) {
    messages = [each];
    if (outcome === undefined && each.parts.some((part) => part.type === "dynamic-tool")) {
      outcome = steer("judge");
      second.push(send("v").then(() => "answered", (error) => String(error)));
    }
  }
}
console.log(JSON.stringify({ outcome: await outcome, second: await Promise.all(second), messages }));

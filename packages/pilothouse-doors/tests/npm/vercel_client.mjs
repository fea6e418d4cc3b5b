// Sends a chat with the official transport until it waits for nothing: approves what is asked, but `deny`.
const [version, url, deny] = process.argv.slice(2);
const { DefaultChatTransport, readUIMessageStream } = await import(version === "6" ? "ai6" : "ai");

const transport = new DefaultChatTransport({ api: url });
const messages = [{ id: "u", role: "user", parts: [{ type: "text", text: "hello" }] }];
const errors = [];
let rounds = 0;
for (;;) {
  rounds += 1;
  const last = messages.at(-1);
  const answers = {};
  let waits = rounds === 1;
  if (last.role === "assistant") {
    for (const part of last.parts) {
      if (part.type === "data-ask" && part.data.kind === "question" && !part.answered) {
        answers[part.id] = { answers: { [part.data.request.input.questions[0].question]: "Red" } };
        part.answered = waits = true;
      }
      if (part.state === "approval-requested") {
        waits = true;
        part.approval = { id: part.approval.id, approved: !(deny && JSON.stringify(part.input).includes(deny)) };
        part.state = "approval-responded";
      }
    }
  }
  if (!waits) break;
  const stream = await transport.sendMessages({ trigger: "submit-message", chatId: "judge", messages, body: { answers } });
  const message = last.role === "assistant" ? last : undefined;
  let latest;
  for await (const each of readUIMessageStream({ stream, message, onError: (error) => errors.push(String(error)) })) latest = each;
  if (latest) last.role === "assistant" ? (messages[messages.length - 1] = latest) : messages.push(latest);
  else break;
}
console.log(JSON.stringify({ rounds, errors, messages }));

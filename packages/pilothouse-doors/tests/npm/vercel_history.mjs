// Asks, regenerates and edits with the official chat; then a page that was reloaded shows the past, and regenerates.
const [version, url] = process.argv.slice(2);
const { AbstractChat, DefaultChatTransport, validateUIMessages } = await import(version === "6" ? "ai6" : "ai");

class State {
  status = "ready";
  error = undefined;
  constructor(messages) { this.messages = messages; }
  pushMessage = (message) => { this.messages = [...this.messages, message]; };
  popMessage = () => { this.messages = this.messages.slice(0, -1); };
  replaceMessage = (index, message) => { this.messages = this.messages.map((each, at) => (at === index ? message : each)); };
  snapshot = (value) => structuredClone(value);
}
class Chat extends AbstractChat {
  constructor(messages) {
    const onError = (error) => { throw error; };
    super({ id: "judge", state: new State(messages), transport: new DefaultChatTransport({ api: url }), onError });
  }
}
const load = async () => await (await fetch(`${url}/judge`)).json();

const chat = new Chat([]);
await chat.sendMessage({ text: "alpha" });
await chat.regenerate();
await chat.sendMessage({ text: "beta", messageId: chat.messages[0].id });
const again = await load();
const reloaded = new Chat(await validateUIMessages({ messages: await load() }));
await reloaded.regenerate();
const past = await load();
console.log(JSON.stringify({ shown: reloaded.messages, again: again.map(({ role }) => role), past: past.map(({ role }) => role) }));

// Runs a thread with the official client until it waits for nothing: approves what is asked, but `deny`.
import { HttpAgent } from "@ag-ui/client";

const [url, deny] = process.argv.slice(2);
const warnings = [];
console.warn = (...all) => warnings.push(all.join(" "));
console.error = (...all) => warnings.push(all.join(" "));
const tools = [{ name: "pick", description: "Pick", parameters: { type: "object", properties: { n: { type: "integer" } } } }];
const agent = new HttpAgent({ url, threadId: "judge", initialMessages: [{ id: "u", role: "user", content: "hello" }] });
const events = [];
const errors = [];
agent.subscribe({
  onEvent: ({ event }) => void events.push(event),
  onRunErrorEvent: ({ event }) => void errors.push(event.message),
});
let resume;
let runs = 0;
for (;;) {
  runs += 1;
  await agent.runAgent({ tools, ...(resume ? { resume } : {}) });
  const last = events.at(-1);
  resume = undefined;
  if (last.type === "RUN_ERROR") break;
  if (agent.pendingInterrupts.length > 0) {
    resume = agent.pendingInterrupts.map((each) => {
      const request = each.metadata.pilothouse.request;
      if (each.reason === "input_required")
        return { interruptId: each.id, status: "resolved", payload: { answers: { [request.input.questions[0].question]: "Red" } } };
      if (deny && JSON.stringify(request.input).includes(deny)) return { interruptId: each.id, status: "cancelled" };
      return { interruptId: each.id, status: "resolved", payload: { approved: true } };
    });
  } else if (last.outcome?.pendingToolCallIds?.length) {
    for (const id of last.outcome.pendingToolCallIds)
      agent.addMessage({ id: `result-${id}`, role: "tool", toolCallId: id, content: "picked 2" });
  } else break;
}
console.log(JSON.stringify({ runs, events, errors, warnings, messages: agent.messages, state: agent.state }));

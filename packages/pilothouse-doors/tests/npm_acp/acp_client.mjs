// Runs an agent with the official client of the Agent Client Protocol. The argument is JSON:
//   command, env            the agent
//   capabilities            of the client
//   steps                   [method, params, options]: "$session" is the id of the session that was opened last;
//                           with options.cancelOn the prompt is cancelled when an update of that kind arrives;
//                           with options.steerOn words are given to its turn then
//   permission, form        the kind of the option that is chosen; the answer to forms, null declines
// Prints what came: a response or an error for each step, the updates, the requests of the agent, what became of words.
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk/unstable";

const plan = JSON.parse(process.argv[2]);
const child = spawn(plan.command[0], plan.command.slice(1), { env: plan.env, stdio: ["pipe", "pipe", "inherit"] });
const stream = acp.ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout));
const updates = [];
const asks = [];
const responses = [];
const steered = [];
let step = -1;
let onUpdate = () => {};

const app = acp
  .client({ name: "judge" })
  .onNotification("session/update", ({ params }) => {
    updates.push({ step, session: params.sessionId, ...params.update });
    onUpdate(params.update);
  })
  .onRequest("session/request_permission", ({ params }) => {
    asks.push({ step, ...params });
    const chosen = params.options.find((option) => option.kind === plan.permission);
    return { outcome: chosen ? { outcome: "selected", optionId: chosen.optionId } : { outcome: "cancelled" } };
  })
  .onRequest("elicitation/create", ({ params }) => {
    asks.push({ step, ...params });
    return plan.form ? { action: "accept", content: plan.form } : { action: "decline" };
  });

await app.connectWith(stream, async (agent) => {
  const hello = { protocolVersion: 1, clientCapabilities: plan.capabilities ?? {} };
  responses.push(await agent.request("initialize", hello));
  let session = "";
  for (const [method, params, options] of plan.steps) {
    step += 1;
    const filled = JSON.parse(JSON.stringify(params).replaceAll("$session", session));
    onUpdate = (update) => {
      const kind = update.sessionUpdate;
      if (kind === options?.cancelOn) void agent.notify("session/cancel", { sessionId: session });
      else if (kind === options?.steerOn && update.status !== "pending")
        void agent
          .request("_session/steering", { sessionId: session, prompt: options.words })
          .then((response) => steered.push(response));
      else return;
      onUpdate = () => {};
    };
    try {
      const response = await agent.request(method, filled);
      responses.push(response);
      session = response?.sessionId ?? session;
    } catch (error) {
      responses.push({ error: { code: error.code, message: error.message, data: error.data } });
    }
  }
});
const left = new Promise((resolve) => child.once("exit", (code) => resolve(code)));
child.stdin.end();
const timer = setTimeout(() => child.kill(), 15000);
const code = await left;
clearTimeout(timer);
console.log(JSON.stringify({ responses, updates, asks, steered, code }));

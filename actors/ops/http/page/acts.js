// Each act of the page: what its button says, what it would do, what it asks for, and its receipt.
import { localText } from "./texts.js";

const until = (ms) => (ms === null || ms === undefined ? "until somebody ends it" : `until ${localText(ms)}`);
const stands = (receipt) => `${receipt.id} is ${receipt.state.replaceAll("_", " ")}${receipt.changed ? "" : "; nothing was changed"}.`;
const REACH = { recorded: "recorded", in_process: "it stands in its account's line no more" };

export const ACTS = {
  release: (wait) => ({
    name: "Release",
    title: `Release ${wait.agent} on ${wait.model}?`,
    what: `Its provider said not to call it ${until(wait.deadline_ms)}. A release ends that for ${wait.agent} and ${wait.model} alone: a turn that it holds goes on at once, with a call to the provider, which may refuse it again. This cannot be taken back.`,
    run: async (given, ask) => {
      const { released } = await ask("v1/release", { agent: wait.agent, model: wait.model, ...given });
      if (!released.length) return `No wait of ${wait.agent} on ${wait.model} was binding any more; nothing was released.`;
      return released.map((each) => `Released ${each.agent} on ${each.model}: ${REACH[each.reach] ?? "in force; its record is not in yet"}.`).join(" ");
    },
  }),
  approve: (call) => decide(call, "approve", "Allow", "The call is made once, and the turn goes on with what it returns."),
  deny: (call) => decide(call, "deny", "Deny", "The call is not made. The turn goes on, and the model reads that it was denied, and your note."),
  resume: (run) => ({
    name: "Resume now",
    title: `Resume ${run.id} now?`,
    what: `It would go on by itself ${run.resume_after_ms === null ? "only when somebody says so" : localText(run.resume_after_ms)}. It is taken up now, where it stopped: what is done is not done again. Where its capacity is still out, it waits again.`,
    run: async (given, ask) => stands(await ask("v1/resume-run", { run: run.id, ...given })),
  }),
  fallback: (run) => ({
    name: "Use fallback",
    title: `Go on with ${run.id} on another model?`,
    what: `It waits for ${run.provider ?? "a provider"} ${run.model ?? ""}. It is taken up now on the model that you name, for the rest of the run; what is done is not done again.`,
    fields: [{ name: "provider", label: "Provider", needed: true }, { name: "model", label: "Model", needed: true }],
    run: async (given, ask) => stands(await ask("v1/use-fallback", { run: run.id, ...given })),
  }),
  cancelRun: (run) => ({
    name: "Cancel",
    title: `Cancel ${run.id}?`,
    what: "It ends for good: nothing takes it up again and its finalisers do not run. What it has done stays done. This cannot be taken back.",
    fields: [{ name: "reason", label: "Why (shown with the run)", max: 500 }],
    run: async (given, ask) => stands(await ask("v1/cancel-run", { run: run.id, ...given })),
  }),
  retry: (run) => ({
    name: "Run the item again",
    title: `Run ${run.step ?? "the item"} of ${run.id} again?`,
    what: `${run.reason} If it had its effect already, the effect is made twice.`,
    run: async (given, ask) => stands(await ask("v1/resume-run", { run: run.id, in_doubt: "retry", ...given })),
  }),
  done: (run) => ({
    name: "It was done",
    title: `Take ${run.step ?? "the item"} of ${run.id} for done?`,
    what: `${run.reason} It is not run again, and returns nothing to the workflow.`,
    run: async (given, ask) => stands(await ask("v1/resume-run", { run: run.id, in_doubt: "done", ...given })),
  }),
  cancelTurn: (turn) => ({
    name: "Cancel turn",
    title: `Cancel ${turn.agent}'s turn?`,
    what: "The turn ends for good: calls that are out are given up, what the model has said stays, and messages that came for it wait for the next turn. This cannot be taken back.",
    run: async (given, ask) => {
      const asked = turn.turn === undefined ? {} : { turn: turn.turn };
      const said = await ask("v1/cancel-turn", { agent: turn.agent, ...asked, ...given });
      return said.turn === null ? `${turn.agent} has no open turn; nothing was cancelled.` : `Turn ${said.turn} of ${turn.agent} is ${said.state.replaceAll("_", " ")}.`;
    },
  }),
  unpark: (agent) => ({
    name: "Start again",
    title: `Start ${agent.name} again?`,
    what: "It was parked because it crashed too often. It starts again with the turn it had open; if the cause is still there, it is parked again.",
    run: async (given, ask) => {
      const said = await ask("v1/unpark", { agent: agent.name, ...given });
      return said.pids.length ? `${agent.name} goes on.` : `${agent.name} was not parked any more; nothing was changed.`;
    },
  }),
  replay: (entry) => ({
    name: "Send again",
    title: `Send ${entry.kind.replace("_", " ")} ${entry.id} to ${entry.actor} again?`,
    what: `The message is sent once more${entry.replays ? `; it was sent again ${entry.replays} times before` : ""}. The row stays, and counts it. If it was handled after all, it is handled twice.`,
    run: async (given, ask) => {
      const said = await ask("v1/replay", { kind: entry.kind, id: entry.id, ...given });
      return `${entry.kind.replace("_", " ")} ${entry.id} was sent to ${said.replayed.actor} again.`;
    },
  }),
  quiesce: () => ({
    name: "Quiesce",
    title: "Start no more turns?",
    what: "Every host of this directory starts no more turns. Live ones have 30 s to end; one that does not is run anew later. Messages are accepted and wait. It stays so over restarts, until somebody serves again.",
    fields: [{ name: "reason", label: "Why (shown to whoever looks)", needed: true, max: 500 }],
    run: async (given, ask) => {
      const said = await ask("v1/quiesce", given);
      return `Quiesced: ${said.reason}. No turn lives.`;
    },
  }),
  serve: (status) => ({
    name: "Serve again",
    title: "Start turns again?",
    what: `It was quiesced: ${status.mode.reason}. Turns start again at once, and messages that waited are answered.`,
    run: async (given, ask) => {
      const said = await ask("v1/quiesce", { end: true, ...given });
      return said.was === "serving" ? "It was not quiesced." : `Turns start again; ${said.landed} messages that had waited landed.`;
    },
  }),
  signIn: () => ({
    name: "Sign in",
    title: "Sign in",
    what: "With the host's admin token this page can change something; with its read token it can look, where the host asks for one. It is kept in this tab until it is closed.",
    local: true,
    fields: [{ name: "token", label: "Token", secret: true, needed: true }],
    run: async () => "This tab holds a token.",
  }),
};

function decide(call, verdict, name, what) {
  return {
    name,
    title: `${name} ${call.tool} for ${call.agent}?`,
    what: `${call.input}\n${what} This cannot be taken back.`,
    fields: [{ name: "note", label: "Note (the model reads it)", max: 500 }],
    run: async (given, ask) => {
      const said = await ask("v1/decide", { approval: call.id, verdict, ...given });
      return `${call.tool} of ${call.agent} is ${said.state} by ${said.by}.`;
    },
  };
}

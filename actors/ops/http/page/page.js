// What a host's agents wait for, and the verbs that end it.
//
// Invariants:
//   I1  Nothing that came from the host is markup here: it is set as text, and a character that
//       nobody sees, or that turns the text around it, is shown as its escape.
//   I2  An element stays the same element as long as what it shows is there: neither focus nor
//       place is lost by a refresh.
//   I3  A button changes nothing. It says what would be done; the dialog's button does it, once.
//   I4  What is shown is what the host last said, and the header says when it is not heard from.
import { ACTS } from "./acts.js";
import { clockOf, durationText, localText, shown } from "./texts.js";

const SHOWN_MAX = 200;      // Elements of one list; the rest is counted.
const ANSWER_MS_MAX = 8000; // How long the host may take before it counts as silent.
const LOOK_MS = 10000;      // Between two looks where no event comes.
const GATHER_MS = 250;      // Events that come together are one look.
const REST_MS = 1000;       // Between two looks, however many events come.
const RECEIPTS_MAX = 5;

const at = (id) => document.getElementById(id);
let token = sessionStorage.getItem("token") ?? ""; // Of this tab, until it is closed.
let me = localStorage.getItem("requester") ?? "";
let last = null;
let isShown = false;

// -- the host ---------------------------------------------------------------------------------

class Refused extends Error {
  constructor(status, error) {
    super(error.text);
    this.status = status;
    this.field = error.field;
  }
}

async function ask(path, body) {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const options = { headers, cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS_MAX) };
  if (body !== undefined) {
    headers["content-type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  }
  const answer = await fetch(path, options);
  const said = await answer.json();
  if (!answer.ok) throw new Refused(answer.status, said.error);
  return said;
}

// The status is asked for alone: a token that is not the host's any more is one guess, not seven.
async function lookAll() {
  const status = await ask("v1/status");
  const [runs, approvals, inbox, alerts, dead, quarantine] = await Promise.all([
    ask("v1/runs?state=open"), ask("v1/approvals"), ask("v1/inbox"),
    ask("v1/alerts?limit=30"), ask("v1/dead-letters?limit=50"), ask("v1/quarantine?limit=50"),
  ]);
  return { status, runs: runs.runs, approvals: approvals.approvals, inbox: inbox.inbox,
    alerts: alerts.alerts.toReversed(), dead: [...dead.entries, ...quarantine.entries] };
}

let looking = false;
let again = false;

async function look() {
  if (looking) { again = true; return; }
  looking = true;
  try {
    last = await lookAll();
    show(last);
    isShown = true;
    tell("live", `as of ${new Date().toLocaleTimeString()}`);
  } catch (error) {
    if (error.status === 401 && token) { sign(""); again = true; }
    if (error.status === 401 || error.status === 403) tell("lost", "this host asks for a token: sign in");
    else tell("lost", error instanceof Refused ? error.message : "the host does not answer; what is shown may be old");
  } finally {
    looking = false;
    if (again) { again = false; soon(); }
  }
}

function tell(state, text) {
  const link = at("link");
  link.className = state;
  if (link.textContent !== text) link.textContent = text;
}

let gathering = 0;
let rested = 0; // When the next look may be.
function soon() {
  if (gathering) return;
  const rest = Math.max(GATHER_MS, rested - performance.now());
  gathering = setTimeout(() => { gathering = 0; rested = performance.now() + REST_MS; look(); }, rest);
}

// Events only say that something changed; what is shown is read. `EventSource` sends no token.
async function listen() {
  for (;;) {
    try {
      const answer = await fetch("v1/events", { headers: token ? { authorization: `Bearer ${token}` } : {} });
      if (answer.ok) {
        soon();
        const reader = answer.body.getReader();
        while (!(await reader.read()).done) soon();
      }
    } catch { /* The next look says whether the host is there. */ }
    await new Promise((done) => setTimeout(done, 2000));
    soon();
  }
}

// -- elements ---------------------------------------------------------------------------------

function make(tag, kind, text) {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  if (text !== undefined) element.textContent = shown(text);
  return element;
}

// Bring a list of elements in line with items, by their keys (I2).
function list(section, items, keyOf, build, fill) {
  const home = at(section);
  const box = home.querySelector(".cards, .rows");
  const known = new Map([...box.children].map((child) => [child.dataset.key, child]));
  let before = null;
  for (const item of items.slice(0, SHOWN_MAX)) {
    const key = String(keyOf(item));
    let element = known.get(key);
    if (!element) {
      element = build(item);
      element.dataset.key = key;
      if (isShown) element.classList.add("fresh");
    }
    known.delete(key);
    fill(element, item);
    const place = before ? before.nextElementSibling : box.firstElementChild;
    if (place !== element) box.insertBefore(element, place);
    before = element;
  }
  for (const gone of known.values()) gone.remove();
  home.querySelector(".none").hidden = items.length > 0;
  const more = items.length > SHOWN_MAX ? `, the first ${SHOWN_MAX} are shown` : "";
  put(at(`${section}-title`), "count", items.length ? ` (${items.length}${more})` : "", "span");
}

// Set the text of the one child of a class; written only where it differs.
function put(element, kind, text, tag = "p") {
  let child = element.querySelector(`:scope > .${kind.replaceAll(" ", ".")}`);
  if (!child) child = element.appendChild(make(tag, kind));
  const now = shown(text);
  if (child.textContent !== now) child.textContent = now;
  child.hidden = now === "";
  return child;
}

function buttons(element, acts) {
  let box = element.querySelector(":scope > .buttons");
  if (!box) box = element.appendChild(make("p", "buttons"));
  const names = acts.map((act) => act.name).join("\n");
  if (box.dataset.names !== names) {
    box.dataset.names = names;
    box.replaceChildren(...acts.map((act) => {
      const button = make("button", "", act.name);
      button.type = "button";
      return button;
    }));
  }
  box.hidden = acts.length === 0;
  acts.forEach((act, place) => { box.children[place].onclick = (event) => open(act, event.currentTarget); });
}

function card(item) {
  const element = make("article", item.timed === false ? "card" : "card timed");
  if (item.timed !== false) {
    const clock = make("div", "clock");
    clock.setAttribute("aria-hidden", "true");
    element.append(clock);
  }
  element.append(make("h3"));
  return element;
}

const row = () => { const element = make("article", "row"); element.append(make("h3")); return element; };
const title = (element, text) => { const head = element.querySelector("h3"); if (head.textContent !== shown(text)) head.textContent = shown(text); };

// -- what is shown ----------------------------------------------------------------------------

function holdsOf(status) {
  // A hold that is no wait of the list: a quota, a pause, a credential's wall.
  const listed = new Set(status.waits.map((wait) => `${wait.agent}\n${wait.model}`));
  const held = status.agents.filter((agent) => agent.held && agent.held.cause !== "approval"
    && !listed.has(`${agent.name}\n${agent.held.model}`));
  return [...status.waits.map((wait) => ({ ...wait, cause: "" })),
    ...held.map((agent) => ({ agent: agent.name, set_ms: null, ...agent.held }))];
}

function show(said) {
  const { status } = said;
  const mode = status.mode?.state ?? "serving";
  at("host").textContent = shown(`${status.directory} · pid ${status.pid}${mode === "serving" ? "" : ` · ${mode}: ${status.mode.reason}; no turn starts`}`);
  const quiesce = at("quiesce");
  const act = mode === "serving" ? ACTS.quiesce(status) : ACTS.serve(status);
  quiesce.textContent = act.name;
  quiesce.hidden = false;
  quiesce.onclick = () => open(act, quiesce);
  const holds = holdsOf(status).sort((a, b) => (a.deadline_ms ?? Infinity) - (b.deadline_ms ?? Infinity));
  document.title = holds.length ? `(${holds.length}) Abeyance` : "Abeyance";
  list("waits", holds, (wait) => `${wait.agent}\n${wait.model}`, card, fillWait);
  list("approvals", said.approvals, (call) => call.id, card, fillApproval);
  list("runs", said.runs, (run) => run.id, card, fillRun);
  const part = at("filter").value.toLowerCase();
  list("agents", status.agents.filter((agent) => agent.name.toLowerCase().includes(part)), (agent) => agent.name, row, fillAgent);
  list("inbox", said.inbox, (message) => `${message.agent}\n${message.seq}\n${message.id}`, row, fillMessage);
  list("alerts", said.alerts, (alert) => alert.id, row, fillAlert);
  list("dead", said.dead, (entry) => `${entry.kind} ${entry.id}`, row, fillEntry);
  tick();
}

function timed(element, deadline_ms, set_ms) {
  element.dataset.until = deadline_ms ?? "";
  element.dataset.since = set_ms ?? "";
  put(element, "left", "");
  put(element, "until", "");
}

function fillWait(element, wait) {
  title(element, `${wait.agent} on ${wait.model}`);
  timed(element, wait.deadline_ms, wait.set_ms);
  const holding = last?.status.agents.find((agent) => agent.name === wait.agent)?.held?.model === wait.model;
  const marks = [holding ? "holds a turn" : "", wait.pending ? "not stored yet" : ""];
  put(element, "mark", marks.filter(Boolean).join(" · "), "span");
  put(element, "soft", wait.window ? `window used up: ${wait.window}` : "");
  put(element, "text", wait.cause ? `${wait.cause}: ${wait.reason}` : wait.reason);
  buttons(element, wait.cause === "context" ? [ACTS.cancelTurn(wait)] : [ACTS.release(wait)]);
}

function fillApproval(element, call) {
  title(element, `${call.agent} wants to call ${call.tool}`);
  timed(element, call.deadline_ms, call.asked_ms);
  put(element, "text", call.input);
  put(element, "soft", `asked ${localText(call.asked_ms)}; nobody decides: ${call.otherwise}`);
  buttons(element, [ACTS.approve(call), ACTS.deny(call)]);
}

function fillRun(element, run) {
  title(element, `${run.id} · ${run.workflow}`);
  const waits = run.state.startsWith("waiting_for_capacity");
  timed(element, waits ? run.resume_after_ms ?? run.retry_at_ms : undefined, waits ? run.changed_ms : null);
  element.dataset.plain = waits ? "" : "yes";
  put(element, `state ${waits || run.unrecorded || run.state === "recovery_required" ? "held" : ""}`.trim(), "");
  put(element, "text", run.text);
  put(element, "soft", `${run.steps_done} done${run.step ? `, at ${run.step}` : ""}${run.total ? ` (${run.place} of ${run.total})` : ""}`);
  const acts = [ACTS.cancelRun(run)];
  if (waits) acts.unshift(ACTS.resume(run), ACTS.fallback(run));
  if (run.state === "recovery_required") acts.unshift(ACTS.retry(run), ACTS.done(run));
  buttons(element, acts);
}

function fillAgent(element, agent) {
  title(element, agent.name);
  put(element, "state", `${agent.state} · ${agent.model}`).classList.toggle("held", agent.held !== null || agent.unrecorded !== null);
  const facts = [`${agent.inbox} message${agent.inbox === 1 ? "" : "s"} wait${agent.inbox === 1 ? "s" : ""}`];
  if (agent.turn !== null) facts.unshift(`turn ${agent.turn}, round ${agent.round}`);
  put(element, "soft", facts.join(" · "));
  const refused = agent.unrecorded;
  const waits = agent.held ? `${agent.held.cause}: ${agent.held.reason}` : "";
  put(element, "text", refused ? `${refused.what} cannot be recorded since ${localText(refused.since_ms)}: ${refused.reason}` : waits);
  const acts = agent.turn === null ? [] : [ACTS.cancelTurn({ agent: agent.name, turn: agent.turn })];
  if (agent.state === "parked") acts.push(ACTS.unpark(agent));
  buttons(element, acts);
}

const CAUSES = {
  turn: "joins the live turn at its next tool boundary",
  own: "is named as the agent: lands at the turn's end",
  tools: "carries tool blocks: lands at the turn's end",
  kept: "was sent so as not to join: lands at the turn's end",
  behind: "stands behind another, which lands at the turn's end",
  no_injections: "the provider carries nothing into a live turn: lands at its end",
  quiesced: "the host is quiesced: lands when that ends",
  start: "lands when the agent starts or goes on",
  unreadable: "its row cannot be read: see abeyance check",
};

function fillMessage(element, message) {
  title(element, `${message.author} to ${message.agent}`);
  put(element, "text", CAUSES[message.cause] ?? message.cause);
  put(element, "soft", `${message.id} · ${message.size} bytes${message.at_ms ? ` · ${localText(message.at_ms)}` : ""}${message.wake ? " · asks for a turn" : ""}`);
}

function fillAlert(element, alert) {
  title(element, `${alert.kind.replaceAll("_", " ")}${alert.agent ? ` · ${alert.agent}` : ""}${alert.model ? ` on ${alert.model}` : ""}`);
  put(element, "text", alert.text);
  put(element, "soft", alert.at_ms ? localText(alert.at_ms) : "");
}

function fillEntry(element, entry) {
  title(element, `${entry.actor}: ${entry.reason}`);
  put(element, "text", entry.message);
  put(element, "soft", `${entry.kind.replace("_", " ")} ${entry.id} · ${localText(entry.at_ms)}${entry.replays ? ` · replayed ${entry.replays} times` : ""}${entry.replayable ? "" : " · the message itself is not there"}`);
  buttons(element, entry.replayable ? [ACTS.replay(entry)] : []);
}

function tick() {
  const now = Date.now();
  for (const element of document.querySelectorAll("[data-until]")) {
    const plain = element.dataset.plain === "yes";
    const clock = element.querySelector(".clock");
    if (clock) clock.hidden = plain;
    element.classList.toggle("timed", !plain);
    const { left, until, gone } = plain ? { left: "", until: "", gone: null }
      : clockOf(element.dataset.until === "" ? null : Number(element.dataset.until), element.dataset.since === "" ? null : Number(element.dataset.since), now);
    put(element, "left", left);
    put(element, "until", until);
    if (clock && gone !== null) clock.style.setProperty("--gone", gone);
    if (clock) clock.classList.toggle("open", gone === null);
  }
}

// -- acts -------------------------------------------------------------------------------------

let doing = null;
let acting = false; // Between a press and the host's answer.

function open(act, from) {
  if (acting) return;
  doing = { act, from };
  at("ask-title").textContent = shown(act.title);
  at("ask-what").textContent = shown(act.what);
  at("ask-yes").textContent = act.name;
  at("ask-yes").disabled = false;
  at("ask-wrong").hidden = true;
  const fields = [...(act.fields ?? [])];
  if (!act.local) fields.push({ name: "requester", label: "Your name, for the record", value: me, max: 200 });
  if (!act.local && !token) fields.push({ name: "token", label: "The host's admin token (kept in this tab until it is closed)", secret: true, needed: true });
  at("ask-fields").replaceChildren(...fields.map((field) => {
    const label = make("label", "", field.label);
    const input = make("input");
    input.name = field.name;
    input.type = field.secret ? "password" : "text";
    input.value = field.value ?? "";
    input.required = field.needed ?? false;
    if (field.max) input.maxLength = field.max;
    label.append(input);
    return label;
  }));
  at("ask").showModal();
  (at("ask-fields").querySelector("input:required") ?? at("ask-no")).focus();
}

// What was sent can't be left as it is: the dialog stays until the host has answered.
function wait(on) {
  acting = on;
  at("ask-yes").disabled = on;
  at("ask-no").disabled = on;
}

function close() {
  if (acting) return;
  at("ask").close();
  const { from } = doing;
  doing = null;
  (from.isConnected ? from : at("receipts")).focus();
}

async function submit(event) {
  event.preventDefault();
  if (doing === null || acting) return;
  wait(true);
  at("ask-wrong").hidden = true;
  const given = Object.fromEntries([...at("ask-fields").querySelectorAll("input")].map((input) => [input.name, input.value.trim()]));
  const before = token;
  try {
    if ("token" in given) { token = given.token; delete given.token; }
    if ("requester" in given) { me = given.requester; localStorage.setItem("requester", me); }
    const said = await doing.act.run(given, ask);
    wait(false);
    if (token !== before) sign(token);
    receipt(said);
    close();
    soon();
  } catch (error) {
    wait(false);
    if (error.status === 401) sign("");
    else token = error.status === 403 ? before : token;
    const silent = "the host did not answer; whether it was done is not known: look before you try again";
    at("ask-wrong").textContent = shown(error instanceof Refused ? error.message : silent);
    at("ask-wrong").hidden = false;
    if (error.status === 401 && !at("ask-fields").querySelector("[name=token]")) {
      const { act, from } = doing;
      const wrong = at("ask-wrong").textContent;
      at("ask").close();
      open(act, from);
      at("ask-wrong").textContent = wrong;
      at("ask-wrong").hidden = false;
    }
  }
}

function receipt(text) {
  const box = at("receipts");
  box.tabIndex = -1;
  box.prepend(make("p", "", `${new Date().toLocaleTimeString()}  ${text}`));
  while (box.children.length > RECEIPTS_MAX) box.lastElementChild.remove();
  box.hidden = false;
}

function sign(held) {
  token = held;
  if (held) sessionStorage.setItem("token", held);
  else sessionStorage.removeItem("token");
  at("sign").textContent = held ? "Sign out" : "Sign in to change something";
}

at("sign").onclick = () => {
  if (token) { sign(""); receipt("This tab holds no token any more."); return; }
  open(ACTS.signIn(), at("sign"));
};
at("ask-no").onclick = close;
at("ask").addEventListener("cancel", (event) => { event.preventDefault(); close(); });
at("ask").querySelector("form").addEventListener("submit", submit);
at("filter").oninput = () => { if (last) show(last); };

sign(token);
setInterval(tick, 1000);
setInterval(look, LOOK_MS);
look();
listen();

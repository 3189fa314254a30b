// One message, opened: body, facts, history; and the actions cancel, reschedule and release now.
// Every action ends with the broker's definite answer. An open message is refreshed, so that its release shows; a form
// with a new time is not redrawn before it is too late to send it.

import { h, fill, prose, say } from "./dom.js";
import { get, post, now } from "./api.js";
import { loading, failed, repeat, wordsOf } from "./live.js";
import { bytes, exact, until, toInput, fromInput, millis, count } from "./format.js";
import { bodyView } from "./body_view.js";
import { waitsNote } from "./waits.js";

const dialog = document.getElementById("message");
const LOOK_EVERY_MS = 2000;

const SAID = {
  cancelled: ["Cancelled. It will never be released.", ""],
  released: ["Too late: it is already in its topic.", "warn"],
  "already-cancelled": ["It was already cancelled.", "warn"],
  unknown: ["The broker does not know this message; it may be past its retention.", "warn"],
  damaged: ["Its bytes on disk are damaged: it can be cancelled, but not rescheduled.", "warn"],
};

export function opener({ handle, may, onChange }) {
  closed.abort();
  closed = new AbortController();
  fill(dialog, h("div.inner", h("header", h("div"), closeButton()), loading()));
  if (!dialog.open) dialog.showModal();
  const view = { handle, may, onChange: onChange || (() => {}), said: null, signal: closed.signal, shown: "", how: "", isMoving: false, isUnsure: false, bodyLimit: undefined, times: [] };
  const tick = setInterval(() => view.times.forEach(([element, text]) => say(element, text())), 1000);
  view.signal.addEventListener("abort", () => clearInterval(tick));
  repeat(() => look(view), LOOK_EVERY_MS, view.signal, (error) => { if (!view.shown) fill(dialog, h("div.inner", h("header", h("div"), closeButton()), failed(error, () => load(view)))); });
}

let closed = new AbortController();  // of the message that is open
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener("close", () => { closed.abort(); if (document.activeElement === document.body) document.getElementById("main").focus({ preventScroll: true }); });

// Draws again if anything but the body (which never changes) is new.
async function look(view) {
  if (!view.shown) return load(view);
  const { body, body_base64, is_body_cut, ...rest } = await get("/v1/message", { handle: view.handle, body_limit: 0 }, view.signal);
  if (view.isUnsure) { view.isUnsure = false; view.said = null; view.shown = ""; }
  if (view.signal.aborted || wordsOf(rest) === view.shown || (view.isMoving && rest.state === "pending")) return;
  await load(view);
}

async function load(view) {
  const message = await get("/v1/message", { handle: view.handle, body_limit: view.bodyLimit }, view.signal);
  if (view.signal.aborted) return;
  const { body, body_base64, is_body_cut, ...rest } = message;
  view.handle = message.handle;
  view.shown = wordsOf(rest);
  draw(view, message);
}

const closeButton = () => h("button.quiet", { onclick: () => dialog.close(), "aria-label": "Close" }, "✕");

const BADGES = { pending: "badge", released: "badge plain", cancelled: "badge warn" };

function draw(view, message) {
  view.times = [];
  view.isMoving = false;
  view.note = h("div", noteOf(view.said));
  const title = message.keys.join(", ") || message.message_id || "A damaged message";
  fill(dialog, h("div.inner",
    h("header",
      h("div", h("h1", { id: "message-title", class: "cut", style: { "max-width": "100%" } }, title), h("p.dim", h("span", { class: BADGES[message.state] }, message.state), " ", message.topic)),
      closeButton()),
    actions(view, message),
    view.note,
    h("section", h("h3", "Body"), message.is_damaged ? h("p.note.bad", { role: "alert" }, "The bytes of this message on disk are damaged. It will not be delivered. The facts below are from the index.") : bodyView(message, view.how, (how) => { view.how = how; }, () => { view.bodyLimit = message.body_size; return load(view); })),
    h("section", h("h3", "Facts"), facts(view, message)),
    properties("Properties", message.properties),
    properties("Added by the broker", message.broker_properties),
    h("section", h("h3", { style: { "margin-bottom": "8px" } }, "History"), timeline(view, message))));
}

const properties = (title, named) => Object.keys(named).length ? h("section", h("h3", title), h("dl.facts", Object.entries(named).map(([key, value]) => [h("dt.mono", key), h("dd.mono", value)]))) : null;

const noteOf = (said) => said && h("p", { class: `note ${said[1]}`, role: said[1] === "bad" ? "alert" : "status" }, prose(said[0]));

// A due time that counts down by itself.
function due(view, message, tag) {
  const text = () => `${exact(message.deliver_at_ms)}${message.state === "pending" ? ` · ${until(message.deliver_at_ms, now())}` : ""}`;
  const element = h(tag, text());
  view.times.push([element, text]);
  return element;
}

function facts(view, message) {
  const rows = [
    ["Waits for", message.waits_for ? waitsNote([message]) : ""],
    ["Keys", message.keys.join(", ")],
    ["Tag", message.tag],
    ["Message group", message.message_group],
    ["Level", message.level ? String(message.level) : ""],
    ["Id", message.message_id],
    ["Size", `${bytes(message.size)} stored, body ${bytes(message.body_size)}`],
    ["In its topic", message.offset === null ? "" : `queue ${message.queue}, offset ${count(message.offset)}${message.via ? `, released via ${message.via}` : ""}${message.rolls ? `, rolled ${message.rolls === 1 ? "once" : `${count(message.rolls)} times`}` : ""}`],
  ];
  return h("dl.facts", { style: { "margin-top": "8px" } }, h("dt", "Due"), due(view, message, "dd"), rows.filter(([, text]) => text).map(([name, text]) => [h("dt", name), h("dd", text)]));
}

function timeline(view, message) {
  const dueMs = message.deliver_at_ms;
  // Lateness counts from the time it was stored or moved, where its due time was past by then.
  const knownMs = Math.max(dueMs, ...message.history.filter((event) => event.what === "stored" || event.what === "rescheduled").map((event) => event.at_ms ?? 0));
  const words = {
    stored: (event) => ["Stored", event.deliver_at_ms ? `due ${exact(event.deliver_at_ms)}` : ""],
    rescheduled: (event) => ["Rescheduled", `now due ${exact(event.deliver_at_ms)}`],
    kept: () => ["Kept past the log's retention", "copied to the end of the log, same due time"],
    released: (event) => ["Released into its topic", event.at_ms === null ? "time unknown: its place in the queue is past the retention" : event.at_ms <= knownMs ? "on time" : `${millis(event.at_ms - knownMs)} after ${knownMs > dueMs ? "it was stored or rescheduled" : "its due time"}`],
    cancelled: (event) => ["Cancelled", event.at_ms === null ? "never to be released · time unknown: too much was written since" : "never to be released"],
  };
  const items = message.history.map((event) => {
    const [what, detail] = (words[event.what] || (() => [event.what, ""]))(event);
    return h("li", h("div", h("strong", what), h("div.dim.small", [event.at_ms === null ? null : exact(event.at_ms), detail].filter(Boolean).join(" · "))));
  });
  const groups = message.groups.map((group) => h("li", { class: group.standing === "waiting" ? "todo" : "" }, h("div", h("strong", { waiting: `Not received by group ${group.group} yet`, taken: `Received by group ${group.group}`, settled: `Acked by group ${group.group}` }[group.standing]), group.attempt ? h("div.dim.small", `attempt ${group.attempt}`) : null)));
  const ahead = message.state === "pending" ? [h("li.todo", h("div", h("strong", "Due"), due(view, message, "div.dim.small")))] : [];
  return h("ul.timeline", items, groups, ahead);
}

function actions(view, message) {
  if (message.state !== "pending") return null;
  if (!view.may("cancel")) return h("p.note", "Read only: your token does not allow cancel and reschedule.");
  const more = h("div");
  const run = async (button, action) => {
    button.disabled = true;
    try {
      view.said = await action();
      view.onChange();
    } catch (error) {
      view.isUnsure = error.code === "unreachable";
      view.said = [view.isUnsure ? `${error.message} Whether it was done shows here as soon as it answers.` : error.message, "bad"];
      fill(view.note, noteOf(view.said));
    }
    button.disabled = false;
    await load(view).catch(() => {});  // the next refresh draws it
  };
  const cancel = h("button.danger", {
    onclick: () => {
      if (!cancel.classList.contains("sure")) { cancel.classList.add("sure"); cancel.textContent = "Cancel this message?"; return; }
      run(cancel, async () => SAID[(await post("/v1/cancel", { handles: [view.handle] })).answers[0]]);
    },
    onblur: () => { cancel.classList.remove("sure"); cancel.textContent = "Cancel"; },
  }, "Cancel");
  const release = h("button", { onclick: () => run(release, () => move(view, { delay_ms: 0 }, true)) }, "Release now");
  const reschedule = h("button", { "aria-expanded": "false", onclick: () => { const isOpen = more.childElementCount > 0; view.isMoving = !isOpen; fill(more, isOpen ? null : rescheduleForm(view, message, run)); reschedule.setAttribute("aria-expanded", String(!isOpen)); more.querySelector("input")?.focus(); } }, "Reschedule");
  return h("div", h("div.buttons", release, reschedule, cancel), more);
}

async function move(view, where, isNow = false) {
  const { answer, deliver_at_ms: at, handle } = (await post("/v1/reschedule", { handles: [view.handle], ...where })).answers[0];
  if (answer !== "moved") return SAID[answer];
  view.handle = handle;
  return isNow ? ["Released now.", ""] : [`Rescheduled to ${exact(at)}.`, ""];
}

function rescheduleForm(view, message, run) {
  const at = h("input", { type: "datetime-local", step: "1", id: "reschedule-at", value: toInput(Math.max(message.deliver_at_ms, now())), required: true });
  const save = h("button.main", { type: "submit" }, "Move");
  const shift = (label, ms) => { const button = h("button.small", { type: "button", onclick: () => run(button, () => move(view, { by_ms: ms })) }, label); return button; };
  return h("form.form", { style: { "margin-top": "12px" }, onsubmit: (event) => { event.preventDefault(); run(save, () => move(view, { deliver_at_ms: fromInput(at.value) })); } },
    h("div.line", h("label.field", { for: "reschedule-at" }, "New due time", at), h("div.buttons", save)),
    h("div.buttons", h("span.dim.small", "or move it later by"), shift("10 min", 600_000), shift("1 h", 3_600_000), shift("1 day", 86_400_000)));
}

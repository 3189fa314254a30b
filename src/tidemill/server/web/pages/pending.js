// Pending: search pending messages by topic, key and due time; open one; cancel or move all that match.

import { h, fill, say, prose, once } from "../dom.js";
import { get, post, now } from "../api.js";
import { section, empty } from "../live.js";
import { count, bytes, brief, span, until, fromInput, toInput, exact } from "../format.js";
import { topicSelect } from "../picks.js";

const FIRST = 50;
const MORE = 200;
const HOUR_MS = 3_600_000;
const RELEASED_WITHIN_MS = 300;  // a row is looked at again so long after its due time
const LOOK_AGAIN_MS = 1000;
const KEY_SHOWN = 40;

const messages = (n) => `${count(n)} ${n === 1 ? "message" : "messages"}`;

export function page({ signal, query, open, may, go }) {
  const wanted = { topic: query.topic || "", key: query.key || "", from: query.from || "", to: query.to || "", limit: FIRST };
  const list = h("div");
  const total = h("span.dim");
  const many = h("div.buttons");

  const field = (id, label, input) => h("label.field", { for: id }, label, input);
  const topic = topicSelect({ id: "search-topic", chosen: wanted.topic, signal });
  const key = h("input", { id: "search-key", type: "search", placeholder: "e.g. order-17", value: wanted.key, maxlength: 256 });
  const from = h("input", { id: "search-from", type: "datetime-local", step: "1", value: wanted.from });
  const to = h("input", { id: "search-to", type: "datetime-local", step: "1", value: wanted.to });
  const form = h("form.filters", {
    onsubmit: (event) => {
      event.preventDefault();
      const chosen = { topic: topic.value, key: key.value.trim(), from: from.value, to: to.value };
      const parts = Object.entries(chosen).filter(([, value]) => value);
      const hash = parts.length ? `#/pending?${new URLSearchParams(parts)}` : "#/pending";
      if (location.hash === hash) part.restart(); else go(hash);
    },
  }, field("search-topic", "Topic", topic), field("search-key", "Key", key), field("search-from", "Due from", from), field("search-to", "Due before", to),
  h("div.buttons", h("button.main", { type: "submit" }, "Search"), h("button", { type: "button", onclick: () => go("#/pending") }, "Clear")));

  // What was due after the last answer may be released by now: its row says so, and the list is requested again soon
  // after its due time. What was due before that answer and still in it is late.
  const times = [];  // [element, due]: rewritten every second without a request
  let asOf = 0;
  const left = (due) => (now() < due ? until(due, now()) : due > asOf || now() - due < LOOK_AGAIN_MS ? "due now" : `overdue by ${span(now() - due)}`);
  const tick = setInterval(() => times.forEach(([element, due]) => say(element, left(due))), 1000);
  const nextDue = () => Math.min(...times.map(([, due]) => due).filter((due) => due > asOf));
  signal.addEventListener("abort", () => clearInterval(tick));

  const isFiltered = wanted.topic || wanted.key || wanted.from || wanted.to;
  const filter = { topic: wanted.topic, key: wanted.key, from_ms: fromInput(wanted.from), to_ms: fromInput(wanted.to) };
  const part = section(list, {
    signal,
    every: 3000,
    isStill: true,
    sooner: () => Math.max(LOOK_AGAIN_MS, nextDue() - now() + RELEASED_WITHIN_MS),
    load: async (stop) => {
      const found = await get("/v1/pending", { ...filter, limit: wanted.limit }, stop);
      asOf = found.now_ms;
      return found;
    },
    draw: ({ pending }) => {
      times.length = 0;
      if (!pending.length) {
        fill(list, isFiltered
          ? empty("No pending message matches", "It may have been released or cancelled, or its key differs (keys are case-sensitive).", h("button", { onclick: () => go("#/pending") }, "Show all"))
          : empty("No pending messages", "Messages sent with a delay or a due time are listed here until they are released.", h("a", { href: "#/schedule" }, "Schedule a message")));
        return;
      }
      fill(list, table(pending, Boolean(wanted.topic), (handle) => open(handle, () => { part.refresh(); figures.refresh(); }), left, times), pending.length >= wanted.limit && wanted.limit < 10_000
        ? h("div.state", h("button", { onclick: () => { wanted.limit += MORE; part.refresh(); }, "data-focus": "more" }, `Show ${MORE} more`)) : null);
    },
  });
  const figures = section(h("div"), { signal, every: 2000, load: (stop) => get("/v1/pending/count", filter, stop), draw: ({ messages: n }) => {
    say(total, isFiltered ? `${messages(n)} ${n === 1 ? "matches" : "match"}` : messages(n));
    total.dataset.pending = String(n);
  } });
  if (may("cancel")) fill(many, manyButtons(wanted, () => { part.refresh(); figures.refresh(); }));
  if (query.focus) requestAnimationFrame(() => key.focus());

  return h("div.page",
    h("div.head", h("h1", "Pending"), total, h("span.grow"), many),
    h("section.panel", form),
    h("section.panel.flush", list));
}

// On a phone the topic is left out where it was chosen: it says the same in every row.
function table(pending, isTopicKnown, open, leftOf, times) {
  const at = now();
  const topicClass = isTopicKnown ? "nowrap spare" : "nowrap";
  return h("div.tablewrap", h("table", { id: "pending-table" },
    h("thead", h("tr", h("th", "Due"), h("th", ""), h("th", "Key"), h("th", { class: topicClass }, "Topic"), h("th.spare", "Tag"), h("th.spare", "Id"), h("th.num.spare", "Size"))),
    h("tbody", pending.map((message) => {
      const left = h("td.dim.nowrap", leftOf(message.deliver_at_ms));
      times.push([left, message.deliver_at_ms]);
      return h("tr.opens", { onclick: () => open(message.handle) },
        h("td.nowrap", h("button.link", { type: "button", "data-focus": message.handle, title: exact(message.deliver_at_ms) }, brief(message.deliver_at_ms, at))),
        left, h("td.cut", message.keys.join(", ")), h("td", { class: `${topicClass} cut`, title: message.topic }, message.topic), h("td.spare", message.tag), h("td.mono.cut.dim.spare", message.message_id), h("td.num.spare", bytes(message.size)));
    }))));
}

// Cancels or moves all that match a topic with a key or a range of due times. The first press counts them and says
// how many of what; the second does it.
function manyButtons(wanted, onDone) {
  const isRange = wanted.from && wanted.to;
  if (!wanted.topic || !(wanted.key || isRange) || (wanted.key && (wanted.from || wanted.to))) return null;
  const which = wanted.key ? { topic: wanted.topic, key: wanted.key } : { topic: wanted.topic, from_ms: fromInput(wanted.from), to_ms: fromInput(wanted.to) };
  const key = wanted.key.length > KEY_SHOWN ? `${wanted.key.slice(0, KEY_SHOWN)}…` : wanted.key;
  const what = `of ${wanted.topic} ${wanted.key ? `with key ${key}` : `due from ${exact(which.from_ms).slice(0, 19)} to ${exact(which.to_ms).slice(0, 19)}`}`;
  const said = h("span.dim", { role: "status" });
  const cancel = confirmed(said, "danger", "Cancel all", which, (n) => `Cancel ${messages(n)} ${what}?`, async () => `${messages((await post("/v1/cancel", which)).cancelled)} cancelled`, onDone);
  const later = confirmed(said, "plain", "All 1 h later", which, (n) => `Move ${messages(n)} ${what} by 1 h?`, async () => `${messages((await post("/v1/reschedule", { ...which, by_ms: HOUR_MS })).moved)} moved by 1 h`, onDone);
  return [said, later, cancel];
}

// A button that asks `question(count)` at the first press and runs `work` at the second; leaving it takes it back.
function confirmed(said, style, label, which, question, work, onDone) {
  let isLeft = false;
  const press = async () => {
    const isSure = button.classList.contains("sure");
    if (!isSure) {
      isLeft = false;
      const { messages: n } = await get("/v1/pending/count", which);
      if (!n) { say(said, "no pending message matches"); return; }
      if (isLeft) return;
      button.classList.add("sure");
      say(button, question(n));
      return;
    }
    say(said, await work());
    button.blur();
    takeBack();
    onDone();
  };
  const takeBack = () => { isLeft = true; button.classList.remove("sure"); say(button, label); };
  const button = h("button", {
    class: style,
    onclick: () => once(button, () => press().catch((error) => { fill(said, prose(error.message)); takeBack(); onDone(); })),
    onblur: takeBack,
  }, label);
  return button;
}

export const hashFor = (topic, fromMs, toMs) => `#/pending?${new URLSearchParams({ ...(topic ? { topic } : {}), from: toInput(fromMs), to: toInput(toMs) })}`;

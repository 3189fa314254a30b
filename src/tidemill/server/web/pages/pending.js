// Pending: search what waits by topic, key and due time; open a message; cancel or move many at once.

import { h, fill, say, prose } from "../dom.js";
import { get, post, now } from "../api.js";
import { section, empty } from "../live.js";
import { count, bytes, brief, until, fromInput, toInput, exact } from "../format.js";
import { topicSelect } from "../picks.js";

const FIRST = 50;
const MORE = 200;

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

  const times = [];  // [element, due]: rewritten every second without asking anybody
  const tick = setInterval(() => times.forEach(([element, due]) => say(element, until(due, now()))), 1000);
  signal.addEventListener("abort", () => clearInterval(tick));

  const isFiltered = wanted.topic || wanted.key || wanted.from || wanted.to;
  const part = section(list, {
    signal,
    every: 3000,
    isStill: true,
    load: (stop) => get("/v1/pending", { topic: wanted.topic, key: wanted.key, from_ms: fromInput(wanted.from), to_ms: fromInput(wanted.to), limit: wanted.limit }, stop),
    draw: ({ pending }) => {
      times.length = 0;
      if (!pending.length) {
        fill(list, isFiltered
          ? empty("Nothing that waits fits this search", "It may have been released or cancelled, or its key is written differently (keys are compared letter by letter).", h("button", { onclick: () => go("#/pending") }, "Show everything"))
          : empty("Nothing waits", "Messages that were sent with a delay or a time stand here until they fall due.", h("a", { href: "#/schedule" }, "Schedule a message")));
        return;
      }
      fill(list, table(pending, Boolean(wanted.topic), (handle) => open(handle, () => { part.refresh(); figures.refresh(); }), times), pending.length >= wanted.limit && wanted.limit < 10_000
        ? h("div.state", h("button", { onclick: () => { wanted.limit += MORE; part.refresh(); }, "data-focus": "more" }, `Show ${MORE} more`)) : null);
    },
  });
  const figures = section(h("div"), { signal, every: 2000, load: (stop) => (wanted.topic ? get("/v1/topics", {}, stop) : get("/v1/status", {}, stop)), draw: (found) => {
    const pending = wanted.topic ? found.topics.find((one) => one.name === wanted.topic)?.pending ?? 0 : found.pending;
    say(total, `${count(pending)} waiting${wanted.topic ? ` in ${wanted.topic}` : ""}`);
    total.dataset.pending = String(pending);
  } });
  if (may("cancel")) fill(many, manyButtons(wanted, () => { part.refresh(); figures.refresh(); }));
  if (query.focus) requestAnimationFrame(() => key.focus());

  return h("div.page",
    h("div.head", h("h1", "Pending"), total, h("span.grow"), many),
    h("section.panel", form),
    h("section.panel.flush", list));
}

// On a phone the topic is left out where it was chosen: it says the same in every row.
function table(pending, isTopicKnown, open, times) {
  const at = now();
  const topicClass = isTopicKnown ? "nowrap spare" : "nowrap";
  return h("div.tablewrap", h("table", { id: "pending-table" },
    h("thead", h("tr", h("th", "Due"), h("th", ""), h("th", "Key"), h("th", { class: topicClass }, "Topic"), h("th.spare", "Tag"), h("th.spare", "Id"), h("th.num.spare", "Size"))),
    h("tbody", pending.map((message) => {
      const left = h("td.dim.nowrap", until(message.deliver_at_ms, at));
      times.push([left, message.deliver_at_ms]);
      return h("tr.opens", { onclick: () => open(message.handle) },
        h("td.nowrap", h("button.link", { type: "button", "data-focus": message.handle, title: exact(message.deliver_at_ms) }, brief(message.deliver_at_ms, at))),
        left, h("td.cut", message.keys.join(", ")), h("td", { class: `${topicClass} cut`, title: message.topic }, message.topic), h("td.spare", message.tag), h("td.mono.cut.dim.spare", message.message_id), h("td.num.spare", bytes(message.size)));
    }))));
}

// Cancels or moves everything that a search by topic with a key or a range finds; twice asked, once done.
function manyButtons(wanted, onDone) {
  const isRange = wanted.from && wanted.to;
  if (!wanted.topic || !(wanted.key || isRange) || (wanted.key && (wanted.from || wanted.to))) return null;
  const which = wanted.key ? { topic: wanted.topic, key: wanted.key } : { topic: wanted.topic, from_ms: fromInput(wanted.from), to_ms: fromInput(wanted.to) };
  const said = h("span.dim", { role: "status" });
  const cancel = h("button.danger", {
    onclick: async () => {
      if (!cancel.classList.contains("sure")) { cancel.classList.add("sure"); cancel.textContent = "Cancel all that fit?"; return; }
      cancel.disabled = true;
      try {
        said.textContent = `${count((await post("/v1/cancel", which)).cancelled)} cancelled`;
      } catch (error) {
        fill(said, prose(error.message));
      }
      cancel.disabled = false;
      cancel.blur();
      onDone();
    },
    onblur: () => { cancel.classList.remove("sure"); cancel.textContent = "Cancel all"; },
  }, "Cancel all");
  const later = h("button", {
    onclick: async () => {
      later.disabled = true;
      try {
        said.textContent = `${count((await post("/v1/reschedule", { ...which, by_ms: 3_600_000 })).moved)} moved by 1 h`;
      } catch (error) {
        fill(said, prose(error.message));
      }
      later.disabled = false;
      onDone();
    },
  }, "All 1 h later");
  return [said, later, cancel];
}

export const hashFor = (topic, fromMs, toMs) => `#/pending?${new URLSearchParams({ ...(topic ? { topic } : {}), from: toInput(fromMs), to: toInput(toMs) })}`;

// Topics and groups: counts, backlog and lag; create, pause and resume topics.

import { h, fill, toast, prose, once } from "../dom.js";
import { get, post } from "../api.js";
import { section, empty } from "../live.js";
import { count, short } from "../format.js";
import { deadLetters } from "../dead_letters.js";

const TYPES = ["mixed", "delay", "normal", "fifo", "transaction"];
const isInternal = (name) => /^%(RETRY|DLQ)%/.test(name);

export function page({ signal, may }) {
  const topicBox = h("div");
  const groupBox = h("div");
  const formBox = h("div");
  const topics = section(topicBox, { signal, every: 3000, isStill: true, load: loadTopics, draw: ({ topics: found, held }) => drawTopics(topicBox, found, new Map(held), may, () => topics.refresh()) });
  section(groupBox, {
    signal,
    every: 3000,
    isStill: true,
    load: async (stop) => {
      const [{ groups }, { topics: all }] = await Promise.all([get("/v1/groups", {}, stop), get("/v1/topics", {}, stop)]);
      return { groups, all };
    },
    draw: ({ groups, all }) => drawGroups(groupBox, groups, all),
  });
  const create = h("button", { "aria-expanded": "false", onclick: () => {
    const isOpen = formBox.childElementCount > 0;
    fill(formBox, isOpen ? null : createForm(() => { fill(formBox); create.setAttribute("aria-expanded", "false"); topics.refresh(); }));
    create.setAttribute("aria-expanded", String(!isOpen));
    formBox.querySelector("input")?.focus();
  } }, "New topic");

  return h("div.page",
    h("div.head", h("h1", "Topics & groups"), h("span.grow"), may("admin") ? create : h("span.badge.plain", "read only")),
    formBox,
    h("section.panel.flush", h("header", h("h2", "Topics")), topicBox),
    h("section.panel.flush", h("header", h("h2", "Consumer groups")), groupBox),
    deadLetters({ signal, may }));
}

// Topics, and how many of each are due and held back: by a pause or its own limit.
async function loadTopics(stop) {
  const [{ topics }, { waits }] = await Promise.all([get("/v1/topics", {}, stop), get("/v1/status", {}, stop)]);
  const held = new Map();  // a topic may be called "constructor"
  for (const wait of waits) if (wait.topic) held.set(wait.topic, (held.get(wait.topic) || 0) + wait.messages);
  return { topics, held: [...held] };
}

function drawTopics(box, topics, held, may, refresh) {
  const own = topics.filter((topic) => !isInternal(topic.name)).sort((a, b) => b.pending - a.pending || a.name.localeCompare(b.name));
  if (!own.length) { fill(box, empty("There are no topics yet", "The first message to a topic creates it. You can also create one here.", h("a", { href: "#/schedule" }, "Schedule a message"))); return; }
  fill(box, h("div.tablewrap", h("table", { id: "topic-table" },
    h("thead", h("tr", h("th", "Topic"), h("th.spare", "Type"), h("th.num.spare", "Queues"), h("th.num", { title: "waiting for their due time, or held back" }, "Pending"), h("th.num.spare", { title: "due, and held by a pause or a rate limit" }, "Held back"), h("th.num.spare", "Sent"), h("th.num.spare", "Released"), h("th.num.spare", "Cancelled"), h("th.num.spare", "In topic"), h("th", ""))),
    h("tbody", own.map((topic) => h("tr", { "data-topic": topic.name },
      h("td", h("a.cut", { title: topic.name, href: `#/pending?${new URLSearchParams({ topic: topic.name })}` }, topic.name), topic.is_paused ? [" ", h("span.badge.warn", "paused")] : null, topic.release_rate_max ? [" ", h("span.badge.plain", `max ${count(topic.release_rate_max)}/s`)] : null),
      h("td.dim.spare", topic.type), h("td.num.spare", count(topic.queues)), h("td.num", count(topic.pending)), h("td.num.spare", count(held.get(topic.name) || 0)), h("td.num.spare", short(topic.sent)), h("td.num.spare", short(topic.released)), h("td.num.spare", short(topic.cancelled)), h("td.num.spare", short(topic.visible)),
      h("td.num", may("admin") ? pauseButton(topic, refresh) : null)))))));
}

function pauseButton(topic, refresh) {
  const verb = topic.is_paused ? "resume" : "pause";
  const button = h("button.small", {
    "data-focus": `pause ${topic.name}`,
    "aria-label": `${verb === "pause" ? "Pause" : "Resume"} ${topic.name}`,
    onclick: () => once(button, async () => {
      try {
        await post(`/v1/topics/${encodeURIComponent(topic.name)}/${verb}`, {});
        toast(verb === "pause" ? `${topic.name} is paused: due messages wait` : `${topic.name} is resumed`);
      } catch (error) {
        toast(error.message);
      }
      refresh();
    }),
  }, verb === "pause" ? "Pause" : "Resume");
  return button;
}

function drawGroups(box, groups, topics) {
  if (!groups.length) { fill(box, empty("No consumer groups yet", h("span", "A group is created when a consumer first receives: ", h("code.nowrap", "tidemill receive TOPIC --group G")))); return; }
  const waiting = Object.fromEntries(topics.map((topic) => [topic.name, topic.pending]));
  const rows = groups.flatMap((group) => {
    const names = Object.keys(group.lag).filter((name) => !isInternal(name)).sort();
    return (names.length ? names : [""]).map((name, i) => h("tr",
      h("td", i === 0 ? [group.name, group.is_fifo ? [" ", h("span.badge.plain", "fifo")] : null] : ""),
      h("td", name), h("td.num", name ? count(group.lag[name]) : ""), h("td.num", name ? count(Object.hasOwn(group.unsettled, name) ? group.unsettled[name] : 0) : ""),
      h("td.num", i === 0 ? count(waiting[`%RETRY%${group.name}`] || 0) : ""), h("td.num.spare", i === 0 ? count(group.max_attempts) : "")));
  });
  fill(box, h("div.tablewrap", h("table", h("thead", h("tr", h("th", "Group"), h("th", "Topic"), h("th.num", { title: "in the topic, not delivered yet" }, "Lag"), h("th.num", { title: "delivered, not acked yet" }, "In flight"), h("th.num", { title: "waiting for another attempt" }, "Retries"), h("th.num.spare", "Max. attempts"))), h("tbody", rows))));
}

function createForm(onDone) {
  const name = h("input", { id: "new-topic", required: true, maxlength: 127, placeholder: "order-timeouts" });
  const type = h("select", { id: "new-type" }, TYPES.map((one) => h("option", { value: one }, one)));
  const queues = h("input", { id: "new-queues", type: "number", min: 1, max: 1024, placeholder: "default" });
  const problem = h("p.note.bad", { hidden: true, role: "alert" });
  const save = h("button.main", { type: "submit" }, "Create");
  return h("section.panel", h("form.form", {
    onsubmit: async (event) => {
      event.preventDefault();
      save.disabled = true;
      try {
        const made = await post("/v1/topics", { name: name.value.trim(), type: type.value, queues: queues.value ? Number(queues.value) : null });
        toast(`Topic ${made.name} created`);
        onDone();
      } catch (error) {
        problem.hidden = false;
        fill(problem, prose(error.message));
        save.disabled = false;
      }
    },
  }, h("div.line", h("label.field", { for: "new-topic" }, "Name", name), h("label.field", { for: "new-type" }, "Type", type), h("label.field", { for: "new-queues" }, "Queues", queues), h("div.buttons", save)), problem));
}

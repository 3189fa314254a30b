// The figures of the timer, from `/v1/figures`: work of its steps, their durations, delays and lateness by topic.

import { h, fill } from "./dom.js";
import { count, short, millis, span } from "./format.js";
import { quantile } from "./lateness.js";

const STAGES = {
  scan: ["Scan", "reads entries and selects those of the shard"],
  due: ["Due", "drains slots"],
  absorb: ["Absorb", "places timers into slots"],
  "hand-over": ["Hand over", "writes the ready file and the cursor"],
  release: ["Release", "one release record, from its plan to its last queue row"],
};
const STEPS = { embedded: ["Step, broker", "all stages of one shard"], spark: ["Step, Spark", "all shards together"] };
const OTHERS = "all others";
const TOPICS_SHOWN = 20;

const total = (counts) => counts.reduce((sum, value) => sum + value, 0);
const added = (rows) => rows.reduce((sum, row) => sum.map((value, i) => value + row[i]), rows[0].map(() => 0));
// A delay is written as its bucket: 30 s, 1 min, 1 d.
const asDelay = (ms) => (ms === null ? "–" : `≤ ${span(ms)}`);
const asLate = (ms) => (ms === null ? "–" : ms < 1 ? "< 1 ms" : `≤ ${millis(ms)}`);

// How often each stage ran and how long it took.
export function drawStages({ stages, steps, bounds_ms: bounds }, box) {
  const rows = [...stages.map((one) => [STAGES[one.name] || [one.name, ""], one]), ...steps.map((one) => [STEPS[one.name] || [one.name, ""], one])].filter(([, one]) => one.count);
  if (!rows.length) { fill(box, h("p.dim", "No step yet since the broker started.")); return; }
  fill(box, h("div.tablewrap", { style: { margin: "0 -16px -8px" } }, h("table.tight", h("thead", h("tr", h("th", "Stage"), h("th.num", "Count"), h("th.num", "Mean"), h("th.num", { title: "99 % took no longer" }, "p99"))),
    h("tbody", rows.map(([[name, what], one]) => h("tr", h("td.nowrap", { title: what }, name), h("td.num", short(one.count)), h("td.num", millis(one.sum_ms / one.count)), h("td.num", asLate(quantile(one.counts, bounds, 0.99)))))))));
}

// What the steps of all runners did with timers since the broker started.
export function drawWork({ work }, box) {
  const sum = (name) => count(total(work.map((one) => one[name])));
  const rows = [
    ["Absorbed", sum("absorbed"), "read by the timer and placed"],
    ["Handed over", sum("handed_over"), "given to the releaser, one lead before the due time"],
    ["Rolled", sum("rolled"), "how often a message was placed again because its slot came before its due time"],
    ["Already due", sum("already_due"), "absorbed and handed over in the same step"],
  ];
  fill(box, h("dl.facts", rows.map(([name, value, what]) => [h("dt", { title: what }, name), h("dd", value)])), h("p.small.dim", { style: { "margin-top": "12px" } }, "Since the broker started. Messages due within the lead and those of a delay level are not counted here."));
}

// Requested delays of all topics.
export function drawDelays({ topics, delay_bounds_ms: bounds }, box) {
  const asked = topics.length ? added(topics.map((one) => one.delays)) : [];
  const all = total(asked);
  if (!all) { fill(box, h("p.dim", "No timed message since the broker started.")); return; }
  const most = Math.max(...asked);
  const names = [...bounds.map((bound) => `≤ ${span(bound)}`), `> ${span(bounds[bounds.length - 1])}`];
  const first = asked.findIndex((value) => value);
  const last = asked.findLastIndex((value) => value);
  fill(box, h("div.buckets", { role: "table", "aria-label": "Messages by requested delay" }, names.slice(first, last + 1).map((name, i) => [
    h("span.dim.num", name),
    h("div.bar", { title: `${count(asked[first + i])} of ${count(all)}` }, asked[first + i] ? h("i", { style: { width: `${(100 * asked[first + i]) / most}%` } }) : null),
    h("span.num", count(asked[first + i])),
  ])));
}

// One row for each topic, the busiest first.
export function drawTopicFigures({ topics, delay_bounds_ms: delays, lateness_bounds_ms: late }, box) {
  const rows = topics.filter((one) => one.timed || one.immediate).sort((a, b) => b.timed - a.timed || b.immediate - a.immediate);
  if (!rows.length) { fill(box, h("p.dim", { style: { padding: "0 16px 12px" } }, "Nothing was sent yet.")); return; }
  fill(box, h("div.tablewrap", h("table", { id: "topic-figures" },
    h("thead", h("tr", h("th", "Topic"), h("th.num", { title: "messages with a later due time" }, "Timed"), h("th.num.spare", { title: "messages that were in their queue at once" }, "Immediate"), h("th.num.spare", { title: "50 % of the requested delays were no longer" }, "Delay p50"), h("th.num.spare", "Delay p99"), h("th.num.spare", "Late p50"), h("th.num", { title: "99 % were no later" }, "Late p99"))),
    h("tbody", rows.slice(0, TOPICS_SHOWN).map((one) => h("tr",
      h("td", one.topic === null ? h("span.dim", OTHERS) : h("span.cut", { title: one.topic }, one.topic)),
      h("td.num", short(one.timed)), h("td.num.spare", short(one.immediate)),
      h("td.num.spare", asDelay(quantile(one.delays, delays, 0.5))), h("td.num.spare", asDelay(quantile(one.delays, delays, 0.99))),
      h("td.num.spare", asLate(quantile(one.lateness, late, 0.5))), h("td.num", asLate(quantile(one.lateness, late, 0.99)))))))),
    rows.length > TOPICS_SHOWN ? h("p.small.dim", { style: { padding: "0 16px 12px" } }, `The ${TOPICS_SHOWN} busiest of ${count(rows.length)}; /metrics has the others.`) : null);
}

// Now: rates in and out, pending messages, lateness, the timer runner and the disk.

import { h, fill, say, prose } from "../dom.js";
import { get, now } from "../api.js";
import { drawHolds } from "../holds.js";
import { section } from "../live.js";
import { lines, stack } from "../chart.js";
import { short, rate, bytes, millis, span, time, count, until } from "../format.js";
import { quantile, difference, latenessOf } from "../lateness.js";
import { waitsNote, waitWords, unexplainedWords } from "../waits.js";

const SAMPLES = 900;
const RATE_OVER_MS = 5000;
const LATE_OVER = 8;  // samples of a second that a point of the lateness chart sums up
const MINUTE_MS = 60_000;
const MINUTES_AHEAD = 61;  // the hour ends within a minute, and what is due at its very end belongs to it

export function page({ signal, may }) {
  const tiles = h("section.panel.tiles", { "aria-label": "Figures" });
  const flow = h("div.chart");
  const late = h("div.chart");
  const next = h("div.chart");
  const peak = h("span.dim.small");
  const runner = h("div");
  const steps = h("div");
  const disk = h("div");
  const notes = h("div");

  const figures = new Map();
  const tile = (label, value, unit, note) => {
    let parts = figures.get(label);
    if (!parts) {
      parts = { value: h("span"), unit: h("span.unit"), note: h("div.sub") };
      figures.set(label, parts);
      tiles.append(h("div.tile", { "data-tile": label }, h("div.label", label), h("div.value", parts.value, parts.unit), parts.note));
    }
    say(parts.value, value); say(parts.unit, unit || ""); say(parts.note, note || "");
  };

  const pulse = { at: [], sent: [], released: [], lateness: [], bounds: [] };
  const take = (news) => {
    pulse.bounds = news.bounds_ms;
    for (const [own, theirs] of [["at", "at_ms"], ["sent", "sent"], ["released", "released"], ["lateness", "lateness"]]) {
      pulse[own] = pulse[own].concat(news[theirs]).slice(-SAMPLES);
    }
  };

  let flowChart = null;
  let lateChart = null;
  const drawPulse = () => {
    const at = pulse.at.slice(1).map((ms) => ms / 1000);
    const perSecond = (values) => values.slice(1).map((value, i) => Math.max(0, (value - values[i]) * 1000 / (pulse.at[i + 1] - pulse.at[i])));
    flowChart ||= lines(flow, [{ label: "in", tint: "--k2" }, { label: "out", tint: "--k1", isArea: true }], { height: 190, unit: (value) => rate(value), signal });
    flowChart.set([at, perSecond(pulse.sent), perSecond(pulse.released)]);
    lateChart ||= lines(late, [{ label: "p50", tint: "--k2" }, { label: "p99", tint: "--k1", isArea: true }], { height: 190, unit: millis, axisUnit: (value) => (value < 1 ? `${Number(value.toFixed(2))} ms` : millis(value)), signal });
    const windows = pulse.lateness.slice(1).map((row, i) => difference(row, pulse.lateness[Math.max(0, i - LATE_OVER)]));
    lateChart.set([at, windows.map((row) => quantile(row, pulse.bounds, 0.5)), windows.map((row) => quantile(row, pulse.bounds, 0.99))]);
  };

  const holds = h("div", { hidden: true });
  const figureSection = section(tiles, {
    signal,
    every: 2000,
    also: [flow, late, runner, disk],
    load: async (stop) => {
      const since = pulse.at.length ? pulse.at[pulse.at.length - 1] : 0;
      const [status, news] = await Promise.all([get("/v1/status", {}, stop), get("/v1/pulse", { since_ms: since }, stop)]);
      if (news.at_ms.length && since > news.at_ms[0]) for (const key of ["at", "sent", "released", "lateness"]) pulse[key] = [];
      take(news);
      return status;
    },
    draw: (status) => {
      if (!tiles.childElementCount) figures.clear();
      drawTiles(status, pulse, tile);
      drawPulse();
      drawRunner(runner, status);
      drawDisk(disk, status);
      drawHolds(holds, status, may, () => figureSection.refresh());
      drawNotes(notes, status);
    },
  });

  let nextChart = null;
  section(next, {
    signal,
    every: 10_000,
    load: (stop) => get("/v1/forecast/window", { from_ms: Math.floor(now() / MINUTE_MS) * MINUTE_MS, step_ms: MINUTE_MS, steps: MINUTES_AHEAD }, stop),
    draw: (found, box) => {
      nextChart ||= stack(box, { height: 150, signal, width: () => 60 });
      say(peak, peakWords(found));
      nextChart.set(found.due.map((_, i) => (found.from_ms + i * MINUTE_MS) / 1000), [{ label: "due", values: found.due }]);
    },
  });

  section(steps, { signal, every: 3000, load: (stop) => get("/v1/steps", {}, stop), draw: drawSteps });

  return h("div.page",
    h("div.head", h("h1", "Now")),
    holds,
    notes,
    tiles,
    h("div.cols",
      h("section.panel.c6", h("header", h("h2", "Messages per second"), h("span.grow"), h("div.legend", h("span", h("i.swatch", { style: { background: "var(--k2)" } }), "in"), h("span", h("i.swatch", { style: { background: "var(--k1)" } }), "out"))), flow),
      h("section.panel.c6", h("header", h("h2", "Lateness"), h("span.dim.small", `each point over ${LATE_OVER} s`), h("span.grow"), h("div.legend", h("span", h("i.swatch", { style: { background: "var(--k2)" } }), "p50"), h("span", h("i.swatch", { style: { background: "var(--k1)" } }), "p99"))), late)),
    h("section.panel", h("header", h("h2", "Due in the next hour"), h("span.grow"), peak, h("a.small", { href: "#/forecast" }, "Forecast")), next),
    h("div.cols.stretch",
      h("section.panel.c4", h("header", h("h2", "Timer runner")), runner),
      h("section.panel.c4", h("header", h("h2", "Last steps")), steps),
      h("section.panel.c4", h("header", h("h2", "Disk")), disk)));
}

// The fullest minute of the hour that is shown.
function peakWords({ due, from_ms: from }) {
  const most = Math.max(0, ...due);
  return most ? `fullest minute: ${short(most)} at ${time(from + due.indexOf(most) * MINUTE_MS).slice(0, 5)}` : "";
}

// What a running total grew by per second over the last few samples.
function recent(at, values) {
  const last = at.length - 1;
  let first = last;
  while (first > 0 && at[last] - at[first] < RATE_OVER_MS) first -= 1;
  return last > first ? Math.max(0, (values[last] - values[first]) * 1000 / (at[last] - at[first])) : 0;
}

function drawTiles(status, pulse, tile) {
  const late = latenessOf(pulse.lateness, pulse.bounds);
  const split = (text) => text.split(/ (?=[^ ]+$)/);
  const [pending, unit] = split(short(status.pending));
  tile("Pending", pending, unit, `${count(status.near + status.ready)} due soon`);
  tile("In", rate(recent(pulse.at, pulse.sent)), "/s", `${short(status.sent)} in total`);
  tile("Out", rate(recent(pulse.at, pulse.released)), "/s", `${short(status.released)} in total`);
  const [p99, ms] = split(late.p99);
  tile("Lateness p99", p99, ms, late.released ? `last 15 min · ${`p50 ${late.p50}`.replaceAll(" ", "\u00a0")}` : "no release in the last 15 min");
  const held = status.waits.reduce((sum, wait) => sum + wait.messages, 0);
  tile("Held back", short(held), "", held ? waitsNote(status.waits) : "nothing is held back");
  tile("Cancelled", short(status.cancelled), "", "in total");
}

const RUNNERS = { spark: "Spark", embedded: "Broker (embedded)" };

function drawRunner(box, { pipeline, now_ms: now }) {
  const isWell = pipeline.state === "ready" || pipeline.state === "running";
  const dot = pipeline.lag_ms > 0 ? "warn" : isWell ? "good" : "warn";
  fill(box, h("dl.facts",
    h("dt", "Runner"), h("dd", h("strong", RUNNERS[pipeline.runner] || pipeline.runner), ` for ${span(Math.max(1000, now - pipeline.since_ms))}`),
    h("dt", "State"), h("dd", h("i.dot", { class: `dot ${dot}`, style: { display: "inline-block", "margin-right": "8px" } }), pipeline.state),
    h("dt", "Lag"), h("dd", pipeline.lag_ms ? millis(pipeline.lag_ms) : "none"),
    h("dt", "Takeovers"), h("dd", count(pipeline.takeovers))),
    pipeline.problem ? h("p.note.warn", { style: { "margin-top": "12px" } }, prose(pipeline.problem)) : null);
}

function drawDisk(box, { disk }) {
  const whole = disk.log_bytes + disk.free_bytes;
  const share = whole ? disk.log_bytes / whole : 0;
  fill(box, h("dl.facts", h("dt", "Commit log"), h("dd", bytes(disk.log_bytes)), h("dt", "Free"), h("dd", bytes(disk.free_bytes))),
    h("div.bar", { style: { margin: "14px 0 8px" }, role: "img", "aria-label": `The commit log takes ${Math.round(share * 100)} % of the space it could use` }, h("i", { style: { width: `${Math.max(0.5, share * 100)}%` } })),
    h("p.small.dim", disk.is_full ? "Full: sends are refused, releases go on. Free some space." : disk.is_low ? "Nearly full: free some space before sends are refused." : "Enough free space."));
}

function damageWords({ frames, messages, pending }) {
  const held = pending ? ` ${count(pending)} of them are pending; retention keeps their part of the log until they are released or cancelled.` : "";
  return `The commit log is damaged in ${count(frames)} ${frames === 1 ? "place" : "places"}: ${count(messages)} ${messages === 1 ? "message is" : "messages are"} not delivered.${held} \`tidemill damaged\` lists them.`;
}

function sweptWords(swept) {
  return `${count(swept)} overdue ${swept === 1 ? "message was" : "messages were"} missing in the timer, found by a sweep and released. The cause is damaged timer files or faulty memory; the broker's log says when.`;
}

function drawNotes(box, status) {
  const notes = [];
  if (status.health?.last_fault) notes.push(["warn", `The broker recovered from a fault: ${status.health.last_fault}.`]);
  if (status.disk.is_full) notes.push(["bad", "The disk is full. Sends are refused until space is freed; releases and cancels go on."]);
  else if (status.disk.is_low) notes.push(["warn", "The disk is nearly full. Free space on it, or move the data directory to a larger disk."]);
  status.waits.forEach((wait) => notes.push(["warn", waitWords(wait, status.overdue, status.now_ms)]));
  const unexplained = unexplainedWords(status.overdue, status.now_ms);
  if (unexplained) notes.push(["bad", unexplained]);
  if (status.swept) notes.push(["warn", sweptWords(status.swept)]);
  if (status.damage?.frames) notes.push(["bad", damageWords(status.damage)]);
  if (status.is_clock_simulated) notes.push(["", "The clock is simulated; `tidemill advance 1h` moves it."]);
  if (!status.sent) notes.push(["", h("span", "Nothing was sent yet. ", h("a", { href: "#/schedule" }, "Schedule a message"), " or run ", h("code", 'tidemill send hello "hi" --delay 30s'), ".")]);
  fill(box, notes.map(([kind, text]) => h("p", { class: `note ${kind}`, style: { "margin-bottom": "8px" } }, typeof text === "string" ? prose(text) : text)));
  box.hidden = !notes.length;
}

function drawSteps({ steps, now_ms: now }, box) {
  if (!steps.length) { fill(box, h("p.dim", "No step yet. The timer takes its first step when a message is due later than the lead.")); return; }
  fill(box, h("div.tablewrap", { style: { margin: "0 -16px -8px" } }, h("table.tight", h("thead", h("tr", h("th", "At"), h("th", "By"), h("th.num", "Entries"), h("th.num", { title: "everything due before this was handed to the releaser" }, "Drained to"))),
    h("tbody", steps.slice(0, 4).map((step) => h("tr", h("td.nowrap", time(step.at_ms)), h("td", step.runner === "embedded" ? "broker" : step.runner), h("td.num", short(step.rows)), h("td.num", { title: until(step.drained_to_ms, now) }, time(step.drained_to_ms))))))));
}

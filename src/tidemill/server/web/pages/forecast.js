// Forecast: how many messages are due, per second to per week, by topic; drag in the chart, or click or tap a bar, to
// zoom in; buttons do the same for a keyboard.

import { h, fill } from "../dom.js";
import { get, now } from "../api.js";
import { section, empty } from "../live.js";
import { stack, legend } from "../chart.js";
import { count, short, moment, span } from "../format.js";
import { choice, topicSelect } from "../picks.js";

const S = 1000, MIN = 60 * S, H = 60 * MIN, D = 24 * H;
const RANGES = [["5m", "5 min", 5 * MIN], ["1h", "1 hour", H], ["1d", "1 day", D], ["7d", "1 week", 7 * D], ["60d", "60 days", 60 * D], ["1y", "1 year", 365 * D]];
const LADDER = [S, 5 * S, 15 * S, MIN, 5 * MIN, 15 * MIN, H, 6 * H, D, 7 * D];
const STEPS_WANTED = 130;

const stepFor = (ms) => LADDER.find((step) => ms / step <= STEPS_WANTED) || LADDER[LADDER.length - 1];
const NAMES = new Map([[S, "second"], [MIN, "minute"], [H, "hour"], [D, "day"], [7 * D, "week"]]);
const stepName = (step) => NAMES.get(step) || span(step);

// Days begin at the viewer's midnight, smaller steps at their own multiples.
function alignedStart(at, step) {
  if (step < D) return Math.floor(at / step) * step;
  const midnight = new Date(at);
  midnight.setHours(0, 0, 0, 0);
  return midnight.getTime();
}

export function page({ signal, query }) {
  const state = { range: query.range || "1h", topic: query.topic || "", zoom: [] };
  const chartBox = h("div.chart");
  const summary = h("section.panel.tiles", { "aria-label": "Totals" });
  const legendBox = h("div");
  const stepBox = h("span.dim.small");
  const current = () => { const { from_ms: from, step_ms: size, steps } = windowNow(); return [from, from + size * steps]; };
  const shift = (share) => { const [from, to] = current(); const by = (to - from) * share; state.zoom.splice(Math.max(0, state.zoom.length - 1), 1, [from + by, to + by]); again(); };
  const closer = () => { const [from, to] = current(); const fourth = (to - from) / 4; zoomTo((from + fourth) / 1000, (to - fourth) / 1000); };
  const moves = [["‹", "Earlier", () => shift(-0.5)], ["›", "Later", () => shift(0.5)], ["+", "Zoom in", closer]].map(([sign, name, onclick]) => h("button.small", { onclick, "aria-label": name, title: name }, sign));
  const back = h("button.small", { hidden: true, onclick: () => { state.zoom.pop(); again(); } }, "Zoom out");

  const windowNow = () => {
    const zoom = state.zoom[state.zoom.length - 1];
    const length = zoom ? zoom[1] - zoom[0] : RANGES.find(([name]) => name === state.range)[2];
    const step = stepFor(length);
    const start = zoom ? zoom[0] : now();
    const from = alignedStart(start, step);
    // A span from now includes its very end: what is due in exactly an hour is due in the next hour.
    const steps = zoom ? Math.ceil(length / step) : Math.floor((start + length - from) / step) + 1;
    return { from_ms: from, step_ms: step, steps: Math.max(1, steps) };
  };

  let chart = null;
  let step = MIN;
  const part = section(chartBox, {
    signal,
    every: 4000,
    load: (stop) => get("/v1/forecast/window", { ...windowNow(), topic: state.topic }, stop),
    draw: (found, box) => {
      step = found.step_ms;
      const total = found.due.reduce((sum, value) => sum + value, 0);
      drawTotals(summary, found, total);
      if (!total) {
        chart = null;
        const latest = found.later ? `${count(found.later)} are due later: choose a longer span.` : "Schedule a message, or send one with a delay.";
        fill(box, empty("Nothing is due in this span", latest, found.later ? null : h("a", { href: "#/schedule" }, "Schedule a message")));
        fill(legendBox);
      } else {
        const parts = found.topics.map(({ topic, due }) => ({ label: topic ?? "other topics", values: due, isOthers: topic === null }));
        if (!chart) { fill(box); chart = stack(box, { height: 340, signal, onZoom: zoomTo, width: () => step / 1000 }); }
        chart.set(found.due.map((_, i) => (found.from_ms + i * step) / 1000), parts);
        fill(legendBox, legend(parts));
      }
      stepBox.textContent = `per ${stepName(step)}`;
      back.hidden = !state.zoom.length;
    },
  });
  const again = () => { chart = null; part.restart(); };
  const zoomTo = (from, to) => {
    const start = Math.floor((from * 1000) / step) * step;
    const end = Math.ceil((to * 1000) / step) * step;
    if (step > S || end - start >= 2 * S) { state.zoom.push([start, Math.max(end, start + 10 * S)]); again(); }
  };

  const topics = topicSelect({ id: "forecast-topic", chosen: state.topic, signal, onchange: (event) => { state.topic = event.target.value; again(); } });
  topics.setAttribute("aria-label", "Topic");
  topics.style.width = "200px";
  return h("div.page",
    h("div.head", h("h1", "Forecast"), h("span.grow"), topics, choice("Span", RANGES, state.range, (range) => { state.range = range; state.zoom = []; again(); })),
    summary,
    h("section.panel", h("header", h("h2", "Messages due"), stepBox, h("span.grow"), h("span.dim.small", "drag, or click or tap a bar, to zoom in"), back, h("div.buttons", moves)), chartBox, legendBox));
}

function drawTotals(box, found, total) {
  const peak = Math.max(...found.due);
  const at = found.from_ms + found.due.indexOf(peak) * found.step_ms;
  const tile = (label, value, note) => h("div.tile", h("div.label", label), h("div.value", value), h("div.sub", note));
  fill(box,
    tile("In this span", short(total), `${span(found.step_ms * found.due.length)} from ${moment(found.from_ms).slice(5, 16)}`),
    tile("Fullest", short(peak), peak ? `${moment(at).slice(0, 16)}` : ""),
    tile("Earlier", short(found.before), found.before ? "overdue, or before this span" : "nothing is overdue"),
    tile("Later", short(found.later), "beyond this span"));
}

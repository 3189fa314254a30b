// Wheel: the timing wheel as three dials with moving hands; the darker a sector, the more is due in it.

import { h, svg, fill } from "../dom.js";
import { get, now } from "../api.js";
import { section, empty } from "../live.js";
import { count, short, moment, time, span, until } from "../format.js";
import { drawStages, drawWork } from "../figures.js";

const R = [[60, 96], [116, 156], [176, 226]];
const NAMES = ["minute", "hour", "window"];
const CENTRE = 250;

const point = (angle, radius) => [CENTRE + radius * Math.sin(angle), CENTRE - radius * Math.cos(angle)];

function sectorPath(from, to, inner, outer) {
  const [a, b, c, d] = [point(from, inner), point(from, outer), point(to, outer), point(to, inner)].map((p) => p.map((v) => v.toFixed(2)).join(" "));
  return `M${a} L${b} A${outer} ${outer} 0 0 1 ${c} L${d} A${inner} ${inner} 0 0 0 ${a}Z`;
}

// When a sector of a dial comes next: this turn if it is still ahead, else the next one.
function nextStart(dial, index, at) {
  const start = Math.floor(at / dial.turn_ms) * dial.turn_ms + index * dial.sector_ms;
  return start + dial.sector_ms > at ? start : start + dial.turn_ms;
}

export function page({ signal }) {
  const picture = h("div", { style: { position: "relative" } });
  const facts = h("div");
  const shards = h("div");
  const stages = h("div");
  const work = h("div");
  const hovered = h("p.dim.small", { style: { "text-align": "center", "min-height": "18px" }, "aria-live": "polite" }, "Hover over or tap a sector to see how many messages it holds.");
  let hands = [];

  const turn = () => {
    const at = now();
    hands.forEach(([line, turnMs]) => line.setAttribute("transform", `rotate(${((at % turnMs) / turnMs) * 360} ${CENTRE} ${CENTRE})`));
  };
  const timer = setInterval(turn, 250);
  signal.addEventListener("abort", () => clearInterval(timer));

  const draw = (wheel) => {
    if (!wheel.has_wheel) { fill(picture, empty("No timing wheel", "This broker keeps its timers in RocksDB, sorted by due time. The forecast shows what is due.", h("a", { href: "#/forecast" }, "Forecast"))); hands = []; fill(facts, h("p.dim", "No slots: timers are sorted by due time.")); drawShards(shards, wheel); return; }
    const at = wheel.now_ms;
    const parts = wheel.dials.map((dial, d) => {
      const [inner, outer] = R[d];
      const most = Math.max(1, ...dial.loads);
      const slice = (2 * Math.PI) / dial.loads.length;
      const sectors = dial.loads.map((load, i) => {
        const path = svg("path", { class: "sector", d: sectorPath(i * slice + slice * 0.06, (i + 1) * slice - slice * 0.06, inner, outer), "fill-opacity": load ? (0.16 + 0.84 * Math.sqrt(load / most)).toFixed(3) : "0.05" });
        const start = nextStart(dial, i, at);
        const words = `${dial.sector_ms < 60_000 ? time(start) : moment(start).slice(0, 16)} + ${span(dial.sector_ms)}: ${count(load)} ${load === 1 ? "message" : "messages"}`;
        path.addEventListener("pointerenter", () => { hovered.textContent = words; });
        return path;
      });
      return svg("g", { role: "img", "aria-label": `Dial of one ${NAMES[d]}: fullest sector ${count(most)}` }, sectors);
    });
    hands = wheel.dials.map((dial, d) => [svg("line", { class: "hand", x1: CENTRE, y1: CENTRE - R[d][0] + 3, x2: CENTRE, y2: CENTRE - R[d][1] - 3, "stroke-width": 3 - d * 0.4 }), dial.turn_ms]);
    const window = span(wheel.dials[2].turn_ms);
    fill(picture, svg("svg", { class: "wheel", viewBox: "0 0 500 500" },
      parts,
      hands.map(([line]) => line),
      svg("text", { class: "big", x: CENTRE, y: CENTRE - 6 }, short(wheel.timers)),
      svg("text", { x: CENTRE, y: CENTRE + 16 }, "in the wheel"),
      svg("text", { x: CENTRE, y: CENTRE - 106 }, "1 min"),
      svg("text", { x: CENTRE, y: CENTRE - 166 }, "1 h"),
      svg("text", { x: CENTRE, y: CENTRE - 236 }, window)));
    turn();
    drawFacts(facts, wheel);
    drawShards(shards, wheel);
  };

  section(picture, { signal, every: 3000, load: (stop) => get("/v1/wheel", {}, stop), draw });
  section(stages, {
    signal,
    every: 3000,
    also: [work],
    load: (stop) => get("/v1/figures", {}, stop),
    draw: (figures) => { drawStages(figures, stages); drawWork(figures, work); },
  });
  return h("div.page",
    h("div.head", h("h1", "Wheel"), h("p", "Every message due later than the lead is in the slot of its due time. The inner dial is the next minute, the middle one the next hour, the outer one the whole reach of the wheel. Messages due beyond that are in an earlier slot and are placed again when it comes.")),
    h("div.cols",
      h("section.panel.c7", picture, hovered),
      h("div.c5", { style: { display: "grid", gap: "var(--gap)" } },
        h("section.panel", h("header", h("h2", "The wheel")), facts),
        h("section.panel", h("header", h("h2", "Shards")), shards))),
    h("div.cols.stretch",
      h("section.panel.c7", h("header", h("h2", "Stage durations")), stages),
      h("section.panel.c5", h("header", h("h2", "Timer work")), work)));
}

function drawFacts(box, wheel) {
  const rows = [
    ["Pending in its slots", count(wheel.timers)],
    ["Slots in use", `${count(wheel.filled_slots)} of ${count(wheel.window_slots)}`],
    ["Fullest slot", wheel.fullest_at_ms ? `${count(wheel.fullest)} at ${moment(wheel.fullest_at_ms)}` : "none"],
    ["Tick", `${wheel.tick_ms} ms`],
    ["Ring", `${count(wheel.slots)} slots, one lap in ${span(wheel.slots * wheel.tick_ms)}`],
    ["Reach", span(wheel.window_slots * wheel.tick_ms)],
  ];
  fill(box, h("dl.facts", rows.map(([name, value]) => [h("dt", name), h("dd", value)])), h("p.small.dim", { style: { "margin-top": "12px" } }, "Cancelled messages are not counted. Messages due within the lead never enter a slot. Where messages of a minute were cancelled, the counts of its seconds are estimates."));
}

function drawShards(box, wheel) {
  fill(box, h("div.tablewrap", { style: { margin: "0 -16px -8px" } }, h("table.tight", h("thead", h("tr", h("th", "Shard"), h("th.num", "Steps"), h("th.num", "Absorbed"), h("th.num", { title: "everything due before this was handed to the releaser" }, "Drained to"))),
    h("tbody", wheel.shards.map((shard, i) => h("tr", h("td", String(i)), h("td.num", count(shard.step)), h("td.num", count(shard.absorbed_seq)), h("td.num", { title: shard.drained_to_ms ? until(shard.drained_to_ms, wheel.now_ms) : "" }, shard.drained_to_ms ? time(shard.drained_to_ms) : "not yet")))))));
}

// History: lateness of the releases, as a histogram and as a heat map over time; requested delays; both by topic.

import { h, fill } from "../dom.js";
import { get } from "../api.js";
import { section, empty } from "../live.js";
import { count, short, moment, time, span } from "../format.js";
import { choice } from "../picks.js";
import { difference, latenessOf, lateBounds } from "../lateness.js";
import { heatMap } from "../heat.js";
import { drawDelays, drawTopicFigures } from "../figures.js";

const SPANS = [["15m", "15 minutes", 1000, 10], ["24h", "24 hours", 60_000, 10]];

export function page({ signal, query }) {
  let chosen = SPANS.find(([name]) => name === query.span) || SPANS[0];
  const tiles = h("section.panel.tiles", { "aria-label": "Figures" });
  const bars = h("div");
  const heat = h("div");
  const delays = h("div");
  const byTopic = h("div");
  const sinceBox = h("span.dim.small");

  const part = section(tiles, {
    signal,
    every: 3000,
    also: [bars, heat],
    load: (stop) => get("/v1/pulse", { every_ms: chosen[2] }, stop),
    draw: (pulse) => {
      const columns = columnsOf(pulse, chosen[3]);
      const late = latenessOf(pulse.lateness, pulse.bounds_ms);
      const { counts: sum, released } = late;
      sinceBox.textContent = pulse.at_ms.length ? `since ${moment(pulse.at_ms[0])}` : "";
      drawTiles(tiles, late, pulse, `last ${chosen[1]}`);
      if (!released) {
        const nothing = () => empty("Nothing was released in this time", "The lateness of each release is counted here. The figures are kept in memory and start at zero with the broker.", h("a", { href: "#/schedule" }, "Schedule a message"));
        fill(bars, nothing());
        fill(heat, h("p.dim", "No releases to show."));
        return;
      }
      drawBars(bars, sum, pulse.bounds_ms, released);
      heatMap(heat, columns, lateBounds(pulse.bounds_ms), signal);
    },
  });

  section(byTopic, {
    signal,
    every: 5000,
    isStill: true,
    also: [delays],
    load: async (stop) => {
      const { topics, delay_bounds_ms, lateness_bounds_ms } = await get("/v1/figures", {}, stop);
      return { topics, delay_bounds_ms, lateness_bounds_ms };
    },
    draw: (figures) => { drawTopicFigures(figures, byTopic); drawDelays(figures, delays); },
  });

  return h("div.page",
    h("div.head", h("h1", "History"), sinceBox, h("span.grow"), choice("Span", SPANS, chosen[0], (name) => { chosen = SPANS.find(([one]) => one === name); part.refresh(); })),
    tiles,
    h("div.cols.stretch",
      h("section.panel.c5", h("header", h("h2", "Lateness")), bars),
      h("section.panel.c7", h("header", h("h2", "Lateness over time"), h("span.grow"), h("span.dim.small", "stronger colour: more releases")), heat)),
    h("div.cols.stretch",
      h("section.panel.c5", h("header", h("h2", "Requested delays"), h("span.grow"), h("span.dim.small", "since the broker started")), delays),
      h("section.panel.flush.c7", h("header", h("h2", "By topic"), h("span.grow"), h("span.dim.small", "since the broker started")), byTopic)));
}

// Differences of the running totals, `group` samples to a column.
function columnsOf({ at_ms: at, lateness }, group) {
  const columns = [];
  for (let i = 0; i + 1 < at.length; i += group) {
    const end = Math.min(at.length - 1, i + group);
    columns.push({ from: at[i], to: at[end], counts: difference(lateness[end], lateness[i]) });
  }
  return columns;
}

function drawTiles(box, { counts: sum, released, p50, p99, max }, pulse, window) {
  const tile = (label, value, note) => h("div.tile", h("div.label", label), h("div.value", value), h("div.sub", note));
  const onTime = released ? `${((100 * (sum[0] + sum[1] + sum[2])) / released).toFixed(released > 1000 ? 2 : 0)} %` : "–";
  fill(box,
    tile("Released", short(released), pulse.at_ms.length > 1 ? `in ${span(pulse.at_ms[pulse.at_ms.length - 1] - pulse.at_ms[0])}` : ""),
    tile("Within 2 ms", onTime, "of their due time"),
    tile("Lateness p50", p50, window),
    tile("Lateness p99", p99, window),
    tile("Lateness max", max, `${window} · never early`));
}

function drawBars(box, sum, bounds, released) {
  const names = lateBounds(bounds);
  const last = sum.reduce((found, value, i) => (value ? i : found), 0);
  const most = Math.max(...sum);
  fill(box, h("div.buckets", { role: "table", "aria-label": "Releases by lateness" }, names.slice(0, Math.max(8, last + 1)).map((name, i) => [
    h("span.dim.num", name),
    h("div.bar", { title: `${count(sum[i])} of ${count(released)}` }, sum[i] ? h("i", { style: { width: `${(100 * sum[i]) / most}%` } }) : null),
    h("span.num", count(sum[i])),
  ])));
}

export const columnTitle = (column) => `${time(column.from)}–${time(column.to)}`;

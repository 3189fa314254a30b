// Charts in the dashboard's own look, drawn by uPlot: lines over time, and stacked bars.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { h, fill } from "./dom.js";
import { short, moment, mark } from "./format.js";

const TINTS = ["--k1", "--k2", "--k3", "--k4", "--k5", "--k6"];
const OTHERS_TINT = "--k-other";
const tintName = (part, index) => (part.isOthers ? OTHERS_TINT : TINTS[index % TINTS.length]);
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const FONT = '11px Inter, system-ui, sans-serif';

// Steps between two marks: whole seconds on the axis of time, whole numbers where things are counted.
const TIMES = [1, 2, 5, 10, 15, 30, ...[1, 2, 5, 10, 15, 30].map((n) => n * 60), ...[1, 2, 3, 6, 12].map((n) => n * 3600), ...[1, 2, 3, 5, 7, 10, 15, 30, 60, 90, 180, 365, 730, 1825].map((n) => n * 86_400)];
const COUNTS = Array.from({ length: 15 }, (_, power) => [1, 2, 5].map((n) => n * 10 ** power)).flat();

function axes(unit, incrs) {
  const stroke = colour("--ink-2");
  const grid = { stroke: colour("--line"), width: 1 };
  return [
    { stroke, font: FONT, grid: { show: false }, ticks: { show: false }, gap: 6, size: 26, space: 76, incrs: TIMES, values: (plot, splits, index, space, step) => splits.map((at) => mark(at * 1000, step)) },
    { stroke, font: FONT, grid, ticks: { show: false }, gap: 6, size: (plot, values) => 12 + 6.4 * Math.max(4, ...(values || []).map((value) => value.length)), values: (plot, splits) => splits.map((value) => (value === null ? "" : unit(value))), space: 38, incrs },
  ];
}

// A small box that follows the cursor; `rows(index)` says what stands in it.
function tip(rows) {
  const box = h("div.tip", { hidden: true });
  return {
    hooks: {
      init: (plot) => plot.over.append(box),
      setCursor: (plot) => {
        const { idx, left } = plot.cursor;
        if (idx === null || idx === undefined || left < 0) { box.hidden = true; return; }
        const found = rows(idx);
        box.hidden = !found;
        if (!found) return;
        fill(box, h("b", found.title), h("div.rows", found.rows.map(([tint, name, value]) => [tint ? h("i.swatch", { style: { background: tint } }) : h("span"), h("span", name), h("span.num", value)])));
        const isRight = left > plot.over.clientWidth / 2;
        box.style.left = isRight ? "" : `${left + 14}px`;
        box.style.right = isRight ? `${plot.over.clientWidth - left + 14}px` : "";
        box.style.top = "4px";
      },
    },
  };
}

// Draws again when the box or the theme changes. `make(width)` gives uPlot's options.
function mounted(box, height, make, signal) {
  let plot = null;
  let data = [[]];
  const draw = () => {
    plot?.destroy();
    fill(box);
    plot = new uPlot({ ...make(), width: Math.max(200, box.clientWidth), height }, data, box);
  };
  const watcher = new ResizeObserver(() => plot && plot.setSize({ width: Math.max(200, box.clientWidth), height }));
  watcher.observe(box);
  addEventListener("themechange", () => plot && draw(), { signal });
  signal.addEventListener("abort", () => { watcher.disconnect(); plot?.destroy(); });
  return {
    set(next, isNewShape = false) {
      data = next;
      if (!plot || isNewShape) draw();
      else plot.setData(data);
    },
  };
}

// Lines over time. `series`: [{label, tint, isArea}], data: [seconds, values, …].
export function lines(box, series, { height = 180, unit = short, axisUnit = unit, signal }) {
  let shown = [[]];
  const view = mounted(box, height, () => ({
    padding: [10, 20, 0, 0],
    cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
    scales: { y: { range: (plot, low, high) => [0, high > 0 ? high * 1.15 : 1] } },
    axes: axes(axisUnit),
    series: [{}, ...series.map((one) => ({ label: one.label, stroke: colour(one.tint), width: 1.75, fill: one.isArea ? `color-mix(in srgb, ${colour(one.tint)} 12%, transparent)` : undefined, points: { show: false } }))],
    plugins: [tip((index) => ({ title: moment(shown[0][index] * 1000), rows: series.map((one, i) => [colour(one.tint), one.label, shown[i + 1][index] === null ? "–" : unit(shown[i + 1][index])]) }))],
  }), signal);
  return { set: (data) => { shown = data; view.set(data); } };
}

// Stacked bars. `parts`: [{label, values, isOthers}], largest first; `onZoom(fromSeconds, toSeconds)` for a dragged range, and
// for a bar that is clicked or tapped (on a touch screen a drag scrolls the page).
export function stack(box, { height = 260, signal, onZoom, width = () => 60 }) {
  let parts = [];
  let seconds = [];
  let wasDragged = false;
  const stackedFrom = () => {
    // Drawn from the whole down to the smallest, so that each bar shows above the one drawn after it.
    const sums = parts.map(() => []);
    for (let i = 0; i < seconds.length; i += 1) {
      let sum = 0;
      for (let p = 0; p < parts.length; p += 1) { sum += parts[p].values[i]; sums[p].push(sum); }
    }
    return [seconds, ...sums.reverse()];
  };
  const tintOf = (index) => colour(tintName(parts[index], index));
  const bars = (radius) => uPlot.paths.bars({ size: [0.82, 40], align: 1, radius });
  const view = mounted(box, height, () => ({
    padding: [10, 20, 0, 0],
    cursor: { y: false, points: { show: false }, drag: { x: Boolean(onZoom), y: false, setScale: false } },
    select: { show: Boolean(onZoom) },
    scales: { x: { range: () => (seconds.length ? [seconds[0], seconds[seconds.length - 1] + width()] : [0, 1]) }, y: { range: (plot, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: axes(short, COUNTS),
    series: [{}, ...parts.map((part, i) => ({ label: part.label, fill: tintOf(parts.length - 1 - i), width: 0, stroke: "transparent", paths: bars(i === 0 ? 0.15 : 0), points: { show: false } }))],
    plugins: [tip((index) => (index < seconds.length ? { title: moment(seconds[index] * 1000), rows: tipRows(index) } : null))],
    hooks: { ready: [(plot) => { if (onZoom) plot.over.addEventListener("click", () => { const at = plot.cursor.idx; if (!wasDragged && at !== null && at !== undefined && at < seconds.length) onZoom(seconds[at], seconds[at] + width()); wasDragged = false; }); }], setSelect: [(plot) => { if (onZoom && plot.select.width > 8) { wasDragged = true; onZoom(plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")); plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false); } }] },
  }), signal);
  const tipRows = (index) => {
    const rows = parts.map((part, i) => [tintOf(i), part.label, short(part.values[index])]).filter((row, i) => parts[i].values[index]);
    return rows.length ? rows : [[null, "nothing due", ""]];
  };
  let shape = "";
  return {
    set(nextSeconds, nextParts) {
      seconds = nextSeconds;
      parts = nextParts;
      const next = parts.map((part) => part.label).join("\n");
      view.set(stackedFrom(), next !== shape);
      shape = next;
    },
  };
}

export const legend = (parts) => h("div.legend", parts.map((part, i) => h("span", h("i.swatch", { style: { background: `var(${tintName(part, i)})` } }), part.label)));

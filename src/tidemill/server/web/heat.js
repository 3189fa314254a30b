// A heat map: time from left to right, lateness from bottom to top, darker for more.

import { h, fill } from "./dom.js";
import { count, time, mark } from "./format.js";
import { colour } from "./chart.js";

const LEFT = 62;
const BOTTOM = 22;

export function heatMap(box, columns, names, signal) {
  let view = box.heat;
  if (!view) {
    view = box.heat = { canvas: h("canvas.heat", { role: "img", "aria-label": "Releases by time and lateness" }), words: h("p.dim.small", { style: { "min-height": "18px", "margin-top": "6px" } }) };
    for (const moved of ["pointermove", "pointerdown"]) view.canvas.addEventListener(moved, (event) => point(view, event));
    view.canvas.addEventListener("pointerleave", () => { view.words.textContent = ""; });
    const again = () => view.columns && paint(view);
    const watcher = new ResizeObserver(again);
    watcher.observe(view.canvas);
    addEventListener("themechange", again, { signal });
    signal.addEventListener("abort", () => watcher.disconnect());
  }
  if (view.canvas.parentNode !== box) fill(box, view.canvas, view.words);
  const last = columns.reduce((high, column) => Math.max(high, column.counts.reduce((found, value, i) => (value ? i : found), 0)), 0);
  Object.assign(view, { columns, names, rows: Math.max(8, last + 2) });
  view.rows = Math.min(view.rows, names.length);
  paint(view);
}

function paint(view) {
  const { canvas, columns, names, rows } = view;
  const scale = devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (!width || !columns.length) return;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const cold = colour("--heat-0").split(" ").map(Number), hot = colour("--heat-1").split(" ").map(Number);
  const most = Math.max(1, ...columns.flatMap((column) => column.counts));
  const w = (width - LEFT) / columns.length, tall = (height - BOTTOM) / rows;
  for (let x = 0; x < columns.length; x += 1) {
    for (let y = 0; y < rows; y += 1) {
      const n = columns[x].counts[y];
      const share = n ? 0.15 + 0.85 * (Math.log1p(n) / Math.log1p(most)) : 0;
      pen.fillStyle = `rgb(${cold.map((part, i) => Math.round(part + (hot[i] - part) * share)).join(" ")} / ${n ? 1 : 0.55})`;
      pen.fillRect(LEFT + x * w, height - BOTTOM - (y + 1) * tall, Math.max(1, w - (w > 3 ? 1 : 0)), tall - 1);
    }
  }
  pen.fillStyle = colour("--ink-2");
  pen.font = "11px Inter, system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (let y = 0; y < rows; y += 1) pen.fillText(names[y], LEFT - 8, height - BOTTOM - (y + 0.5) * tall);
  pen.textBaseline = "alphabetic";
  const start = columns[0].from, end = columns[columns.length - 1].to;
  const marks = Math.max(1, Math.floor((width - LEFT) / 120));
  for (let i = 0; i <= marks; i += 1) {
    pen.textAlign = i === 0 ? "left" : i === marks ? "right" : "center";
    pen.fillText(mark(start + ((end - start) * i) / marks, (end - start) / 1000 / marks), LEFT + ((width - LEFT) * i) / marks, height - 5);
  }
}

function point(view, event) {
  const { canvas, columns, names, rows } = view;
  const edge = canvas.getBoundingClientRect();
  const x = Math.floor(((event.clientX - edge.left - LEFT) / (edge.width - LEFT)) * columns.length);
  const y = Math.floor((1 - (event.clientY - edge.top) / (edge.height - BOTTOM)) * rows);
  const column = columns[x];
  view.words.textContent = column && y >= 0 && y < rows ? `${time(column.from)} to ${time(column.to)}, ${names[y]}: ${count(column.counts[y])} released` : "";
}

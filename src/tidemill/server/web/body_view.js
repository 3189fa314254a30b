// A message's body as text, as JSON, or byte by byte. JSON is indented, never read and written again: a number of
// twenty digits, a name that stands twice and an escaped letter are shown as they were sent.

import { h, fill } from "./dom.js";
import { bytes } from "./format.js";

const HEX_BYTES_MAX = 4096;

function raw(message) {
  if (message.body_base64 === null) return new TextEncoder().encode(message.body);
  return Uint8Array.from(atob(message.body_base64), (letter) => letter.charCodeAt(0));
}

function hex(data) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, HEX_BYTES_MAX); at += 16) {
    const part = [...data.subarray(at, at + 16)];
    const digits = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const letters = part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits}  ${letters}`);
  }
  if (data.length > HEX_BYTES_MAX) lines.push(`… ${bytes(data.length - HEX_BYTES_MAX)} more`);
  return lines.join("\n");
}

// The parts of a JSON text: strings, marks, and everything else between them; space outside of strings is dropped.
const PARTS = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/g;

function indented(text) {
  const out = [];
  let depth = 0;
  let before = "";
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const [part] of text.matchAll(PARTS)) {
    const isEnd = part === "}" || part === "]";
    if (isEnd) depth -= 1;
    const isEmpty = isEnd && (before === "{" || before === "[");
    if ((before === "{" || before === "[" || before === "," || isEnd) && !isEmpty) out.push(line());
    out.push(part === ":" ? ": " : part);
    if (part === "{" || part === "[") depth += 1;
    before = part;
  }
  return out.join("");
}

function pretty(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null ? indented(text) : null;
  } catch {
    return null;
  }
}

// `how`: the view that was chosen last; `onWhole` loads the whole of a body of which only a part is here.
export function bodyView(message, how, onChoose, onWhole) {
  const json = message.body === null ? null : pretty(message.body);
  const views = [];
  if (json !== null) views.push(["JSON", json]);
  if (message.body !== null) views.push(["Text", message.body || "(empty)"]);
  views.push(["Hex", hex(raw(message)) || "(empty)"]);
  const text = h("pre", { tabindex: "0" });
  const choice = h("div.choice", { role: "group", "aria-label": "How to show the body" });
  const choose = (index) => {
    [...choice.children].forEach((button, i) => button.setAttribute("aria-pressed", String(i === index)));
    text.textContent = views[index][1];
    text.style.whiteSpace = views[index][0] === "Hex" ? "pre" : "";
  };
  fill(choice, views.map(([name], i) => h("button", { type: "button", onclick: () => { choose(i); onChoose(name); } }, name)));
  choose(Math.max(0, views.findIndex(([name]) => name === how)));
  const whole = h("button.small", { type: "button", onclick: () => { whole.disabled = true; onWhole().catch(() => { whole.disabled = false; }); } }, "Show all");
  const cut = message.is_body_cut && h("p.small.dim", `The first part of ${bytes(message.body_size)}. `, whole);
  return h("div", { style: { display: "grid", gap: "8px", "margin-top": "8px" } }, h("div", choice), text, cut);
}

// A message's body as text, as JSON, or byte by byte.

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

function pretty(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null ? JSON.stringify(value, null, 2) : null;
  } catch {
    return null;
  }
}

export function bodyView(message) {
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
  fill(choice, views.map(([name], i) => h("button", { type: "button", onclick: () => choose(i) }, name)));
  choose(0);
  const cut = message.is_body_cut && h("p.small.dim", `The first part of ${bytes(message.body_size)}.`);
  return h("div", { style: { display: "grid", gap: "8px", "margin-top": "8px" } }, h("div", choice), text, cut);
}

// Elements without ceremony. Text is always text: nothing here parses HTML, so no message can become markup.

const SVG = "http://www.w3.org/2000/svg";

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, part] of Object.entries(value)) element.style.setProperty(key, part);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const isPlain = (given) => given !== null && typeof given === "object" && !(given instanceof Node) && !Array.isArray(given);

// h("div.panel.flush", {title: "…"}, child, …): a tag with classes, attributes if there are any, children.
export function h(tag, ...rest) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name || "div");
  if (classes.length) element.className = classes.join(" ");
  const attributes = isPlain(rest[0]) ? rest.shift() : {};
  return make(element, attributes, rest);
}

export function svg(tag, attributes = {}, ...children) {
  return make(document.createElementNS(SVG, tag), attributes, children);
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// Changes the text only where it differs, so that a selection in it survives a refresh.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A button at work takes no second press, and keeps the keyboard: one that is `disabled` would lose it.
export async function once(button, work) {
  if (button.getAttribute("aria-disabled") === "true") return;
  button.setAttribute("aria-disabled", "true");
  try { await work(); } finally { button.removeAttribute("aria-disabled"); }
}

// Words with `commands` in them, as the broker and we write them: what stands in backticks becomes code.
export const prose = (text) => String(text).split("`").map((part, i) => (i % 2 ? h("code", part) : part)).filter((part) => part !== "");

let hiding = 0;
export function toast(text) {
  const box = document.getElementById("toast");
  box.textContent = text;
  box.classList.add("on");
  clearTimeout(hiding);
  hiding = setTimeout(() => box.classList.remove("on"), 4000);
}

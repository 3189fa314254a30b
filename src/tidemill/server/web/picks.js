// Inputs that several pages share: a row of options, and a list of topics.

import { h, fill } from "./dom.js";
import { get } from "./api.js";

// A row of buttons of which one is pressed. `options`: [[value, label], …].
export function choice(label, options, chosen, onChoose) {
  const row = h("div.choice", { role: "group", "aria-label": label });
  const press = (value) => [...row.children].forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.value === String(value))));
  fill(row, options.map(([value, text]) => h("button", { type: "button", "data-value": value, onclick: () => { press(value); onChoose(value); } }, text)));
  press(chosen);
  row.press = press;
  return row;
}

// A <select> of topics, filled when they are known; `isAnyAllowed` adds "All topics".
export function topicSelect({ id, chosen = "", isAnyAllowed = true, onchange, signal }) {
  const select = h("select", { id, onchange });
  const option = (value, text) => h("option", { value, selected: value === chosen }, text);
  fill(select, isAnyAllowed ? option("", "All topics") : null, chosen ? option(chosen, chosen) : null);
  get("/v1/topics", {}, signal).then(({ topics }) => {
    const names = topics.map((topic) => topic.name).sort();
    if (chosen && !names.includes(chosen)) names.unshift(chosen);
    const value = select.value;
    fill(select, isAnyAllowed ? option("", "All topics") : null, names.map((name) => option(name, name)));
    select.value = value;
  }).catch(() => {});  // the page's own section shows the error
  return select;
}

// Where a broker that asks who you are is told. The token stays in this tab and is gone when it closes.

import { h } from "./dom.js";
import { token } from "./api.js";

export function signIn(problem, onDone) {
  const field = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true, "aria-invalid": problem ? "true" : null });
  const form = h("form.form", { onsubmit: (event) => { event.preventDefault(); token.set(field.value.trim()); onDone(); } },
    h("label.field", { for: "token" }, "Token", field),
    problem && h("p.note.bad", { role: "alert" }, problem),
    h("div.buttons", h("button.main", { type: "submit" }, "Sign in")));
  requestAnimationFrame(() => field.focus());
  return h("div.page", h("div.cols", h("section.panel.c5", h("header", h("h2", "This broker asks who you are")),
    h("p.dim", { style: { "margin-bottom": "14px" } }, "Give the token of a user in the permissions file. With the verb “look” you see everything; buttons that change something need “send”, “cancel” or “admin”."), form)));
}

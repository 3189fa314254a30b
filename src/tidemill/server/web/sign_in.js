// The sign-in form of a broker with authentication. The token stays in this tab and is forgotten when it closes.

import { h } from "./dom.js";
import { token } from "./api.js";

export function signIn(problem, onDone) {
  const field = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true, "aria-invalid": problem ? "true" : null });
  const form = h("form.form", { onsubmit: (event) => { event.preventDefault(); token.set(field.value.trim()); onDone(); } },
    h("label.field", { for: "token" }, "Token", field),
    problem && h("p.note.bad", { role: "alert" }, problem),
    h("div.buttons", h("button.main", { type: "submit" }, "Sign in")));
  requestAnimationFrame(() => field.focus());
  return h("div.page", h("div.cols", h("section.panel.c5", h("header", h("h2", "Authentication required")),
    h("p.dim", { style: { "margin-bottom": "14px" } }, "Enter the token of a user in the permissions file. The verb “look” shows every page; buttons that change something need “send”, “cancel” or “admin”."), form)));
}

// The frame around the pages: which one is shown, signing in, keys, and the foot that says how the broker is.

import { h, fill, say, toast } from "./dom.js";
import { get, now, token, within } from "./api.js";
import { repeat, failed } from "./live.js";
import { moment } from "./format.js";
import { opener } from "./message.js";
import { signIn } from "./sign_in.js";

const PAGES = [
  ["now", "Now", "n"],
  ["forecast", "Forecast", "f"],
  ["wheel", "Wheel", "w"],
  ["pending", "Pending", "p"],
  ["history", "History", "h"],
  ["topics", "Topics & groups", "t"],
  ["schedule", "Schedule", "s"],
];

const main = document.getElementById("main");
const nav = document.getElementById("nav");
let leaving = new AbortController();
let me = { user: null, may: {} };

function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const known = PAGES.find(([name]) => name === path) || PAGES[0];
  return { name: known[0], title: known[1], query: Object.fromEntries(new URLSearchParams(query || "")) };
}

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  document.querySelectorAll("dialog[open]").forEach((dialog) => dialog.close());
  const { name, title, query } = place();
  document.title = `${title} · Tidemill`;
  for (const link of nav.children) {
    if (link.dataset.page === name) { link.setAttribute("aria-current", "page"); link.scrollIntoView({ inline: "nearest", block: "nearest" }); }
    else link.removeAttribute("aria-current");
  }
  const { page } = await import(`./pages/${name}.js`);
  if (signal.aborted) return;
  const may = (verb) => me.may[verb] !== false;
  const context = { signal, query, may, open: (handle, onChange) => opener({ handle, may, onChange }), go: (hash) => { location.hash = hash; } };
  fill(main, page(context));
  main.dataset.page = name;
  scrollTo(0, 0);
}

function askForToken(problem) {
  leaving.abort();
  leaving = new AbortController();
  fill(main, signIn(problem, start));
}

let isAsking = false;
addEventListener("unauthorized", (event) => {
  if (isAsking) return;
  isAsking = true;
  askForToken(token.get() ? event.detail.message : "");
});

async function start() {
  isAsking = false;
  try {
    me = await get("/v1/me");
  } catch (error) {
    if (error.status !== 401) { fill(main, failed(error, start)); setTimeout(start, 3000); }
    return;
  }
  foot.user(me);
  show();
}

const foot = (() => {
  const dot = h("i.dot");
  const words = h("span", "connecting");
  const clock = h("span.wide");
  const who = h("div.row.wide");
  fill(document.getElementById("foot"),
    h("div.row", dot, words),
    h("div.row.wide", clock),
    who,
    h("div.row", h("button.small", { onclick: () => window.toggleTheme(), "aria-label": "Light or dark", title: "Light or dark" }, "◐"), h("button.small.wide", { onclick: help, title: "Keys (?)" }, "Keys")));
  const look = async (signal) => {
    const health = await fetch("/healthz", { signal: within(signal, 4000), cache: "no-store" }).then((answer) => answer.json());
    const isOpen = health.status === "open" || health.status === "ok";
    dot.className = `dot ${isOpen ? "good" : "warn"}`;
    say(words, isOpen ? "live" : `the broker is ${health.status}`);
  };
  repeat(look, 3000, new AbortController().signal, () => { dot.className = "dot bad"; say(words, "no answer"); });
  setInterval(() => say(clock, moment(now())), 1000);
  return {
    user(found) {
      fill(who, found.user ? [h("span", found.user), h("button.small", { onclick: () => { token.set(""); askForToken(""); } }, "Sign out")] : null);
    },
  };
})();

function help() {
  const dialog = document.getElementById("help");
  fill(dialog, h("div.inner", h("header", h("div", h("h1", { id: "help-title" }, "Keys")), h("button", { onclick: () => dialog.close() }, "Close")),
    h("table.tight", h("tbody", [...PAGES.map(([, title, key]) => [key, title]), ["/", "Search pending messages"], ["d", "Light or dark"], ["Esc", "Close a message"], ["?", "This list"]].map(([key, what]) => h("tr", h("td", h("kbd", key)), h("td", what)))))));
  dialog.showModal();
}

addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, textarea, select, dialog");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const page = PAGES.find(([, , key]) => key === event.key);
  if (page) location.hash = `#/${page[0]}`;
  else if (event.key === "/") { event.preventDefault(); if (place().name === "pending") document.getElementById("search-key")?.focus(); else location.hash = "#/pending?focus=1"; }
  else if (event.key === "d") window.toggleTheme();
  else if (event.key === "?") help();
});

fill(nav, PAGES.map(([name, title, key]) => h("a", { href: `#/${name}`, "data-page": name }, title, h("kbd", { "aria-hidden": "true" }, key))));
addEventListener("hashchange", () => { if (!isAsking) show(); });
addEventListener("unhandledrejection", (event) => { if (event.reason?.name === "AbortError") event.preventDefault(); else toast(event.reason?.message || "Something went wrong; reload the page."); });
start();

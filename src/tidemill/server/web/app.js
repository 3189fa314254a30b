// The frame around the pages: navigation, signing in, keyboard shortcuts, and the broker's health in the foot.

import { h, fill, say, toast, prose } from "./dom.js";
import { get, now, token, within } from "./api.js";
import { repeat, failed } from "./live.js";
import { moment, time, zone } from "./format.js";
import { opener } from "./message.js";
import { signIn } from "./sign_in.js";
// All are loaded at the start, so that every page can be opened while the broker is down.
import { page as nowPage } from "./pages/now.js";
import { page as forecastPage } from "./pages/forecast.js";
import { page as wheelPage } from "./pages/wheel.js";
import { page as pendingPage } from "./pages/pending.js";
import { page as historyPage } from "./pages/history.js";
import { page as topicsPage } from "./pages/topics.js";
import { page as schedulePage } from "./pages/schedule.js";

const PAGES = [
  ["now", "Now", "n", nowPage],
  ["forecast", "Forecast", "f", forecastPage],
  ["wheel", "Wheel", "w", wheelPage],
  ["pending", "Pending", "p", pendingPage],
  ["history", "History", "h", historyPage],
  ["topics", "Topics & groups", "t", topicsPage],
  ["schedule", "Schedule", "s", schedulePage],
];

const main = document.getElementById("main");
const nav = document.getElementById("nav");
let leaving = new AbortController();
let me = { user: null, may: {} };

function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const known = path ? PAGES.find(([name]) => name === path) || ["missing", "No such page", "", () => noSuchPage(path)] : PAGES[0];
  return { name: known[0], title: known[1], page: known[3], query: Object.fromEntries(new URLSearchParams(query || "")) };
}

const noSuchPage = (path) => h("div.page", h("section.panel", h("div.state",
  h("h1", "No such page"),
  h("p", "The dashboard has no page ", h("code", `#/${path}`), ". It has these:"),
  h("div.buttons", PAGES.map(([name, title]) => h("a", { href: `#/${name}` }, title))))));

function show() {
  const { id } = document.activeElement;
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  document.querySelectorAll("dialog[open]").forEach((dialog) => dialog.close());
  const { name, title, page, query } = place();
  document.title = `${title} · Tidemill`;
  for (const link of nav.children) {
    if (link.dataset.page === name) { link.setAttribute("aria-current", "page"); link.scrollIntoView({ inline: "nearest", block: "nearest" }); }
    else link.removeAttribute("aria-current");
  }
  const may = (verb) => me.may[verb] !== false;
  const context = { signal, query, may, open: (handle, onChange) => opener({ handle, may, onChange }), go: (hash) => { location.hash = hash; } };
  fill(main, page(context));
  main.dataset.page = name;
  scrollTo(0, 0);
  // The keyboard focus stays in the same field, else it goes to the top of the page.
  if (document.activeElement === document.body) ((id && document.getElementById(id)) || main).focus({ preventScroll: true });
}

function askForToken(problem) {
  document.querySelectorAll("dialog[open]").forEach((dialog) => dialog.close());
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

let startAgain = 0;
async function start() {
  isAsking = false;
  clearTimeout(startAgain);
  try {
    me = await get("/v1/me");
  } catch (error) {
    if (error.status !== 401) { fill(main, failed(error, start)); startAgain = setTimeout(start, 3000); }
    return;
  }
  foot.user(me);
  show();
}

// Above every page while the broker does not answer (the figures below are old) or reports a fault.
const away = (() => {
  const box = document.getElementById("away");
  let since = 0;
  return (text, isLive = false) => {
    if (!text) { box.hidden = true; since = 0; return; }
    since ||= now();
    const words = isLive ? text : `${text} What you see is from ${time(since)} or before.`;
    if (box.dataset.words !== words) fill(box, prose(words));
    box.dataset.words = words;
    box.hidden = !main.dataset.page;
  };
})();

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
    if (health.reason) {
      dot.className = "dot bad";
      say(words, health.status);
      const isLive = health.status === "failing";
      away(`The broker ${isLive ? "is failing" : "stopped"}: ${health.reason}.`, isLive);
      return;
    }
    const share = health.opening_share === undefined ? "" : `, ${Math.round(health.opening_share * 100)} % of the log recovered`;
    say(words, isOpen ? "live" : `the broker is ${health.status}${share}`);
    away(isOpen ? "" : `The broker is ${health.status}${share}; this page continues by itself.`);
  };
  repeat(look, 3000, new AbortController().signal, () => {
    dot.className = "dot bad";
    say(words, "no answer");
    away(`The broker at ${location.host} does not answer. Start it with \`tidemill serve\`; this page reconnects by itself.`);
  });
  setInterval(() => say(clock, `${moment(now())} ${zone(now())}`), 1000);
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
addEventListener("unhandledrejection", (event) => { if (event.reason?.name === "AbortError") event.preventDefault(); else toast(event.reason?.message || "Unexpected error; reload the page."); });
start();

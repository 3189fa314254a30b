// Keeps a part of a page up to date: requests, draws, pauses, and shows loading and errors.
// A hidden page sends no requests. An answer that cost the broker a millisecond is requested again after a hundred at
// the earliest, so an open dashboard takes at most 1 % of a core. On a busy machine an answer takes long without
// costing much CPU, so the pause is at most a few turns.

import { h, fill, prose } from "./dom.js";
import { spent } from "./api.js";

const COST_TO_PAUSE = 100;
const LONGEST_PAUSE = 5; // turns
const RETRY_MS = 3000;

const pause = (ms, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });

const shown = (signal) =>
  new Promise((resolve) => {
    if (!document.hidden) return resolve();
    document.addEventListener("visibilitychange", () => resolve(), { once: true, signal });
    signal.addEventListener("abort", () => resolve(), { once: true });
  });

export const loading = () => h("div.state", { role: "status", "aria-label": "Loading" }, h("div.skeleton", { style: { width: "min(320px, 80%)" } }), h("div.skeleton", { style: { width: "min(220px, 60%)" } }));

export const empty = (title, text, ...actions) => h("div.state", h("strong", title), h("p", typeof text === "string" ? prose(text) : text), ...actions);

const ADVICE = {
  unreachable: "Is it running? Start it with `tidemill serve`; this page reconnects by itself.",
  unauthorized: "Sign in with a token from the permissions file.",
  forbidden: "Sign in with a token that allows this, or choose a topic that your token allows.",
  "unknown-topic": "Choose another topic; this one may have been deleted.",
};

export function failed(error, retry) {
  const advice = ADVICE[error.code] || (error.status >= 500 || error.status === 429 ? "Retrying in a few seconds." : "");
  return h("div.state", { role: "alert" }, h("strong", error.status === 503 ? "The broker is not ready" : "Request failed"), h("p", prose(error.message)), advice && h("p", prose(advice)), retry && h("button", { onclick: retry }, "Try again"));
}

// A part that is redrawn between press and release of a button would swallow the click, so drawing waits.
let pressed = null;
let released = () => {};
addEventListener("pointerdown", () => { pressed = new Promise((resolve) => { released = resolve; }); }, true);
const letGo = () => setTimeout(() => { pressed = null; released(); });
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, letGo, true);
addEventListener("blur", letGo);

// Draws a part anew and leaves the keyboard where it was: on the element with the same `data-focus`.
function drawnAnew(box, draw) {
  const focused = box.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
  draw();
  if (focused !== undefined && !box.contains(document.activeElement)) box.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

// An answer as text without its time: two answers with the same text need no second drawing.
export const wordsOf = (data) => JSON.stringify(data, (name, value) => (name === "now_ms" ? undefined : value));

// Runs `task` every so many milliseconds until the signal aborts. `sooner()` may name a shorter pause, which is taken
// where the last answer was cheap enough. Returns a function that runs the task at once.
export function repeat(task, every, signal, onError, sooner = () => every) {
  let hurry = () => {};
  const run = async () => {
    while (!signal.aborted) {
      await shown(signal);
      if (signal.aborted) return;
      const before = spent.ms;
      let wait = every;
      const hurried = new Promise((resolve) => { hurry = resolve; });
      try {
        await task(signal);
        const forItsCost = Math.min((spent.ms - before) * COST_TO_PAUSE, every * LONGEST_PAUSE);
        wait = Math.max(Math.min(every, sooner()), forItsCost);
      } catch (error) {
        if (signal.aborted) return;
        onError(error);
        wait = RETRY_MS;
      }
      await Promise.race([pause(wait, signal), hurried]);
    }
  };
  run();
  return () => hurry();
}

// A box that loads and draws by itself: `load(signal)` asks, `draw(data, box)` shows. With `isStill` it is drawn
// again only when the answer has changed, so that a selection in it stays. `also` are boxes that `draw` fills too.
export function section(box, { load, draw, every = 2000, sooner, signal, isStill = false, also = [] }) {
  let hasData = false;
  let words = "";
  fill(box, loading());
  const again = repeat(
    async (stop) => {
      const data = await load(stop);
      await pressed;
      if (stop.aborted) return;
      if (!hasData) fill(box);
      [box, ...also].forEach((one) => one.removeAttribute("data-stale"));
      const said = isStill ? wordsOf(data) : "";
      if (hasData && isStill && said === words) return;
      hasData = true;
      words = said;
      drawnAnew(box, () => draw(data, box));
    },
    every,
    signal,
    (error) => {
      if (hasData && error.status !== 403) [box, ...also].forEach((one) => { one.dataset.stale = error.message; });
      else { hasData = false; fill(box, failed(error, () => again())); }
    },
    sooner,
  );
  return { refresh: () => again(), restart: () => { hasData = false; fill(box, loading()); again(); } };
}

// Keeps a part of a page up to date: asks, draws, waits, and shows what state it is in meanwhile.
// A hidden page asks nothing. An answer that cost the broker a millisecond is asked for again no sooner than
// after a hundred, so an open dashboard takes at most a hundredth of a core. On a busy machine an answer takes
// long without costing much, so nobody waits for more than a few turns.

import { h, fill } from "./dom.js";
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

export const empty = (title, text, ...actions) => h("div.state", h("strong", title), h("p", text), ...actions);

const ADVICE = {
  unreachable: "Is it running? Start it with `tidemill serve`; this page goes on by itself as soon as it answers.",
  unauthorized: "Sign in with a token from the permissions file.",
  forbidden: "Sign in with a token that allows it, or choose a topic that yours allows.",
  "unknown-topic": "Choose another topic; this one may have been deleted.",
};

export function failed(error, retry) {
  const advice = ADVICE[error.code] || (error.status >= 500 || error.status === 429 ? "It is tried again in a few seconds." : "");
  return h("div.state", { role: "alert" }, h("strong", error.status === 503 ? "The broker is not ready" : "This did not work"), h("p", error.message), advice && h("p", advice), retry && h("button", { onclick: retry }, "Try again"));
}

// Runs `task` now and then until the signal says stop. Returns a function that runs it at once.
export function repeat(task, every, signal, onError) {
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
        wait = Math.min(Math.max(every, (spent.ms - before) * COST_TO_PAUSE), every * LONGEST_PAUSE);
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

// A box that loads and draws by itself: `load(signal)` asks, `draw(data, box)` shows.
export function section(box, { load, draw, every = 2000, signal }) {
  let hasData = false;
  fill(box, loading());
  const again = repeat(
    async (stop) => {
      const data = await load(stop);
      if (stop.aborted) return;
      if (!hasData) fill(box);
      hasData = true;
      box.removeAttribute("data-stale");
      draw(data, box);
    },
    every,
    signal,
    (error) => {
      if (hasData && error.status !== 403) box.dataset.stale = error.message;
      else { hasData = false; fill(box, failed(error, () => again())); }
    },
  );
  return { refresh: () => again(), restart: () => { hasData = false; fill(box, loading()); again(); } };
}

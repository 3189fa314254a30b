// What an operator holds for the whole broker, above the figures, with a button that resumes it.

import { h, fill, toast, prose, once } from "./dom.js";
import { post } from "./api.js";
import { time } from "./format.js";

const WHAT = {
  releases: "Releases are held since SINCE: timed messages are not put into their topics. Sends, cancels and reschedules go on.",
  absorbing: "Absorbing is held since SINCE: the timer takes in no new messages. Those it has are released on time; the rest waits.",
};

export function drawHolds(box, { holds }, may, refresh) {
  const held = Object.keys(WHAT).filter((what) => holds?.[`${what}_since_ms`]);
  const words = JSON.stringify([held, holds]);
  if (box.dataset.words === words) return;  // a button that has the keyboard keeps it
  box.dataset.words = words;
  box.hidden = !held.length;
  fill(box, held.map((what) => h("p.note.warn.withbutton", { "data-hold": what },
    h("span", prose(WHAT[what].replace("SINCE", time(holds[`${what}_since_ms`])))),
    may("admin") ? resumeButton(what, refresh) : null)));
}

function resumeButton(what, refresh) {
  const button = h("button.small", {
    "aria-label": `Resume ${what}`,
    onclick: () => once(button, async () => {
      try {
        await post(`/v1/holds/${what}/resume`, {});
        toast(what === "releases" ? "Releases resumed" : "Absorbing resumed");
      } catch (error) {
        toast(error.message);
      }
      refresh();
    }),
  }, "Resume");
  return button;
}

// Why messages that are due are not in their topic yet, in words: the reasons of `waits` in `/v1/status`.

import { count } from "./format.js";

const SHORT = { pause: "paused", rate: "limited", order: "FIFO order", commit: "slow disk", room: "disk full", sweep: "being looked for", clock: "clock leapt" };
const WHY = {
  pause: (topic) => `${topic} is paused. They go when it is resumed.`,
  rate: (topic) => `${topic} may release only so many a second. They go as its limit allows.`,
  order: () => "they are FIFO, and the timer has yet to hand over what may come before them.",
  commit: () => "the disk is slow: as many commits as may be under way are. They go as those end.",
  room: () => "the disk is full. Make room; they are tried again by themselves.",
  sweep: () => "they are overdue and missing in the timer. A scan of the entries finds them, within about a minute.",
  clock: () => "the clock leapt forward and may be wrong. They are held for ten seconds, then go.",
};

export const waitsNote = (waits) => [...new Set(waits.map((wait) => SHORT[wait.waits_for] || wait.waits_for))].join(" · ");

export function waitWords(wait) {
  const why = (WHY[wait.waits_for] || (() => wait.waits_for))(wait.topic || "a topic");
  return `${count(wait.messages)} ${wait.messages === 1 ? "message that is due waits" : "messages that are due wait"}: ${why}`;
}

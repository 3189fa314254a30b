// Why due messages are not in their topic yet: texts for the reasons of `waits` in `/v1/status`.

import { count, span } from "./format.js";

const AGE_SHOWN_MS = 1000;
const UNEXPLAINED_SHOWN_MS = 10_000;
const SHORT = { pause: "paused", rate: "rate limit", order: "FIFO order", commit: "slow disk", disk: "disk full", sweep: "missing in the timer", hold: "releases held", absorb: "absorbing held", clock: "clock jumped" };
const WHY = {
  pause: (topic) => `${topic} is paused. They are released when it is resumed.`,
  rate: (topic) => `${topic} has a rate limit. They are released as the limit allows.`,
  order: () => "they are FIFO, and the timer has not handed over earlier messages of their groups yet.",
  commit: () => "the disk is slow: the maximum number of commits is in flight. They are released as those finish.",
  disk: () => "the disk is full. Free some space; the release is retried.",
  sweep: () => "they are overdue and missing in the timer. A scan of the entries finds them within about a minute.",
  hold: () => "releases are held for the whole broker. They are released when releases are resumed.",
  absorb: () => "absorbing is held, and the timer had not taken them in. They are released when absorbing is resumed.",
  clock: () => "the clock jumped forward and may be wrong. They are held for ten seconds.",
};

export const waitsNote = (waits) => [...new Set(waits.map((wait) => SHORT[wait.waits_for] || wait.waits_for))].join(" · ");

// `overdue` and `now` are those of the same answer: how long the oldest that waits for this has been due.
export function waitWords(wait, overdue = [], now = 0) {
  const why = (WHY[wait.waits_for] || (() => wait.waits_for))(wait.topic || "a topic");
  const oldest = overdue.find((one) => one.waits_for === wait.waits_for && (!wait.topic || one.topic === wait.topic));
  const age = oldest && now - oldest.due_ms >= AGE_SHOWN_MS ? ` ${wait.messages === 1 ? "It" : "The oldest"} has been due for ${span(now - oldest.due_ms)}.` : "";
  return `${count(wait.messages)} ${wait.messages === 1 ? "message that is due waits" : "messages that are due wait"}: ${why}${age}`;
}

// A message that is due and that nothing explains; empty while there is none, or it has only just become due.
export function unexplainedWords(overdue, now) {
  const oldest = overdue.find((one) => !one.waits_for && now - one.due_ms >= UNEXPLAINED_SHOWN_MS);
  if (!oldest) return "";
  return `${oldest.topic ? `A message of ${oldest.topic}` : "A message"} has been due for ${span(now - oldest.due_ms)} and no reason is known. Check the timer runner and the broker's log.`;
}

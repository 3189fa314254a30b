// Dead letters: messages whose last attempt failed; shows them and resends them to their group.

import { h, fill, toast, once } from "./dom.js";
import { get, post, now } from "./api.js";
import { section, empty } from "./live.js";
import { count, until, exact } from "./format.js";

const SHOWN = 100;
const PREFIX = "%DLQ%";

export function deadLetters({ signal, may }) {
  const box = h("div");
  const part = section(box, {
    signal,
    every: 4000,
    load: async (stop) => {
      const queues = (await get("/v1/topics", {}, stop)).topics.filter((topic) => topic.name.startsWith(PREFIX) && topic.visible);
      if (!queues.length) return { queues, letters: [] };
      try {
        return { queues, letters: (await get("/v1/dead-letters", { limit: SHOWN }, stop)).dead_letters };
      } catch (error) {
        if (error.status === 404) return { queues, letters: null };  // a broker that can only count them
        throw error;
      }
    },
    draw: ({ queues, letters }) => {
      if (letters === null) { fill(box, counted(queues)); return; }
      if (!letters.length) { fill(box, empty("No dead letters", "A message whose last attempt failed is listed here and can be resent to its group.")); return; }
      const groups = [...new Set(letters.map((letter) => letter.group))].sort();
      fill(box, may("admin") ? h("div.buttons", { style: { padding: "0 16px 12px" } }, groups.map((group) => resendButton(`Resend all of ${group}`, { group, all: true }, part.refresh))) : null, table(letters, may, part.refresh));
    },
  });
  return h("section.panel.flush", { id: "dead-letters" }, h("header", h("h2", "Dead letters")), box);
}

const counted = (queues) => h("div.tablewrap", h("table", h("thead", h("tr", h("th", "Group"), h("th.num", "Messages"))), h("tbody", queues.map((topic) => h("tr", h("td", topic.name.slice(PREFIX.length)), h("td.num", count(topic.visible)))))));

function table(letters, may, refresh) {
  const preview = (letter) => (letter.body === null ? "(not text)" : letter.body.slice(0, 80));
  return h("div.tablewrap", h("table",
    h("thead", h("tr", h("th", "Since"), h("th", "Group"), h("th", "Topic"), h("th.spare", "Key"), h("th.spare", "Body"), h("th.num.spare", "Attempts"), h("th", ""))),
    h("tbody", letters.map((letter) => h("tr", { "data-letter": letter.message_id },
      h("td.nowrap.dim", { title: exact(letter.died_at_ms) }, until(letter.died_at_ms, now())), h("td", letter.group), h("td", letter.topic), h("td.cut.spare", letter.keys.join(", ")),
      h("td.mono.cut.dim.spare", preview(letter)), h("td.num.spare", count(letter.attempts)),
      h("td.num", may("admin") ? resendButton("Resend", { group: letter.group, ids: [letter.message_id] }, refresh) : null))))));
}

function resendButton(label, which, refresh) {
  const button = h("button.small", {
    "data-focus": `resend ${which.group} ${which.ids || ""}`,
    onclick: () => once(button, async () => {
      try {
        const { resent } = await post("/v1/dead-letters/resend", which);
        toast(resent === 1 ? `1 message resent to ${which.group}` : `${count(resent)} messages resent to ${which.group}`);
      } catch (error) {
        toast(error.message);
      }
      refresh();
    }),
  }, label);
  return button;
}

// Dead letters: what a group gave up on, by group; read, and sent again.

import { h, fill } from "./dom.js";
import { get } from "./api.js";
import { section, empty } from "./live.js";
import { count } from "./format.js";

const PREFIX = "%DLQ%";

export function deadLetters({ signal }) {
  const box = h("div");
  section(box, {
    signal,
    every: 5000,
    load: (stop) => get("/v1/topics", {}, stop),
    draw: ({ topics }) => {
      const found = topics.filter((topic) => topic.name.startsWith(PREFIX) && topic.visible);
      if (!found.length) { fill(box, empty("No dead letters", "A message that a group has failed on too often is put here.")); return; }
      fill(box, h("div.tablewrap", h("table", h("thead", h("tr", h("th", "Group"), h("th.num", "Letters"))), h("tbody", found.map((topic) => h("tr", h("td", topic.name.slice(PREFIX.length)), h("td.num", count(topic.visible))))))));
    },
  });
  return h("section.panel.flush", h("header", h("h2", "Dead letters")), box);
}

// Schedule: a form that sends a message, at once or for later, and shows the result.

import { h, fill, prose, say } from "../dom.js";
import { post, now } from "../api.js";
import { choice } from "../picks.js";
import { exact, until, toInput, fromInput } from "../format.js";
import { get } from "../api.js";

const UNITS = [["1000", "seconds"], ["60000", "minutes"], ["3600000", "hours"], ["86400000", "days"]];

export function page({ signal, query, open, may }) {
  if (!may("send")) return h("div.page", h("div.head", h("h1", "Schedule")), h("p.note", "Read only: your token does not allow sending."));
  const answer = h("div");
  const field = (id, label, input) => h("label.field", { for: id }, label, input);

  const names = h("datalist", { id: "topic-names" });
  get("/v1/topics", {}, signal).then(({ topics }) => fill(names, topics.filter((topic) => !/^%(RETRY|DLQ)%/.test(topic.name)).map((topic) => h("option", { value: topic.name })))).catch(() => {});
  const topic = h("input", { id: "send-topic", list: "topic-names", required: true, maxlength: 127, value: query.topic || "", placeholder: "order-timeouts" });
  const body = h("textarea", { id: "send-body", placeholder: '{"order": 17}' });
  const key = h("input", { id: "send-key", maxlength: 256, placeholder: "to find or cancel the message" });
  const tag = h("input", { id: "send-tag", maxlength: 128 });
  const amount = h("input", { id: "send-amount", type: "number", min: 0, step: "any", required: true, value: "30" });
  const unit = h("select", { id: "send-unit", "aria-label": "Unit" }, UNITS.map(([value, name]) => h("option", { value }, name)));
  const at = h("input", { id: "send-at", type: "datetime-local", step: "1", required: true, value: toInput(now() + 600_000) });
  const level = h("input", { id: "send-level", type: "number", min: 1, required: true, value: "3" });
  const levelLabel = h("span", "Delay level");
  // A user without the verb "look" gets no limit; a level above the highest is the highest, and the result says so.
  if (may("look")) get("/v1/status", {}, signal).then(({ levels }) => {
    const highest = Math.max(...levels.map((one) => one.level));
    level.max = highest;
    if (Number(level.value) > highest) level.value = highest;
    say(levelLabel, `Delay level (1 to ${highest})`);
  }).catch(() => {});
  const once = h("select", { id: "send-once" }, [["no", "send another message"], ["keep", "keep the pending one"], ["replace", "move it to the new time"]].map(([value, name]) => h("option", { value }, name)));
  const properties = h("textarea", { id: "send-properties", placeholder: "source=dashboard", style: { "min-height": "58px" } });

  let way = "delay";
  const whenBox = h("div.line");
  const showWay = () => fill(whenBox, way === "delay" ? [field("send-amount", "Delay", amount), field("send-unit", "Unit", unit)] : way === "at" ? field("send-at", "Due time", at) : way === "level" ? field("send-level", levelLabel, level) : null);
  showWay();

  const send = h("button.main", { type: "submit" }, "Schedule");
  const ways = choice("When", [["delay", "After a delay"], ["at", "At a time"], ["level", "By level"], ["now", "At once"]], way, (chosen) => { way = chosen; showWay(); });
  const form = h("form.form", {
    onsubmit: async (event) => {
      event.preventDefault();
      send.disabled = true;
      try {
        const given = parsed(properties.value);
        const when = way === "delay" ? { delay_ms: Math.round(Number(amount.value) * Number(unit.value)) } : way === "at" ? { deliver_at_ms: fromInput(at.value) } : way === "level" ? { level: Number(level.value) } : {};
        const result = await post("/v1/messages", { topic: topic.value.trim(), body: body.value, keys: key.value.trim() ? [key.value.trim()] : [], tag: tag.value.trim(), properties: given, once: once.value, ...when });
        fill(answer, resultView(result, open));
      } catch (error) {
        fill(answer, h("p.note.bad", { role: "alert" }, prose(error.message)));
      }
      send.disabled = false;
    },
  },
  h("div.line", field("send-topic", "Topic", topic), field("send-key", "Key", key), field("send-tag", "Tag", tag)),
  field("send-body", "Body", body),
  h("div", { style: { display: "grid", gap: "10px" } }, h("h3", "When"), h("div", ways), whenBox),
  h("div.line", field("send-once", "If the key is already pending", once), field("send-properties", "Properties, one name=value per line", properties)),
  h("div.buttons", send, names));

  return h("div.page",
    h("div.head", h("h1", "Schedule")),
    h("div.cols", h("section.panel.c8", form), h("div.c4", answer)));
}

function parsed(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  return Object.fromEntries(lines.map((line) => {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`“${line}” is not a property; write name=value`);
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  }));
}

function resultView(result, open) {
  return h("section.panel", { role: "status", id: "result" },
    h("header", h("h2", result.is_repeat ? "Already pending" : result.handle ? "Scheduled" : "Sent")),
    h("dl.facts",
      h("dt", "Topic"), h("dd", result.topic),
      h("dt", "Due"), h("dd", result.deliver_at_ms === null ? "at once" : `${exact(result.deliver_at_ms)} · ${until(result.deliver_at_ms, now())}`),
      h("dt", "Id"), h("dd.mono", result.message_id),
      result.note ? [h("dt", "Note"), h("dd", result.note)] : null),
    result.handle ? h("div.buttons", { style: { "margin-top": "14px" } }, h("button", { onclick: () => open(result.handle) }, "Open message")) : null);
}

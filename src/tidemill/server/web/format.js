// How numbers, times and sizes are written, everywhere the same.

const whole = new Intl.NumberFormat("en-US");
const DAY = 86_400_000;

export const count = (n) => whole.format(n);

// Short enough for a tile or an axis: 950, 12.3 k, 4.56 M.
export function short(n) {
  const size = Math.abs(n);
  if (size < 10_000) return whole.format(Math.round(n));
  for (const [unit, by] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (size >= by) return `${(n / by).toPrecision(3).replace(/\.0+$|(\.\d*[1-9])0+$/, "$1")} ${unit}`;
  }
  return String(n);
}

export function rate(perSecond) {
  if (perSecond === 0) return "0";
  return perSecond < 10 ? perSecond.toFixed(1) : short(perSecond);
}

export function bytes(n) {
  if (n < 1024) return `${n} B`;
  let unit = -1;
  do { n /= 1024; unit += 1; } while (n >= 1024 && unit < 4);
  return `${n < 10 ? n.toFixed(1) : Math.round(n)} ${["KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

export function millis(ms) {
  if (ms < 1) return "< 1 ms";
  if (ms < 1000) return `${ms < 10 && !Number.isInteger(ms) ? ms.toFixed(1) : Math.round(ms)} ms`;
  return span(ms);
}

// The two largest units of a span: 3 d 4 h, 12 min 5 s.
export function span(ms) {
  ms = Math.abs(ms);
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${String(Math.floor(ms / 100) / 10)} s`;
  const units = [["y", 365 * DAY], ["d", DAY], ["h", 3_600_000], ["min", 60_000], ["s", 1000]];
  const first = units.findIndex(([, size]) => ms >= size);
  const parts = [];
  for (const [name, size] of units.slice(first, first + 2)) {
    const value = Math.floor(ms / size);
    if (value) parts.push(`${value} ${name}`);
    ms -= value * size;
  }
  return parts.join(" ");
}

export const until = (at, now) => (at > now ? `in ${span(at - now)}` : at === now ? "now" : `${span(now - at)} ago`);

const two = (n) => String(n).padStart(2, "0");

export function time(ms) {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function day(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

export const moment = (ms) => `${day(ms)} ${time(ms)}`;
export const exact = (ms) => `${moment(ms)}.${String(ms % 1000).padStart(3, "0")}`;

// The viewer's own zone, in which every time here is written: UTC+2.
export function zone(ms) {
  const minutes = -new Date(ms).getTimezoneOffset();
  const rest = Math.abs(minutes) % 60;
  return `UTC${minutes ? `${minutes < 0 ? "−" : "+"}${Math.floor(Math.abs(minutes) / 60)}${rest ? `:${two(rest)}` : ""}` : ""}`;
}

// Today's times without the date.
export const brief = (ms, now) => (day(ms) === day(now) ? time(ms) : moment(ms).slice(0, 16));

// A mark on a time axis whose marks lie `stepSeconds` apart.
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
export function mark(ms, stepSeconds) {
  const at = new Date(ms);
  const isMidnight = !at.getHours() && !at.getMinutes() && !at.getSeconds();
  if (stepSeconds >= 86_400 || (isMidnight && stepSeconds >= 600)) return `${at.getDate()} ${MONTHS[at.getMonth()]}`;
  return stepSeconds < 60 ? time(ms) : time(ms).slice(0, 5);
}

// What an <input type="datetime-local"> holds, and back.
export const toInput = (ms) => `${day(ms)}T${time(ms)}`;
export const fromInput = (text) => (text ? new Date(text).getTime() : null);

// Requests to the broker's HTTP API on the same host, with the user's token.
// Adds up what the broker says its answers cost, so that `live.js` can keep the page cheap.

const TOKEN = "tidemill-token";
const PATIENCE_MS = 15_000;

// A signal that also ends a request without an answer.
export const within = (signal, ms = PATIENCE_MS) => (signal ? AbortSignal.any([signal, AbortSignal.timeout(ms)]) : AbortSignal.timeout(ms));

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN) || "",
  set: (text) => (text ? sessionStorage.setItem(TOKEN, text) : sessionStorage.removeItem(TOKEN)),
};

export const spent = { ms: 0 };

// The broker's clock, which may be simulated, as of the last answer.
let ahead = 0;
export const now = () => Date.now() + ahead;

async function call(method, path, { query, body, signal } = {}) {
  const headers = {};
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const given = Object.entries(query || {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const url = given.length ? `${path}?${new URLSearchParams(given)}` : path;
  let answer;
  try {
    answer = await fetch(url, { method, headers, signal: within(signal), cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", `The broker at ${location.host} does not answer.`);
  }
  const cost = /app;dur=([\d.]+)/.exec(answer.headers.get("server-timing") || "");
  if (cost) spent.ms += Number(cost[1]);
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    const error = new ApiError(answer.status, content.code || `http-${answer.status}`, content.message || content.error || answer.statusText);
    if (answer.status === 401) dispatchEvent(new CustomEvent("unauthorized", { detail: error }));
    throw error;
  }
  if (content.now_ms) ahead = content.now_ms - Date.now();
  return content;
}

export const get = (path, query, signal) => call("GET", path, { query, signal });
export const post = (path, body) => call("POST", path, { body });

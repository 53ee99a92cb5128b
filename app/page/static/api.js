// The HTTP surface, relative to the document's base, so that sub-paths and proxies work.

export const apiUrl = (path) => new URL(`api/v1/${path}`, document.baseURI).href;

export function socketUrl() {
  const url = new URL("api/v1/live", document.baseURI);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url.href;
}

/** An answer that is not 2xx, with the code, sentence and field that the server gave. */
export class ApiError extends Error {
  constructor(status, body) {
    super(body.message ?? `the server answered ${status}`);
    this.status = status;
    this.code = body.code ?? "error";
    this.field = body.field ?? null;
    this.body = body;
  }
}

const TIMEOUT_MS = 60_000; // longer than the server itself waits for a worker

async function call(method, path, { body, headers } = {}) {
  const init = { method, credentials: "same-origin", headers: { ...headers }, signal: AbortSignal.timeout(TIMEOUT_MS) };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers["Content-Type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch(new URL(path, apiUrl("")), init);
  } catch {
    throw new ApiError(0, { code: "offline", message: "the server cannot be reached" });
  }
  const json = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new ApiError(answer.status, json.error ?? {});
  return json;
}

/** What the server waits for before it can draw, in words; "" when it is ready. */
export const awaited = () =>
  fetch(new URL("readyz", document.baseURI))
    .then((answer) => answer.json())
    .then((body) => (body.ready ? "" : body.reason), () => "the server cannot be reached");

export const getModels = () => call("GET", "models");
export const getStyles = () => call("GET", "styles");
export const getRender = (id) => call("GET", `renders/${encodeURIComponent(id)}`);
export const getHistory = (page = apiUrl("renders")) => call("GET", page); // page: an address the server gave
export const cancelRender = (id) => call("DELETE", `renders/${encodeURIComponent(id)}`);
export const postPreview = (body) => call("POST", "previews", { body });

const LOST = new Set([0, 502, 504]); // the connection failed, or that of a proxy: nobody knows whether it arrived

/** Asks for a render; one that may not have arrived is asked for once more under the same key, so it never counts twice. */
export async function postRender(body) {
  const headers = { "Idempotency-Key": newKey() };
  try {
    return await call("POST", "renders", { body, headers });
  } catch (error) {
    if (!LOST.has(error.status)) throw error;
    await new Promise((resolve) => setTimeout(resolve, 700));
    return call("POST", "renders", { body, headers });
  }
}

// crypto.randomUUID is missing on plain http outside localhost.
function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// A client of Purgatory for browsers and Node.js, without dependencies.
// Each signal is given once, in the order of its key, whatever happens to connections and servers.

const PASSING = [429, 502, 503, 504];
// One comment comes every 15 s by default.
const SILENCE_MS = 60_000;
const FIRST_PAUSE_MS = 100;
const MAX_PAUSE_MS = 10_000;
const MAX_RETRY_AFTER_MS = 60_000;

export class PurgatoryError extends Error {
  constructor(status, problem) {
    super(problem.detail ?? `the server responded with ${status}`);
    this.name = "PurgatoryError";
    this.status = status;
    this.problem = problem;
    this.slug = (problem.type ?? "").split("/").pop();
  }
}

export class CursorExpiredError extends PurgatoryError {
  constructor(status, problem) {
    super(status, problem);
    this.name = "CursorExpiredError";
    this.earliest = problem.earliest;
    this.head = problem.head;
  }
}

const errorOf = (status, problem) =>
  new (problem.earliest === undefined ? PurgatoryError : CursorExpiredError)(status, problem);

const sleep = (ms, signal) =>
  new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const done = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", done);
  });

// Half of the ceiling, and a random part of the other half.
const backoff = (failures) =>
  Math.min(MAX_PAUSE_MS, FIRST_PAUSE_MS * 2 ** (failures - 1)) * (0.5 + 0.5 * Math.random());

const retryAfter = (response) =>
  Math.min(MAX_RETRY_AFTER_MS, 1000 * (Number(response?.headers.get("retry-after")) || 0));

const headersOf = async ({ token, headers }) => ({
  ...headers,
  ...(token && { authorization: `Bearer ${typeof token === "function" ? await token() : token}` }),
});

const addressOf = (base, path) => `${String(base).replace(/\/$/, "")}${path}`;

// Yields the fields of each event that has data; what is incomplete at the end does not count.
async function* eventsOf(response, alive) {
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      alive();
      const blocks = (text + decoder.decode(value, { stream: true })).split("\n\n");
      text = blocks.pop();
      for (const block of blocks) {
        const fields = {};
        for (const line of block.split("\n")) {
          const at = line.indexOf(": ");
          if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
        }
        if (fields.data !== undefined) yield { ...fields, data: JSON.parse(fields.data) };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export async function* follow(base, keys, { cursor, signal, fetch = globalThis.fetch, ...auth } = {}) {
  const query = new URLSearchParams([keys].flat().map((key) => ["key", key]));
  let failures = 0;
  while (!signal?.aborted) {
    const controller = new AbortController();
    const abort = () => controller.abort();
    signal?.addEventListener("abort", abort);
    let timer;
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(abort, SILENCE_MS);
    };
    let response;
    let retry;
    alive();
    try {
      response = await fetch(addressOf(base, `/watch?${query}`), {
        headers: {
          accept: "text/event-stream",
          ...(cursor !== undefined && { "last-event-id": cursor }),
          ...(await headersOf(auth)),
        },
        cache: "no-store",
        signal: controller.signal,
      });
    } catch {
      // The connection failed: again, after a pause.
    }
    try {
      if (response?.status === 204) return;
      if (response?.status === 200) {
        const events = eventsOf(response, alive);
        for (;;) {
          let next;
          try {
            next = await events.next();
          } catch {
            failures += 1;
            break;
          }
          if (next.done) break;
          const { event, id, retry: asked, data } = next.value;
          if (asked !== undefined) retry = Number(asked);
          if (event === "cancelled") return;
          if (event !== "signal" && data.status !== undefined) {
            if (!PASSING.includes(data.status)) throw errorOf(data.status, data);
            failures += 1;
            continue;
          }
          failures = 0;
          if (id !== undefined) cursor = id;
          if (event === "signal") {
            retry = undefined;
            // The caller takes the time that it needs.
            clearTimeout(timer);
            yield { ...data, cursor: id };
            alive();
          }
        }
      } else if (response && !PASSING.includes(response.status)) {
        throw errorOf(response.status, await response.json().catch(() => ({})));
      } else {
        failures += 1;
      }
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
      abort();
    }
    const pause = failures ? Math.max(backoff(failures), retryAfter(response)) : backoff(1);
    await sleep(retry === undefined ? pause : Math.max(retry, failures ? pause : 0), signal);
  }
}

export async function fire(base, key, value = null, options = {}) {
  const { fetch = globalThis.fetch, signal, retryFor = 30_000, ...auth } = options;
  const until = Date.now() + retryFor;
  // In a path, `fetch` removes these, also if they are escaped: they are fired as a batch.
  const isDots = key === "." || key === "..";
  // One request, however often it is repeated.
  const idempotencyKey = options.idempotencyKey ?? crypto.randomUUID();
  for (let failures = 1; ; failures += 1) {
    let response;
    let error;
    try {
      response = await fetch(addressOf(base, isDots ? "/keys" : `/keys/${encodeURIComponent(key)}`), {
        method: "POST",
        headers: {
          "content-type": "application/json",
          "idempotency-key": idempotencyKey,
          ...(await headersOf(auth)),
        },
        body: JSON.stringify(isDots ? [{ key, value }] : { value }),
        signal,
      });
    } catch (caught) {
      error = caught;
    }
    if (signal?.aborted) throw error ?? signal.reason;
    if (response?.status < 300) {
      const fired = await response.json();
      return isDots ? fired.results[0] : fired;
    }
    if (response && !PASSING.includes(response.status)) {
      throw errorOf(response.status, await response.json().catch(() => ({})));
    }
    const pause = Math.max(backoff(failures), retryAfter(response));
    if (Date.now() + pause > until) throw error ?? errorOf(response.status, {});
    await sleep(pause, signal);
  }
}

/** A client of Purgatory for browsers and Node.js. `base` is the address with the prefix, such as
 * `/purgatory` or `https://shop.example/purgatory`. */

export interface Signal<Value = unknown> {
  key: string;
  /** Counts up within its key. */
  seq: number;
  /** When it was fired, RFC 3339. */
  at: string;
  value: Value;
  /** Where to resume `follow` after it, for all of its keys. */
  cursor: string;
}

export interface Fired {
  cursor: string;
  seq: number;
  completed: number;
  jobs?: number;
}

export interface Options {
  /** A bearer token, or what returns the current one. */
  token?: string | (() => string | Promise<string>);
  headers?: Record<string, string>;
  /** Ends the request; `follow` then ends without an error. */
  signal?: AbortSignal;
  fetch?: typeof globalThis.fetch;
}

/** Every signal of the keys once, each key's in order; reconnects by itself.
 * Ends if a key is deleted. Throws CursorExpiredError, and PurgatoryError for a refusal. */
export function follow<Value = unknown>(
  base: string | URL,
  keys: string | readonly string[],
  options?: Options & {
    /** That of a signal of these keys; "0": the earliest stored; without it: from now. */
    cursor?: string;
  },
): AsyncGenerator<Signal<Value>, void, void>;

/** Fire a key once, however often the request has to be repeated within `retryFor` ms (30,000). */
export function fire(
  base: string | URL,
  key: string,
  value?: unknown,
  options?: Options & { idempotencyKey?: string; retryFor?: number },
): Promise<Fired>;

/** The server refused the request, and would refuse it again. */
export class PurgatoryError extends Error {
  readonly status: number;
  /** Problem details (RFC 9457). */
  readonly problem: Record<string, unknown>;
  /** The kind of problem, such as `forbidden`. */
  readonly slug: string;
}

/** Signals were lost: read the state anew, then follow from one of the cursors. */
export class CursorExpiredError extends PurgatoryError {
  readonly earliest: string;
  readonly head: string;
}

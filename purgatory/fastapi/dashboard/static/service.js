// The service: who is signed in, requests, and what is said of those that it refuses.

import { announce } from "./elements.js";
import { number } from "./drawings.js";

const TOKEN = "purgatory.token";
// The page is at {prefix}/dashboard, so this is {prefix}/ whatever is before it.
const BASE = new URL(".", location.href);
const MAX_TARGETS = 500;
const DONE = {
  fire: "Fired", "drop-key": "Dropped", "cancel-wait": "Cancelled", "cancel-job": "Cancelled",
  "run-job": "Due now", "retry-job": "Will be tried again", pause: "Paused", resume: "Resumed",
  "resume-all": "Resumed",
};

// What the client may do, by the last snapshot.
export const session = { may: {}, has_jobs: false };

export function token() { return sessionStorage.getItem(TOKEN); }
export function keepToken(text) {
  if (text) sessionStorage.setItem(TOKEN, text);
  else sessionStorage.removeItem(TOKEN);
}

export class Refusal extends Error {
  constructor(response, problem) {
    super(problem.detail || `the server responded ${response.status}`);
    this.status = response.status;
    // Of tokens with scopes, and not of an `authorize` of the application.
    this.isOfTokens = /\/problems\/(unauthorized|forbidden)$/.test(problem.type);
    const challenge = response.headers.get("WWW-Authenticate") ?? "";
    this.takesToken = this.isOfTokens || /^bearer\b/i.test(challenge) || Boolean(token());
  }
}

// Return the JSON of the response; throw a Refusal, or another error if there is none.
export async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (token()) headers.Authorization = `Bearer ${token()}`;
  const response = await fetch(new URL(path, BASE), { ...options, headers, cache: "no-store" });
  if (response.ok) return response.json();
  // What is not ours may be a proxy's page.
  throw new Refusal(response, (await response.json().catch(() => null)) ?? {});
}

export function read(path, parameters) {
  return request(`${path}?${new URLSearchParams(Object.entries(parameters).filter(([, value]) => value))}`);
}

// As a sentence for people.
export function reason(error) {
  if (!(error instanceof Refusal)) return "The server cannot be reached.";
  if (error.status === 401 && error.isOfTokens) return "The token is not known here. Sign in with another one.";
  return error.status === 403 ? `This is not allowed: ${error.message}.` : `The server refused: ${error.message}.`;
}

// Do an action on each target, and say what became of it.
export async function act(action, targets, value) {
  const results = [];
  try {
    for (let start = 0; start < targets.length; start += MAX_TARGETS) {
      const body = JSON.stringify({ action, targets: targets.slice(start, start + MAX_TARGETS), value });
      const headers = { "Content-Type": "application/json" };
      results.push(...(await request("dashboard/actions", { method: "POST", body, headers })).results);
    }
  } catch (error) {
    announce(reason(error));
    return;
  }
  const done = results.filter((result) => result.done), refused = results.filter((result) => !result.done);
  const words = [];
  if (done.length) words.push(`${DONE[action]}: ${results.length === 1 ? done[0].detail : number(done.length)}.`);
  if (refused.length) words.push(`${refused.length === 1 ? "One was" : `${number(refused.length)} were`} refused: ${refused[0].detail}.`);
  announce(words.join(" "));
}

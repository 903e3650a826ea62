// Requests to the service, and what is said of those that it refuses.

import { token } from "./session.js";

// The page is at {prefix}/dashboard, so this is {prefix}/ whatever is before it.
const BASE = new URL(".", location.href);

export class Refusal extends Error {
  constructor(status, detail, kind = "", challenge = "") {
    super(detail);
    this.status = status;
    // Of tokens with scopes, and not of an `authorize` of the application.
    this.isOfTokens = /\/problems\/(unauthorized|forbidden)$/.test(kind);
    this.takesToken = this.isOfTokens || /^bearer\b/i.test(challenge) || Boolean(token());
  }
}

export async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (token()) headers.Authorization = `Bearer ${token()}`;
  // Without "./", what is before the colon of jobs:paused would be a scheme.
  const response = await fetch(new URL(`./${path}`, BASE), { ...options, headers, cache: "no-store" });
  if (response.ok) return response;
  let problem = {};
  try {
    problem = await response.json();
  } catch { /* Not of ours: a proxy's page, perhaps. */ }
  const detail = problem.detail || `the server responded ${response.status}`;
  throw new Refusal(response.status, detail, problem.type, response.headers.get("WWW-Authenticate") || "");
}

export async function read(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value));
  return (await request(`${path}?${query}`.replace(/\?$/, ""))).json();
}

// As a sentence for people.
export function reason(error) {
  if (error instanceof Refusal) {
    if (error.status === 401 && error.isOfTokens) return "The token is not known here. Sign in with another one.";
    if (error.status === 403) return `This is not allowed: ${error.message}.`;
    return `The server refused: ${error.message}.`;
  }
  return "The server cannot be reached.";
}

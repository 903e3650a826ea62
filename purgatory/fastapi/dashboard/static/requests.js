// Requests to the service, and what is said of those that it refuses.

import { token } from "./session.js";

// The page is at {prefix}/dashboard, so this is {prefix}/ whatever is before it.
const BASE = new URL(".", location.href);

export class Refusal extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (token()) headers.Authorization = `Bearer ${token()}`;
  // Without "./", what is before the colon of jobs:paused would be a scheme.
  const response = await fetch(new URL(`./${path}`, BASE), { ...options, headers, cache: "no-store" });
  if (response.ok) return response;
  let detail = `the server responded ${response.status}`;
  try {
    detail = (await response.json()).detail || detail;
  } catch { /* Not of ours: a proxy's page, perhaps. */ }
  throw new Refusal(response.status, detail);
}

export async function read(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value));
  return (await request(`${path}?${query}`.replace(/\?$/, ""))).json();
}

// As a sentence for people.
export function reason(error) {
  if (error instanceof Refusal) {
    if (error.status === 401) return "The token is not known here. Sign in with another one.";
    if (error.status === 403) return `This is not allowed: ${error.message}.`;
    return `The server refused: ${error.message}.`;
  }
  return "The server cannot be reached.";
}

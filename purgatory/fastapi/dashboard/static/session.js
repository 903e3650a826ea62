// Who is signed in: the token, and what it may do.

const TOKEN = "purgatory.token";

export const session = { may: {}, has_jobs: false };

export function token() { return sessionStorage.getItem(TOKEN); }
export function keepToken(text) {
  if (text) sessionStorage.setItem(TOKEN, text);
  else sessionStorage.removeItem(TOKEN);
}

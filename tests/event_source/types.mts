import { CursorExpiredError, PurgatoryError, fire, follow, type Signal } from "../../purgatory/javascript/purgatory.js";
const controller = new AbortController();
for await (const signal of follow<{ state: string }>("/purgatory", ["a", "b"], { cursor: "0", signal: controller.signal })) {
  const typed: Signal<{ state: string }> = signal;
  const text: string = typed.value.state + signal.cursor + signal.seq.toFixed();
  console.log(text);
}
const fired = await fire("/purgatory", "k", { a: 1 }, { token: () => "t", idempotencyKey: "x" });
const seq: number = fired.seq;
try { console.log(seq); } catch (error) {
  if (error instanceof CursorExpiredError) console.log(error.head, error.earliest);
  else if (error instanceof PurgatoryError) console.log(error.slug, error.status);
}
// @ts-expect-error - a key is a string
follow("/purgatory", 7);

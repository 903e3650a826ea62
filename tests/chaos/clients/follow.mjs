// Follow keys until each has had the value "last"; print the values of each.
import { follow } from "../../../purgatory/javascript/purgatory.js";

const [base, ...keys] = process.argv.slice(2);
const seen = Object.fromEntries(keys.map((key) => [key, []]));
for await (const signal of follow(base, keys, { cursor: "0" })) {
  seen[signal.key].push(signal.value);
  if (keys.every((key) => seen[key].at(-1) === "last")) break;
}
console.log(JSON.stringify(seen));

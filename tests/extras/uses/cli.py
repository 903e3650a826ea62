"""A command that cannot reach its server says so, and ends with a status of its own."""

from purgatory.__main__ import main

assert main(["--url", "http://127.0.0.1:9", "--retry-for", "0", "fire", "order:42"]) == 5
assert main(["wait", "--help"]) == 0

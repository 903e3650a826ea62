"""The JavaScript client: its size, its folder, how it is served, and how it fails."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from purgatory import Purgatory
from purgatory.fastapi import BearerTokens, install
from purgatory.fastapi.router import MODULE
from tests.acceptance.thread_server import KINDS, ThreadServer, serve
from tests.event_source.node import NODE, NODE_MODULES, needs_node
from tests.patience import PATIENCE_S

TOKEN = "a-token-of-sixteen-or-more"


@pytest.fixture
def server() -> Iterator[ThreadServer]:
    """A server with a token."""
    app, purgatory = FastAPI(), Purgatory()
    install(app, purgatory, authorize=BearerTokens([(TOKEN, "wait:* fire:*")]))
    with serve(app, purgatory, KINDS[2]) as running:
        yield running


def test_the_size() -> None:
    """Below 3 KB, compressed, without a minifier."""
    assert len(gzip.compress(MODULE.read_bytes(), 9)) < 3 * 1024


def test_the_package() -> None:
    """What package.json names is there, and the types name what the module exports."""
    folder = MODULE.parent
    package = json.loads((folder / "package.json").read_text())
    assert {each.name for each in folder.iterdir()} == {"package.json", *package["files"]}
    assert package["exports"]["."] == {
        "types": f"./{package['files'][1]}",
        "default": f"./{MODULE.name}",
    }
    types = (folder / "purgatory.d.ts").read_text()
    for line in MODULE.read_text().splitlines():
        if line.startswith("export"):
            name = line.replace("*", "").split("(")[0].split(" extends")[0].split(" {")[0].split()
            assert f" {name[-1]}" in types, line


def test_how_it_is_served(server: ThreadServer) -> None:
    """To anyone, as a module, and not again if it has not changed."""
    with httpx.Client(base_url=server.url) as http:
        reply = http.get("/purgatory/purgatory.js")
        assert reply.content == MODULE.read_bytes()
        assert reply.headers["content-type"] == "text/javascript; charset=utf-8"
        headers = {"If-None-Match": reply.headers["etag"]}
        assert http.get("/purgatory/purgatory.js", headers=headers).status_code == 304


def _run(code: str, *arguments: str) -> object:
    header = f'import {{ CursorExpiredError, fire, follow }} from "{Path(MODULE).as_uri()}";\n'
    done = subprocess.run(
        [str(NODE), "--input-type=module", "--eval", header + code, "--", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_node
def test_tokens_and_refusals(server: ThreadServer) -> None:
    """A token is sent with each request; a refusal is an error that says what to do."""
    code = """
const [base, token] = process.argv.slice(1);
const say = [];
for (const call of [() => fire(base, "a/b", 1), () => follow(base, "a/b").next()]) {
  try { await call(); } catch (error) { say.push([error.name, error.status, error.slug]); }
}
const fired = await fire(base, "a/b", { n: 1 }, { token: async () => token });
const signals = follow(base, ["a/b"], { token, cursor: "0" });
const { value } = await signals.next();
await signals.return();
say.push([fired.seq, value.value, value.key, value.cursor === fired.cursor]);
try { await follow(base, "k", { token, cursor: "000000000000-1" }).next(); } catch (error) {
  say.push([error instanceof CursorExpiredError, error.status, typeof error.earliest]);
}
console.log(JSON.stringify(say));
"""
    found = _run(code, f"{server.url}/purgatory", TOKEN)
    refused = ["PurgatoryError", 401, "unauthorized"]
    assert found == [
        refused,
        refused,
        [1, {"n": 1}, "a/b", True],
        [True, 410, "string"],
    ]


@needs_node
def test_keys_of_dots(server: ThreadServer) -> None:
    """Whatever `fetch` makes of "." and ".." in a path, these keys are fired."""
    code = """
const [base, token] = process.argv.slice(1);
const say = [];
for (const key of [".", "..", "..."]) {
  const fired = await fire(base, key, { n: 1 }, { token });
  const signals = follow(base, key, { token, cursor: "0" });
  const { value } = await signals.next();
  await signals.return();
  say.push([value.key, value.value, fired.seq, value.cursor === fired.cursor]);
}
console.log(JSON.stringify(say));
"""
    found = _run(code, f"{server.url}/purgatory", TOKEN)
    assert found == [[key, {"n": 1}, 1, True] for key in (".", "..", "...")]


@needs_node
def test_aborting_and_giving_up(server: ThreadServer) -> None:
    """A signal ends `follow` without an error; `fire` gives up after its time."""
    code = """
const [base, token] = process.argv.slice(1);
const controller = new AbortController();
const options = { token, signal: controller.signal };
const signals = follow(base, "quiet", options);
setTimeout(() => controller.abort(), 100);
const ended = await signals.next();
let failed = false;
const began = Date.now();
try { await fire("http://127.0.0.1:9", "k", 1, { retryFor: 500 }); } catch { failed = true; }
console.log(JSON.stringify([ended.done, failed, Date.now() - began < 5000]));
"""
    assert _run(code, f"{server.url}/purgatory", TOKEN) == [True, True, True]


@needs_node
def test_the_types() -> None:
    """They are strict TypeScript, and a program that uses all of them compiles."""
    options = "--noEmit --strict --target es2022 --module nodenext --lib es2022,dom"
    done = subprocess.run(
        [str(NODE), str(NODE_MODULES / "typescript/bin/tsc"), *options.split(), "types.mts"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout

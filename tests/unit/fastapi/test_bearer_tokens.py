"""Bearer tokens: what scopes allow, what is compared, and what can be read of a token later."""

from __future__ import annotations

import gc
import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.fastapi import Access, Action, BearerTokens, Problem, new_token
from purgatory.fastapi.access import Scope
from purgatory.fastapi.http.requests import READ, Permit, RawRequest
from tests.cases import cases

TOKENS = [f"a-token-for-tests-{number}" for number in range(5)]

# Of few letters, so that one is often the beginning of another.
keys = st.text("ab:*", min_size=1, max_size=6)
actions = st.sampled_from(Action)
key_actions = st.sampled_from([Action.WAIT, Action.FIRE])


def _request(*values: str) -> RawRequest:
    pairs = [(b"authorization", value.encode("latin-1")) for value in values]
    return RawRequest("/p", b"/p", b"", pairs)


def _permit(tokens: BearerTokens, token: str) -> Permit:
    return tokens(_request(f"Bearer {token}"))


def _allows(permit: Permit, access: Access) -> bool:
    try:
        permit.check(access)
    except Problem:
        return False
    return True


def _hash(token: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


@given(key_actions, keys, actions, keys)
def test_a_prefix_allows_its_action_on_the_keys_that_begin_with_it(
    action: Action, prefix: str, asked: Action, key: str
) -> None:
    """And nothing else."""
    scope = Scope.parse(f"{action}:{prefix}*")
    assert scope.allows(Access(asked, key)) == (asked is action and key.startswith(prefix))


@given(key_actions, keys.filter(lambda key: not key.endswith("*")), actions, keys)
def test_a_scope_without_a_star_is_one_key(
    action: Action, allowed: str, asked: Action, key: str
) -> None:
    """A star elsewhere than at the end is a star."""
    scope = Scope.parse(f"{action}:{allowed}")
    assert scope.allows(Access(asked, key)) == (asked is action and key == allowed)


@given(actions, st.none() | keys)
def test_a_star_allows_everything_and_operate_operates(action: Action, key: str | None) -> None:
    """Whatever key it is about; a scope without a key allows its action on all of them."""
    access = Access(action, key)
    assert Scope.parse("*").allows(access)
    is_of_operators = action in (Action.OPERATE, Action.METRICS)
    assert Scope.parse("operate").allows(access) == is_of_operators
    assert Scope.parse("metrics").allows(access) == (action is Action.METRICS)
    assert Scope.parse("defer").allows(access) == (action is Action.DEFER)


@given(st.lists(st.tuples(key_actions, keys), min_size=1, max_size=4), actions, keys)
def test_a_token_allows_what_any_of_its_scopes_allows(
    scopes: list[tuple[Action, str]], asked: Action, key: str
) -> None:
    """The union, and several keys only where each is allowed."""
    texts = [f"{action}:{prefix}*" for action, prefix in scopes]
    permit = _permit(BearerTokens([(TOKENS[0], " ".join(texts))]), TOKENS[0])
    access = Access(asked, key)
    is_allowed = any(Scope.parse(text).allows(access) for text in texts)
    assert _allows(permit, access) == is_allowed
    other = scopes[0][1]
    try:
        permit.check_keys(asked, [other, key])
    except Problem:
        assert not (is_allowed and _allows(permit, Access(asked, other)))
    else:
        assert is_allowed and _allows(permit, Access(asked, other))


@given(st.text(max_size=20))
def test_what_is_no_scope_is_refused_and_not_shown(text: str) -> None:
    """What stands where a scope should be may be another token."""
    if text in ("*", "operate", "defer") or text.startswith(("wait:", "fire:")):
        return
    with pytest.raises(ValueError, match=r"^write wait:PREFIX") as caught:
        Scope.parse(text)
    assert repr(text) not in str(caught.value)


@cases("make", [lambda token: token, _hash])
def test_a_token_is_known_as_it_is_and_by_its_hash(make: Callable[[str], str]) -> None:
    """The client always sends the token; its hash opens nothing."""
    tokens = BearerTokens([(make(TOKENS[0]), "*")])
    assert _permit(tokens, TOKENS[0]).identity
    for wrong in (_hash(TOKENS[0]), _hash(TOKENS[0])[7:], TOKENS[0][:-1], TOKENS[1]):
        with pytest.raises(Problem) as caught:
            _permit(tokens, wrong)
        assert caught.value.status == 401


def test_other_credentials_are_no_token() -> None:
    """All of them are answered alike, with the scheme that is wanted."""
    for values in [
        (),
        ("",),
        ("Bearer",),
        ("Bearer ",),
        (f"Basic {TOKENS[0]}",),
        (TOKENS[0],),
        (f"Bearer {TOKENS[0]} x",),
        (f"Bearer {TOKENS[0]},Bearer {TOKENS[0]}",),
        (f"Bearer \xe9{TOKENS[0]}",),
        ("Bearer " + "x" * 513,),
    ]:
        with pytest.raises(Problem) as caught:
            BearerTokens([(TOKENS[0], "*")])(_request(*values))
        assert (caught.value.status, caught.value.headers) == (401, {"WWW-Authenticate": "Bearer"})
        assert TOKENS[0] not in caught.value.detail


def test_the_scheme_is_read_in_any_case() -> None:
    """RFC 9110, 11.1."""
    tokens = BearerTokens([(TOKENS[0], "*")])
    assert tokens(_request(f"bEARER   {TOKENS[0]}")).identity


def test_as_much_is_compared_whichever_token_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token, once: also for none, for a wrong one, and behind the one that matched."""
    tokens = BearerTokens([(token, "*") for token in TOKENS])
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def counting(known: bytes, given: bytes) -> bool:
        compared.append(known)
        return compare(known, given)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    found = set()
    for token in [*TOKENS, "of-nobody-at-all-here", ""]:
        compared.clear()
        try:
            found.add(_permit(tokens, token).identity)
        except Problem:
            pass
        assert len(compared) == len(set(compared)) == len(TOKENS)
    assert len(found) == len(TOKENS)


def _reachable(start: object) -> list[Any]:
    """Everything that data leads to; classes, functions and modules are everyone's."""
    seen: dict[int, Any] = {}
    left = [start]
    while left:
        item = left.pop()
        if id(item) in seen or (callable(item) and item is not start):
            continue
        seen[id(item)] = item
        left += gc.get_referents(item)
    return list(seen.values())


def test_nothing_leads_from_the_tokens_to_a_token() -> None:
    """Only hashes are kept; and the identity that a token gives is not the whole of its hash."""
    token, entry = new_token()
    text = f"{token} wait:a* # for tests\n{TOKENS[0]} operate\n"
    tokens = BearerTokens.from_text(text)
    permit = _permit(tokens, token)
    found = _reachable(tokens) + _reachable(permit)
    assert any(isinstance(item, bytes) and item.hex() in entry for item in found)
    for secret in (token, TOKENS[0]):
        assert not any(secret in item for item in found if isinstance(item, str))
        assert not any(secret.encode() in item for item in found if isinstance(item, bytes))
        assert secret not in repr(tokens) + repr(permit) + repr(vars(tokens))
    assert permit.identity is not None and permit.identity.startswith("token-")
    assert entry.removeprefix("sha256:") not in permit.identity


SECRET = "this-one-must-not-be-shown"


def test_an_entry_that_is_no_good_is_named_by_its_number() -> None:
    """And never shown, wherever in its line the secret stands."""
    for text, number in [
        ("short *", 2),
        (f"{SECRET}", 2),
        (f"{SECRET} # *", 2),
        (f"{SECRET} {SECRET}", 2),
        (f"{SECRET} read:orders", 2),
        (f"{SECRET} wait", 2),
        (f"wait:orders:of-many {SECRET}", 2),
        (f"{SECRET}! *", 2),
        (f"{SECRET}\xe9 *", 2),
        (f"sha256:{SECRET} *", 2),
        ("sha256:" + "A" * 64 + " *", 2),
        ("sha256:" + "a" * 63 + " *", 2),
        ("x" * 513 + " *", 2),
    ]:
        with pytest.raises(ValueError, match=f"token {number} ") as caught:
            BearerTokens.from_text(f"{TOKENS[0]} *\n\n# of nobody\n{text}\n")
        assert SECRET not in str(caught.value) and "aaaa" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_what_is_not_allowed_names_the_scope_for_it() -> None:
    """As it is written, and not the key."""
    for access, scope in [
        (Access(Action.WAIT, "b"), "wait:PREFIX*, with a PREFIX of the key"),
        (Access(Action.FIRE, "b"), "fire:PREFIX*, with a PREFIX of the key"),
        (Access(Action.WAIT), "wait:PREFIX*"),
        (Access(Action.DEFER), "defer"),
        (
            Access(Action.DEFER, dedupe_key="b"),
            "defer, or defer:PREFIX* with a PREFIX of the dedupe key",
        ),
        (Access(Action.OPERATE), "operate"),
        (READ, "observe, or operate"),
        (Access(Action.METRICS), "metrics, observe or operate"),
    ]:
        with pytest.raises(Problem) as caught:
            _permit(BearerTokens([(TOKENS[0], "fire:a*")]), TOKENS[0]).check(access)
        wanted = f"the token does not allow this: use one with the scope {scope}"
        assert (caught.value.status, caught.value.detail) == (403, wanted)


@cases(
    "entry, words",
    [
        (("short", "*"), "token 1 has a length of 5, less than 16, and could be guessed"),
        ((TOKENS[0], ""), "token 1 has no scope, and so allows nothing: write its scopes after it"),
        ((TOKENS[0], "* read"), "token 1 has an invalid scope, the one at place 2: write wait:"),
    ],
)
def test_an_entry_that_is_no_good_has_the_way_out(entry: tuple[str, str], words: str) -> None:
    """What it lacks, and the command that makes another."""
    with pytest.raises(ValueError, match="token 1 ") as caught:
        BearerTokens([entry])
    assert words in str(caught.value)


@cases("text", ["", " \n", "# nothing\n", ";;"])
def test_no_token_at_all_is_refused(text: str) -> None:
    """It would lock everyone out, which nobody means."""
    with pytest.raises(ValueError, match="there are 0 tokens, not 1 to 10000: `purgatory token"):
        BearerTokens.from_text(text)


def test_too_many_tokens_and_the_same_one_twice_are_refused() -> None:
    """Of two entries one would be without effect."""
    with pytest.raises(ValueError, match=r"10001 tokens, not 1 to 10000$"):
        BearerTokens((_hash(str(number)), "*") for number in range(10_001))
    with pytest.raises(ValueError, match="given twice"):
        BearerTokens([(TOKENS[0], "operate"), (_hash(TOKENS[0]), "wait:*")])


def test_a_file_of_tokens(tmp_path: Path) -> None:
    """Lines with any white space; a # within a scope is part of the key."""
    path = tmp_path / "tokens"
    lines = [
        "# who may do what",
        f"{TOKENS[0]}\twait:a#b   fire:*  # the shop",
        f"  {_hash(TOKENS[1])} operate",
        "",
        f"{TOKENS[2]} wait:x*;{TOKENS[3]} *",
    ]
    path.write_bytes("\r\n".join(lines).encode())
    tokens = BearerTokens.from_file(path)
    assert len(tokens) == 4
    assert _allows(_permit(tokens, TOKENS[0]), Access(Action.WAIT, "a#b"))
    assert not _allows(_permit(tokens, TOKENS[0]), Access(Action.WAIT, "a"))
    assert _allows(_permit(tokens, TOKENS[0]), Access(Action.FIRE, "any"))
    assert _allows(_permit(tokens, TOKENS[1]), Access(Action.OPERATE))
    assert not _allows(_permit(tokens, TOKENS[1]), Access(Action.WAIT, "x"))
    assert _allows(_permit(tokens, TOKENS[3]), Access(Action.OPERATE))


def test_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    """As editors on Windows write: the first token counts."""
    path = tmp_path / "tokens"
    path.write_text(f"{TOKENS[0]} operate", encoding="utf-8-sig")
    assert _allows(_permit(BearerTokens.from_file(path), TOKENS[0]), Access(Action.OPERATE))


def test_new_tokens_are_long_and_all_different() -> None:
    """And what stands in the file for one is its hash."""
    made = [new_token() for _ in range(50)]
    assert len({token for token, _ in made}) == 50
    assert all(len(token) >= 43 and entry == _hash(token) for token, entry in made)


def test_an_operation_changes_something_unless_it_says_that_it_does_not() -> None:
    """A scope to look at everything must not be enough to end a wait or a job."""
    observe = Scope.parse("observe")
    assert observe.allows(READ) and not observe.allows(Access(Action.OPERATE))

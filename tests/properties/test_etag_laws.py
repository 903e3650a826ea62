"""Entity tags: If-None-Match is read, and compared, as RFC 9110 has it."""

from hypothesis import example, given
from hypothesis import strategies as st

from purgatory.fastapi.http.parameters import EntityTags, opaque_tag

# etagc = %x21 / %x23-7E / obs-text
ETAGC = [0x21, *range(0x23, 0x7F), *range(0x80, 0x100)]
OPAQUE = st.lists(st.sampled_from(ETAGC), max_size=6).map(lambda codes: b'"%b"' % bytes(codes))
SPACE = st.text(" \t", max_size=2).map(str.encode)
GARBAGE = st.lists(st.sampled_from(list(b'W/"*, \tab\x00\x7f\n\xff')), max_size=12).map(bytes)


@st.composite
def tags(draw: st.DrawFn) -> bytes:
    """An entity tag, weak or strong."""
    return (b"W/" if draw(st.booleans()) else b"") + draw(OPAQUE)


@st.composite
def fields(draw: st.DrawFn, members: list[bytes]) -> list[bytes]:
    """`members` as the fields of a request: spaces, empty elements and several lines allowed."""
    text = [b""]
    for member in members:
        empty = draw(st.booleans())
        text[-1] += draw(SPACE) + (b"," + draw(SPACE) if empty else b"") + member + draw(SPACE)
        if draw(st.booleans()):
            text.append(b"")
        else:
            text[-1] += b","
    return text


@given(st.data(), st.lists(tags(), min_size=1, max_size=5), tags())
def test_it_matches_what_it_names_and_nothing_else(
    data: st.DataObject, named: list[bytes], etag: bytes
) -> None:
    """However a list is written, and whichever side is weak."""
    parsed = EntityTags.parse(data.draw(fields(named)))
    assert parsed is not None
    model = {tag.removeprefix(b"W/") for tag in named}
    assert parsed.match(etag) == (etag.removeprefix(b"W/") in model)
    assert all(parsed.match(tag) for tag in named)
    # Weak comparison, 8.8.3.2: each of the four combinations.
    for tag in model:
        assert parsed.match(tag) and parsed.match(b"W/" + tag)


@given(st.data(), st.lists(tags(), min_size=1, max_size=5), tags())
def test_strongly_it_matches_neither_by_a_weak_tag_nor_a_weak_one(
    data: st.DataObject, named: list[bytes], etag: bytes
) -> None:
    """As If-Match asks: the same octets, and both strong."""
    parsed = EntityTags.parse(data.draw(fields(named)))
    assert parsed is not None
    strong = [tag for tag in named if not tag.startswith(b"W/")]
    assert parsed.match_strongly(etag) == (etag in strong)
    for tag in named:
        assert parsed.match_strongly(tag) == (tag in strong)
    star = EntityTags.parse([b"*"])
    assert star is not None and star.match_strongly(etag) != etag.startswith(b"W/")


@given(tags(), SPACE)
def test_a_star_matches_every_tag(etag: bytes, space: bytes) -> None:
    """It stands for whatever there is, as long as that has a tag."""
    parsed = EntityTags.parse([space + b"*" + space])
    assert parsed is not None
    assert parsed.match(etag)
    assert not parsed.match(b"unquoted") and not parsed.match(b"")


@given(tags(), tags())
def test_a_star_in_a_list_is_not_allowed(one: bytes, other: bytes) -> None:
    """13.1.2: either the star or a list."""
    assert EntityTags.parse([one, b"*", other]) is None
    assert EntityTags.parse([b"*," + one]) is None


@given(st.lists(GARBAGE, max_size=3), GARBAGE)
@example([b'"a" "b"'], b'"a"')
@example([b'"a'], b'"a')
@example([b"W/"], b"W/")
@example([b'w/"a"'], b'"a"')
@example([b",,"], b"")
def test_no_garbage_breaks_it(garbage: list[bytes], etag: bytes) -> None:
    """Whatever is sent is a list of tags or it is nothing; what is no tag matches nothing."""
    parsed = EntityTags.parse(garbage)
    if opaque_tag(etag) is None:
        assert parsed is None or not parsed.match(etag)
    if parsed is not None and not parsed.is_any:
        assert parsed.opaque_tags
        for tag in parsed.opaque_tags:
            assert tag in b",".join(garbage)
            assert opaque_tag(tag) == tag and parsed.match(tag)


@given(st.integers(1_000, 5_000))
def test_a_long_list_takes_time_in_proportion(size: int) -> None:
    """A header that is all separators or all quotes is dealt with at once."""
    assert EntityTags.parse([b"," * size]) is None
    assert EntityTags.parse([b'"' * (2 * size)]) is None
    assert EntityTags.parse([b" \t" * size + b"x"]) is None
    assert EntityTags.parse([b'"a" ' + b" \t" * size + b"x"]) is None

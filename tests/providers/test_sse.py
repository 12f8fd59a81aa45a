"""Server-sent events out of bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abeyance.actors.providers import sse
from abeyance.actors.providers.sse import EventTooLongError, ServerSentEvent, SseDecoder


def decoded(*chunks: bytes) -> list[ServerSentEvent]:
    decoder = SseDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


@pytest.mark.parametrize("ending", [b"\n", b"\r", b"\r\n"])
def test_every_line_ending_is_one(ending: bytes):
    # A last lone CR may be half of a CRLF, so its event waits for the next byte.
    data = ending.join([b"event: a", b"data: 1", b"", b"data: 2", b"data:3", b"", b": x"])
    assert decoded(data) == [ServerSentEvent("a", "1"), ServerSentEvent("", "2\n3")]


def test_comments_unknown_fields_and_empty_events_are_skipped():
    data = b": hi\n\nid: 7\nretry: 5\n\nevent: only a name\n\ndata\n\n"
    assert decoded(data) == [ServerSentEvent("", "")]


def test_an_event_that_the_stream_ends_in_is_not_returned():
    assert decoded(b"data: whole\n\ndata: half\n") == [ServerSentEvent("", "whole")]


def test_bytes_that_are_no_text_are_replaced():
    assert decoded(b"data: \xff\n\n") == [ServerSentEvent("", "�")]


@given(
    st.lists(st.tuples(st.text("abc", max_size=3), st.text("xyzäß🙂 ", min_size=1, max_size=9))),
    st.lists(st.integers(1, 7), min_size=1),
)
def test_events_do_not_depend_on_how_bytes_are_cut(events: list[tuple[str, str]], cuts: list[int]):
    data = "".join(f"event: {name}\r\ndata: {text}\r\n\r\n" for name, text in events).encode()
    chunks, position = [], 0
    while position < len(data):
        size = cuts[len(chunks) % len(cuts)]
        chunks.append(data[position : position + size])
        position += size
    assert decoded(*chunks) == [ServerSentEvent(name, text) for name, text in events]


@pytest.mark.parametrize("line", [b"data: xxxxxxxx\n", b"xxxxxxxxxxxxxx"])
def test_an_event_without_an_end_is_refused_at_its_bound(
    line: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sse, "EVENT_CHARS_MAX", 100)
    decoder = SseDecoder()
    for _ in range(100 // len(line) - 1):
        decoder.feed(line)
    with pytest.raises(EventTooLongError):
        decoder.feed(line * 3)

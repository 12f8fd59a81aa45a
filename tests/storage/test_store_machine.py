"""Random programs against each store and a dictionary, with crashes and reopenings in between."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from abeyance.storage import codec
from abeyance.storage.check import check
from abeyance.storage.store import (
    Append,
    Chain,
    Committed,
    Delete,
    Guard,
    Put,
    Refused,
    Request,
)
from abeyance.storage.tables.slots import Wake
from abeyance.storage.tables.waits import LogLine

_KEYS = [("a", 0), ("a", 1), ("b", 0), ("b\0", 0)]
_KEY = st.sampled_from(_KEYS)
# What a request believes: mostly the truth, else something near it.
_BELIEF = st.sampled_from([0, 0, 0, 0, 1, -1])
_STEP = st.fixed_dictionaries(
    {
        "guards": st.lists(st.tuples(_KEY, _BELIEF), max_size=2),
        "puts": st.lists(_KEY, max_size=2, unique=True),
        "deletes": st.lists(_KEY, max_size=1),
        "appends": st.integers(0, 2),
        "sender": st.sampled_from([None, None, "s", "t"]),
    }
)


class _Machine(RuleBasedStateMachine):
    """`model` holds (counter, author) by key; `log` the texts by allotted key."""

    def __init__(self, make: Any, kind: str) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.opener = make(kind, self.directory)
        self.store = self.opener.open()
        self.model: dict[Any, tuple[int, str]] = {}
        self.log: dict[Any, str] = {}
        self.allotted: list[Any] = []
        self.epochs = {"s": 0, "t": 0}
        self.written = 0

    def teardown(self) -> None:
        self.opener.close()
        shutil.rmtree(self.directory)

    @rule(steps=st.lists(_STEP, min_size=1, max_size=4))
    def commit(self, steps: list[dict[str, Any]]) -> None:
        # The model decides each request as it is planned, so that beliefs can be true or not.
        model, wanted, refused = dict(self.model), [], set()
        requests = []
        for step in steps:
            request, author = self._request(step, model)
            requests.append(request)
            if step["sender"] in refused:
                wanted.append("behind")
            elif any(model.get(g.key, (0, ""))[0] != g.counter for g in request.guards):
                wanted.append("refused")
                refused.add(step["sender"])
                refused.discard(None)
            else:
                wanted.append("committed")
                for put in request.puts:
                    model[put.key] = (model.get(put.key, (0, ""))[0] + 1, author)
                for delete in request.deletes:
                    model.pop(delete.key, None)
        outcomes = self.store.commit(*requests)
        for request, outcome, want in zip(requests, outcomes, wanted, strict=True):
            if want == "committed":
                assert isinstance(outcome, Committed)
                assert len(outcome.allotted) == len(request.appends)
                for key in outcome.allotted:
                    assert key not in self.allotted
                    assert not self.allotted or key > self.allotted[-1]
                    self.allotted.append(key)
                    self.log[key] = "line"
            else:
                assert isinstance(outcome, Refused)
                assert outcome.behind == (want == "behind")
        self.model = model
        for sender in refused:
            self.epochs[sender] += 1

    @rule(key=_KEY)
    def delete_log(self, key: Any) -> None:
        if self.log:
            gone = min(self.log)
            self.store.commit(Request(deletes=(Delete("log", gone),)))
            del self.log[gone]

    @rule()
    def crash(self) -> None:
        self.store = self.opener.crash(self.store)

    @rule()
    def reopen(self) -> None:
        self.store = self.opener.reopen(self.store)

    @invariant()
    def the_store_is_the_model(self) -> None:
        found = {key: (row.counter, row.record.author) for key, row in self.store.scan("wakes")}
        assert found == self.model
        assert list(found) == sorted(self.model, key=lambda key: (key[0].encode(), key[1]))
        for key in _KEYS:
            row = self.store.get("wakes", key)
            assert (None if row is None else row.counter) == self.model.get(key, (None,))[0]
        assert [key for key, _ in self.store.scan("log")] == sorted(self.log)
        assert check(self.store).is_sound

    def _request(self, step: dict[str, Any], model: dict[Any, Any]) -> tuple[Request, str]:
        self.written += 1
        author = f"author {self.written}"
        value = codec.encode(Wake(reason="message", author=author, at_ms=1))
        line = codec.encode(LogLine(event="line", at_ms=1))
        return (
            Request(
                guards=tuple(
                    Guard("wakes", key, max(0, model.get(key, (0, ""))[0] + off))
                    for key, off in step["guards"]
                ),
                puts=tuple(Put("wakes", key, value) for key in step["puts"]),
                deletes=tuple(
                    Delete("wakes", key) for key in step["deletes"] if key not in step["puts"]
                ),
                appends=(Append("log", line),) * step["appends"],
                chain=(
                    None
                    if step["sender"] is None
                    else Chain(step["sender"], self.epochs[step["sender"]])
                ),
            ),
            author,
        )


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_a_store_does_what_a_dictionary_would(make_opener: Any, kind: str) -> None:
    run_state_machine_as_test(
        lambda: _Machine(make_opener, kind),
        settings=settings(
            max_examples=40 if kind == "memory" else 25,
            stateful_step_count=15,
            suppress_health_check=list(HealthCheck),
        ),
    )

"""Agents, slots and runs are owned by one live process, and taken over from a dead one."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from abeyance.storage import ownership as ownership_module
from abeyance.storage.errors import LockTimeoutError, NoFileLocksError, OwnedElsewhereError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.locks import is_locked
from abeyance.storage.memory import MemoryStore
from abeyance.storage.ownership import Ownership, plan_take
from abeyance.storage.store import Committed, Guard, Request, Row
from abeyance.storage.tables.ownership import Owner

from ..stopping import stop_between_commits

ANA = ("agent", "ana")
SLOT = ("slot", "ana")


@pytest.fixture
def own(tmp_path: Path) -> Any:
    """Openings of one memory store, each with a proof of life of its own."""
    made: list[Ownership] = []

    def own(store: MemoryStore, pid: int = 7) -> Ownership:
        made.append(Ownership(store, tmp_path, host="here", pid=pid))
        return made[-1]

    yield own
    for ownership in made:
        ownership.close()


def _share(store: MemoryStore, pid: int) -> MemoryStore:
    """Another opening of the same rows, as another process would have it."""
    other = MemoryStore(pid=pid, host="there")
    own = other._durable.rows["processes"]
    other._durable = store._durable
    other._durable.rows["processes"].update(own)
    return other


# --- the decision table


def _owner(nonce: str, fence: int, counter: int) -> Row:
    return Row(counter, Owner(nonce=nonce, fence=fence))


@pytest.mark.parametrize(
    ("row", "counter", "fence"),
    [
        (None, 1, 1),
        (_owner("dead", 1, 1), 2, 2),
        (_owner("dead", 7, 9), 10, 8),
        (_owner("me", 3, 4), 4, None),
    ],
    ids=["absent", "dead", "dead later", "own"],
)
def test_an_owner_row_is_taken_by_its_owners_state(row: Any, counter: int, fence: Any) -> None:
    taking = plan_take(
        {ANA: row},
        nonce="me",
        is_alive=lambda nonce: nonce in ("me", "alive"),
        whereabouts=lambda nonce: (1, "h"),
        ops_max=128,
    )
    assert taking.counters == {ANA: counter}
    if fence is None:
        assert taking.requests == ()
        return
    (request,) = taking.requests
    assert request.guards == (Guard("owners", ANA, 0 if row is None else row.counter),)
    store = MemoryStore()
    for _ in range(0 if row is None else row.counter):
        store.commit(Request(puts=request.puts))
    assert isinstance(store.commit(request)[0], Committed)
    assert store.get("owners", ANA) == Row(counter, Owner(nonce="me", fence=fence))


def test_a_row_of_a_live_owner_is_not_taken_and_says_where_it_is() -> None:
    with pytest.raises(OwnedElsewhereError) as caught:
        plan_take(
            {SLOT: None, ANA: _owner("alive", 1, 1)},
            nonce="me",
            is_alive=lambda nonce: True,
            whereabouts=lambda nonce: (42, "there"),
            ops_max=128,
        )
    error = caught.value
    assert (error.kind, error.name, error.pid, error.host) == ("agent", "ana", 42, "there")


def test_many_rows_are_taken_in_requests_that_fit_the_store() -> None:
    names = [("agent", f"a{n}") for n in range(100)]
    taking = plan_take(
        dict.fromkeys(names), nonce="me", is_alive=bool, whereabouts=lambda n: (1, ""), ops_max=128
    )
    assert [request.ops for request in taking.requests] == [128, 72]
    store = MemoryStore()
    assert all(isinstance(outcome, Committed) for outcome in store.commit(*taking.requests))
    assert set(taking.counters) == set(names)


def test_rows_that_are_owned_already_are_guarded_beside_those_that_are_taken() -> None:
    taking = plan_take(
        {ANA: _owner("me", 1, 3), SLOT: None},
        nonce="me",
        is_alive=bool,
        whereabouts=lambda nonce: (1, ""),
        ops_max=128,
    )
    assert taking.requests[0].guards == (Guard("owners", ANA, 3), Guard("owners", SLOT, 0))
    assert taking.counters == {ANA: 3, SLOT: 1}


# --- taking, over a store


def test_taking_returns_counters_that_guard_later_writes(own: Any, rows: Any) -> None:
    store = MemoryStore()
    counters = own(store).take(ANA, SLOT)
    assert counters == {ANA: 1, SLOT: 1}
    assert own(store.reopened()).nonce != store.nonce
    guards = tuple(Guard("owners", name, counter) for name, counter in counters.items())
    (outcome,) = store.commit(Request(guards=guards, puts=(rows.put(("ana", 1)),)))
    assert isinstance(outcome, Committed)


def test_taking_again_changes_nothing(own: Any) -> None:
    store = MemoryStore()
    ownership = own(store)
    ownership.take(ANA)
    before = store.revision()
    assert ownership.take(ANA) == {ANA: 1}
    assert store.revision() == before


def test_a_live_owner_is_named_by_pid_and_host(own: Any) -> None:
    first = MemoryStore(pid=7, host="here")
    second = _share(first, 8)
    own(first).take(ANA)
    with pytest.raises(OwnedElsewhereError) as caught:
        own(second, 8).take(SLOT, ANA)
    assert (caught.value.pid, caught.value.host) == (7, "here")
    assert second.get("owners", SLOT) is None


def test_a_dead_owner_is_taken_over_with_a_higher_fence_and_its_writes_are_refused(
    own: Any, rows: Any
) -> None:
    first = MemoryStore(pid=7)
    second = _share(first, 8)
    dying = own(first)
    old = dying.take(ANA)
    dying.close()
    assert own(second, 8).take(ANA) == {ANA: 2}
    assert second.get("owners", ANA).record.fence == 2  # type: ignore[union-attr]
    late = Request(guards=(Guard("owners", ANA, old[ANA]),), puts=(rows.put(("ana", 1)),))
    assert not isinstance(first.commit(late)[0], Committed)


def test_an_operator_may_force_a_take_over(own: Any) -> None:
    first = MemoryStore(pid=7)
    second = _share(first, 8)
    own(first).take(ANA)
    assert own(second, 8).take(ANA, force=True) == {ANA: 2}
    with pytest.raises(OwnedElsewhereError):
        own(first).take(ANA)


def test_the_loser_of_a_race_plans_again_and_hears_who_won(own: Any) -> None:
    first, faster = MemoryStore(pid=7), None
    second = _share(first, 8)
    slow, fast = own(first), own(second, 8)
    plan = slow.plan

    def plan_late(*names: Any, force: bool = False) -> Any:
        nonlocal faster
        taking = plan(*names, force=force)
        if faster is None:
            faster = fast.take(ANA)
        return taking

    slow.plan = plan_late
    with pytest.raises(OwnedElsewhereError) as caught:
        slow.take(ANA)
    assert caught.value.pid == 8


# --- proof of life


def test_a_proof_of_life_is_locked_from_its_first_instant_to_its_last(
    own: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, bool, bool]] = []
    store = MemoryStore()

    def look(point: str) -> None:
        proof = tmp_path / "owners" / store.nonce
        seen.append((point, proof.exists(), is_locked(proof)))

    monkeypatch.setattr(ownership_module, "crashpoint", look)
    ownership = own(store)
    look("alive")
    ownership.close()
    look("closed")
    assert seen == [
        ("ownership.before_rename", False, False),
        ("ownership.after_rename", True, True),
        ("alive", True, True),
        ("closed", False, False),
    ]


def test_many_probes_at_once_call_a_dead_owner_dead(tmp_path: Path) -> None:
    """Exclusive probes would see one another: the probe must be a shared one."""
    path = tmp_path / "dead"
    path.touch()
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert not is_locked(path)
    os.close(fd)
    assert not is_locked(tmp_path / "nobody")


def test_a_file_system_without_real_locks_is_refused(
    own: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("fcntl.flock", lambda fd, how: None)
    with pytest.raises(NoFileLocksError):
        own(MemoryStore())
    assert [p.name for p in (tmp_path / "owners").iterdir()] == []


def test_what_the_dead_left_is_cleared_and_the_living_are_kept(own: Any, tmp_path: Path) -> None:
    first = MemoryStore(pid=7)
    second, third = _share(first, 8), _share(first, 9)
    own(first)
    own(second, 8).close()
    (tmp_path / "owners" / second.nonce).touch()
    (tmp_path / "owners" / ".pending-dead").touch()
    clearing = own(third, 9)
    assert clearing.forget_dead() == 1
    assert {key[0] for key, _ in third.scan("processes")} == {first.nonce, third.nonce}
    assert {p.name for p in (tmp_path / "owners").iterdir()} == {first.nonce, third.nonce}


# --- real processes


def _ready(child: Any) -> None:
    assert child.stdout.readline() == "open\n", child.stderr.read()


def _go(child: Any) -> None:
    child.stdin.write("go\n")
    child.stdin.flush()


@pytest.mark.slow
def test_of_two_processes_that_race_for_an_agent_one_gets_it(spawn: Any, tmp_path: Path) -> None:
    for race in range(5):
        children = [spawn("owner.py", tmp_path / "state", f"ana{race}") for _ in range(2)]
        for child in children:
            _ready(child)
        for child in children:
            _go(child)
        said = [child.stdout.readline().split() for child in children]
        won = [n for n, words in enumerate(said) if words[0] == "took"]
        assert len(won) == 1, said
        winner = children[won[0]]
        loser = said[1 - won[0]]
        assert loser[:2] == ["elsewhere", str(winner.pid)]
        for child in children:
            child.communicate()


def test_a_killed_owner_is_taken_over_and_a_stopped_one_is_not(spawn: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    holder = spawn("owner.py", state, "ana")
    _ready(holder)
    _go(holder)
    assert holder.stdout.readline() == "took 1\n"
    store = LmdbStore.open(state, clock_ms=lambda: 1)
    ownership = Ownership(store, store.directory, host="here", pid=os.getpid())
    stop_between_commits(holder.pid, state)
    with pytest.raises(OwnedElsewhereError) as caught:
        ownership.take(ANA)
    assert caught.value.pid == holder.pid
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert ownership.take(ANA) == {ANA: 2}
    ownership.close()
    store.close()


@pytest.mark.parametrize("end", [signal.SIGCONT, signal.SIGKILL], ids=["goes-on", "is-killed"])
def test_a_process_stopped_inside_a_commit_keeps_the_others_from_writing_and_not_from_reading(
    spawn: Any, rows: Any, tmp_path: Path, end: signal.Signals
) -> None:
    state = tmp_path / "state"
    store = LmdbStore.open(state, clock_ms=lambda: 1, lock_timeout_s=0.05)
    holder = spawn("stopped.py", state)
    _ready(holder)
    _, status = os.waitpid(holder.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    (outcome,) = store.commit(rows.cas(("ana", 1), 0))
    assert isinstance(outcome.error, LockTimeoutError)
    assert str(holder.pid) in str(outcome.error)
    assert store.get("owners", ANA) is None
    holder.send_signal(end)
    holder.wait()
    assert isinstance(store.commit(rows.cas(("ana", 1), 0))[0], Committed)
    assert (store.get("owners", ANA) is not None) == (end is signal.SIGCONT)
    store.close()


def test_a_fork_that_outlives_its_parent_does_not_keep_it_alive(tmp_path: Path) -> None:
    """The child closes its copy of the lock; unlocking it would end the parent's proof early."""
    alive_r, alive_w = os.pipe()
    go_r, go_w = os.pipe()
    store = MemoryStore(nonce="parent")
    parent = os.fork()
    if parent == 0:
        Ownership(store, tmp_path, host="h", pid=1)
        if os.fork() == 0:
            os.write(alive_w, b"x")
            os.read(go_r, 1)
            os._exit(0)
        os.read(alive_r, 1)
        os._exit(0 if is_locked(tmp_path / "owners" / "parent") else 1)
    try:
        _, status = os.waitpid(parent, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert not is_locked(tmp_path / "owners" / "parent")
    finally:
        os.write(go_w, b"x")
        for fd in (alive_r, alive_w, go_r, go_w):
            os.close(fd)

"""Real deaths: a process is killed at each named point, and what it acknowledged is there."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from abeyance.storage.check import check
from abeyance.storage.crashpoints import CRASHPOINTS
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.locks import is_locked

PER_BATCH = 5
# What the child has to do to come by each point, and at which hit it dies.
POINTS = {
    "open.before_rename": ("plain", 1),
    "open.after_rename": ("plain", 1),
    "open.before_boot": ("plain", 1),
    "ownership.before_rename": ("owning", 1),
    "ownership.after_rename": ("owning", 1),
    "writer.after_flock": ("plain", 4),
    "writer.before_commit": ("plain", 4),
    "writer.after_commit": ("plain", 4),
    "service.before_reopen": ("failing", 1),
    "close.before_clean": ("plain", 1),
}


def _acknowledged(said: list[str]) -> int:
    return sum(line.startswith("acknowledged") for line in said)


def _recovered(store: Any) -> int:
    """Batches found, after seeing that each is whole, none is missing and none is there twice."""
    assert check(store).is_sound
    found = dict(store.scan("wakes"))
    numbers = sorted(key[1] for key in found)
    assert numbers == list(range(len(numbers)))
    assert all(row.counter == 1 for row in found.values())
    assert len(list(store.scan("log"))) == len(numbers)
    assert len(numbers) % PER_BATCH == 0
    return len(numbers) // PER_BATCH


def test_every_point_of_storage_is_killed_at() -> None:
    rooms = {"open", "writer", "service", "ownership", "close"}
    assert set(POINTS) == {name for name in CRASHPOINTS if name.split(".")[0] in rooms}


@pytest.mark.drawn(5)
@pytest.mark.parametrize("point", sorted(POINTS))
def test_what_was_acknowledged_is_there_after_a_death_at(
    point: str, spawn: Any, tmp_path: Path
) -> None:
    mode, hit = POINTS[point]
    state = tmp_path / "state"
    child = spawn("writer.py", state, 8, mode, crash_at=f"{point}:{hit}")
    out, err = child.communicate(timeout=60)
    said = out.splitlines()
    assert child.returncode == -signal.SIGKILL, (said, err)
    assert "closed" not in said
    store = LmdbStore.open(state, clock_ms=lambda: 2)
    try:
        acknowledged, recovered = _acknowledged(said), _recovered(store)
        # One batch may be in that nobody was told of; never more, and none too few.
        in_doubt = point in ("writer.after_commit", "service.before_reopen")
        assert recovered == acknowledged + in_doubt
        for proof in (store.directory / "owners").iterdir():
            assert not is_locked(proof)
        assert [p.name for p in state.iterdir()] == ["store"]
    finally:
        store.close()
    again = spawn("writer.py", state, 2, "owning")
    out, err = again.communicate(timeout=60)
    assert out.splitlines()[-1] == "closed", err


def test_what_was_acknowledged_is_there_after_deaths_at_random_instants(
    spawn: Any, tmp_path: Path, seed: int
) -> None:
    """The instants are drawn in acknowledgements, so that each death is in the midst of writing."""
    draw = random.Random(seed)
    acknowledged: dict[str, int] = {}
    state = tmp_path / "state"
    for _ in range(6):
        child = spawn("writer.py", state, 10_000, "plain")
        said = [child.stdout.readline() for _ in range(draw.randrange(1, 40))]
        child.kill()
        said += child.stdout.read().splitlines()
        child.wait()
        acknowledged[f"p{child.pid}"] = _acknowledged(said)
    store = LmdbStore.open(state, clock_ms=lambda: 2)
    assert check(store).is_sound
    for sender, batches in acknowledged.items():
        numbers = [key[1] for key, _ in store.scan("wakes", (sender,))]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) // PER_BATCH in (batches, batches + 1)
    store.close()


def test_processes_that_write_together_lose_nothing_when_one_is_killed(
    spawn: Any, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    LmdbStore.open(state, clock_ms=lambda: 1).close()
    children = [spawn("counter.py", state, additions) for additions in (60, 60, 100_000)]
    for child in children:
        assert child.stdout.readline() == "open\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    doomed = children.pop()
    added = 0
    while added < 20:
        doomed.stdout.readline()
        added += 1
    doomed.kill()
    added += len(doomed.stdout.read().splitlines())
    for child in children:
        out, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
        assert len(out.splitlines()) == 60
    store = LmdbStore.open(state, clock_ms=lambda: 2)
    counter = store.get("wakes", ("shared", 0)).counter  # type: ignore[union-attr]
    store.close()
    assert counter in (120 + added, 120 + added + 1)


def test_every_commit_is_synced(tmp_path: Path) -> None:
    """A kill would never miss a sync, since the page cache survives it; a power cut would."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    tracing = [strace, "-f", "-c", "-e", "trace=fdatasync"]
    counts = []
    for batches in (5, 25):
        script = str(Path(__file__).parent / "children" / "writer.py")
        state = str(tmp_path / f"state-{batches}")
        found = subprocess.run(
            [*tracing, sys.executable, script, state, str(batches), "plain"],
            capture_output=True,
            text=True,
            check=False,
        )
        if "closed" not in found.stdout:
            pytest.skip(f"strace may not trace here: {found.stderr[-200:]}")
        lines = [line.split() for line in found.stderr.splitlines()]
        counts.append(sum(int(line[3]) for line in lines if line[-1:] == ["fdatasync"]))
    # One a commit: the meta page goes through a descriptor that is itself opened synchronous.
    assert counts[1] - counts[0] == 20


def test_a_second_death_of_the_machine_is_no_worse(spawn: Any, tmp_path: Path) -> None:
    """A death while the store recovers from a death: the store is opened and killed again."""
    state = tmp_path / "state"
    for point in ("writer.before_commit:3", "open.before_boot:1", "open.before_boot:1"):
        child = spawn("writer.py", state, 8, "plain", crash_at=point)
        child.communicate(timeout=60)
        assert child.returncode == -signal.SIGKILL
    store = LmdbStore.open(state, clock_ms=lambda: 2)
    assert _recovered(store) == 2
    store.close()

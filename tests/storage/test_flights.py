"""The file that says what a process was handling when it died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from abeyance.storage.flights import (
    SLOT_BYTES,
    SLOTS_MAX,
    Flight,
    Flights,
    dead_flights,
    read_flights,
)


@pytest.fixture
def flights(tmp_path: Path):
    made = Flights(tmp_path, "nonce")
    yield made
    made.close()


def file(tmp_path: Path) -> Path:
    return tmp_path / "flights" / "nonce"


def test_note_is_read_until_it_is_taken_back(flights: Flights, tmp_path: Path) -> None:
    assert flights.note("a", "act 1", 1)
    assert flights.note("ä\0\1", "act 2", 3)
    assert set(read_flights(file(tmp_path))) == {
        Flight("a", "act 1", 1),
        Flight("ä\0\1", "act 2", 3),
    }
    assert flights.clear("a", "act 1")
    assert read_flights(file(tmp_path)) == (Flight("ä\0\1", "act 2", 3),)
    assert not flights.clear("a", "act 1")


def test_second_note_of_an_act_takes_the_place_of_the_first(
    flights: Flights, tmp_path: Path
) -> None:
    flights.note("a", "k", 1)
    flights.note("a", "k", 2)
    assert read_flights(file(tmp_path)) == (Flight("a", "k", 2),)


def test_slots_are_used_again(flights: Flights, tmp_path: Path) -> None:
    for n in range(50):
        flights.note("a", str(n), 1)
        flights.clear("a", str(n))
    assert file(tmp_path).stat().st_size <= SLOT_BYTES


@pytest.mark.parametrize(
    ("actor", "act"),
    [("a", "x" * 600), ("\ud800", "x"), ("a", 7)],
    ids=["too long", "no Unicode", "no text"],
)
def test_act_that_is_no_key_is_not_noted(flights: Flights, actor: str, act: str) -> None:
    assert not flights.note(actor, act, 1)


def test_notes_past_the_bound_are_not_taken(flights: Flights) -> None:
    assert all(flights.note("a", str(n), 1) for n in range(SLOTS_MAX))
    assert not flights.note("a", "more", 1)
    flights.clear("a", "7")
    assert flights.note("a", "more", 1)


@pytest.mark.parametrize("damaged", [0, 4, 6, 10, 17], ids=lambda at: f"byte {at}")
def test_slot_that_is_not_whole_reads_as_free_and_hides_no_other(
    flights: Flights, tmp_path: Path, damaged: int
) -> None:
    flights.note("a", "first", 1)
    flights.note("b", "second", 1)
    raw = bytearray(file(tmp_path).read_bytes())
    raw[damaged] ^= 0x01
    file(tmp_path).write_bytes(raw)
    assert read_flights(file(tmp_path)) == (Flight("b", "second", 1),)


@pytest.mark.parametrize("left", range(0, 21, 3))
def test_slot_that_was_cut_off_reads_as_free(flights: Flights, tmp_path: Path, left: int) -> None:
    flights.note("a", "first", 1)
    flights.note("b", "second", 1)
    raw = file(tmp_path).read_bytes()
    file(tmp_path).write_bytes(raw[: SLOT_BYTES + left])
    assert read_flights(file(tmp_path)) == (Flight("a", "first", 1),)


def test_garbage_reads_as_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(os.urandom(SLOT_BYTES * 3 + 5))
    assert read_flights(path) == ()


def test_close_deletes_the_file_and_later_notes_are_not_taken(
    flights: Flights, tmp_path: Path
) -> None:
    flights.note("a", "k", 1)
    flights.close()
    flights.close()
    assert not file(tmp_path).exists()
    assert not flights.note("a", "k", 1)
    assert not flights.clear("a", "k")


def test_only_files_of_the_dead_are_given(flights: Flights, tmp_path: Path) -> None:
    flights.note("a", "k", 1)
    other = Flights(tmp_path, "dead")
    other.note("b", "k", 2)
    found = list(dead_flights(tmp_path, lambda nonce: nonce == "nonce"))
    assert found == [(tmp_path / "flights" / "dead", (Flight("b", "k", 2),))]
    other.close()
    assert list(dead_flights(tmp_path / "nowhere", lambda nonce: False)) == []


def test_note_survives_a_kill(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from abeyance.storage.flights import Flights\n"
        "flights = Flights(Path(sys.argv[1]), 'nonce')\n"
        "flights.note('a', 'over', 1); flights.clear('a', 'over')\n"
        "flights.note('a', 'k', 2); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert read_flights(file(tmp_path)) == (Flight("a", "k", 2),)


def test_full_disk_refuses_the_note(flights: Flights, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert not flights.note("a", "k", 1)

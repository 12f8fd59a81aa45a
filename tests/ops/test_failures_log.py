"""The failures log: lines that stay lines, files that stay small and private."""

from __future__ import annotations

import json
import multiprocessing
import stat
import threading
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import Alert, AlertNotDeliveredError
from abeyance.actors.ops.failures_log import FILE_NAME, FILES_MAX, WRITE_S_MAX, FailuresLog, line_of


def alert(number: int = 1, text: str = "t") -> Alert:
    return Alert(number, "provider_wait", "ana", "m", text, None, f"e{number}", 1_000)


def write(directory: str, writer: int, count: int) -> None:
    log = FailuresLog(Path(directory), bytes_max=2_000)
    for number in range(count):
        log.append(line_of({"writer": writer, "number": number, "fill": "x" * 20}))


async def test_failures_log_appends_a_line_of_json_an_alert(tmp_path: Path) -> None:
    log = FailuresLog(tmp_path)
    for number in (1, 2):
        await log.deliver(alert(number))
    lines = (tmp_path / FILE_NAME).read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [1, 2]


def test_failures_log_is_turned_over_by_size_and_keeps_a_bounded_number_of_files(
    tmp_path: Path,
) -> None:
    write(str(tmp_path), 1, 400)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [FILE_NAME, *(f"{FILE_NAME}.{n}" for n in range(1, FILES_MAX))]
    numbers = []
    for name in reversed(files):
        path = tmp_path / name
        assert path.stat().st_size <= 2_000
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        numbers += [json.loads(line)["number"] for line in path.read_text().splitlines()]
    assert numbers == list(range(numbers[0], 400))


@pytest.mark.slow
def test_failures_log_of_several_processes_and_threads_loses_and_mixes_no_line(
    tmp_path: Path,
) -> None:
    context = multiprocessing.get_context("spawn")
    log = FailuresLog(tmp_path, bytes_max=2_000)
    log.append(line_of({"writer": 0, "number": 0}))
    others = [context.Process(target=write, args=(str(tmp_path), n, 8)) for n in (1, 2)]
    threads = [threading.Thread(target=write, args=(str(tmp_path), n, 8)) for n in (3, 4)]
    for each in (*others, *threads):
        each.start()
    for each in (*others, *threads):
        each.join(60)
    written = [
        (line["writer"], line["number"])
        for path in tmp_path.iterdir()
        for line in map(json.loads, path.read_text().splitlines())
    ]
    assert sorted(written) == [(0, 0), *((n, i) for n in (1, 2, 3, 4) for i in range(8))]


def test_failures_log_begins_a_line_behind_one_that_was_cut_off(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b'{"id":1,"te')
    FailuresLog(tmp_path).append(line_of({"id": 2}))
    assert (tmp_path / FILE_NAME).read_bytes() == b'{"id":1,"te\n{"id":2}\n'


def test_failures_log_that_is_readable_by_others_is_made_private(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch(0o644)
    FailuresLog(tmp_path).append(line_of({"id": 2}))
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600


class Held(FailuresLog):
    """Its thread writes the line and does not come back until it is let go."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.written = threading.Event()
        self.go = threading.Event()

    def append(self, line: bytes) -> None:
        super().append(line)
        self.written.set()
        self.go.wait(60)


async def test_failures_log_that_is_cancelled_while_its_line_is_written_has_delivered_it(
    tmp_path: Path,
) -> None:
    log = Held(tmp_path)
    delivered = []

    async def deliver() -> None:
        await log.deliver(alert())
        delivered.append(len((tmp_path / FILE_NAME).read_text().splitlines()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver)
        await trio.to_thread.run_sync(log.written.wait, 60)
        nursery.cancel_scope.cancel()
        log.go.set()
    assert delivered == [1]


async def test_failures_log_that_is_cancelled_before_it_begins_writes_nothing(
    tmp_path: Path,
) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await FailuresLog(tmp_path).deliver(alert())
    assert scope.cancelled_caught
    assert not (tmp_path / FILE_NAME).exists()


async def test_failures_log_whose_disk_hangs_says_so_in_time_also_to_who_is_cancelled(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    log = Held(tmp_path)
    with trio.CancelScope(deadline=1.0):
        with pytest.raises(AlertNotDeliveredError, match=r"takes no line \(not within 5 s\)"):
            await log.deliver(alert())
        assert trio.current_time() == WRITE_S_MAX
    log.go.set()


@pytest.mark.parametrize("kind", ["link", "directory"])
async def test_failures_log_writes_through_no_link_and_says_that_it_takes_no_line(
    tmp_path: Path, kind: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    if kind == "link":
        elsewhere.touch()
        (tmp_path / FILE_NAME).symlink_to(elsewhere)
    else:
        (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(AlertNotDeliveredError, match="takes no line"):
        await FailuresLog(tmp_path).deliver(alert())
    assert kind == "directory" or elsewhere.read_bytes() == b""

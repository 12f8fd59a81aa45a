"""What the source archive and the wheel hold, beside the checkout."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from .checkout import ROOT, checkout_files, succeed

# Files of a checkout that a source archive does not carry: they serve git, or link into the rooms.
_CHECKOUT_ONLY = {".gitattributes", ".github"}
# The build writes this one.
_ARCHIVE_ONLY = {"PKG-INFO"}


def _archive(distributions: Path) -> set[str]:
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        return {member.name.split("/", 1)[1] for member in archive if member.isfile()}


def _wheel(distributions: Path) -> set[str]:
    (path,) = distributions.glob("*.whl")
    return set(zipfile.ZipFile(path).namelist())


@pytest.mark.slow
def test_source_archive_holds_every_file_of_the_checkout_and_no_other(distributions: Path) -> None:
    expected = {f for f in checkout_files() if f.split("/")[0] not in _CHECKOUT_ONLY}
    assert _archive(distributions) - _ARCHIVE_ONLY == expected


def test_source_archive_keeps_scripts_executable(distributions: Path) -> None:
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        modes = {m.name.split("/", 1)[1]: m.mode for m in archive if m.isfile()}
    assert modes["dev"] & 0o111
    assert modes[".ci/run"] & 0o111


def test_wheel_holds_the_two_rooms_under_the_namespace_and_nothing_else(
    distributions: Path,
) -> None:
    rooms = {f"abeyance/{f}" for f in checkout_files() if f.split("/")[0] in {"actors", "storage"}}
    held = _wheel(distributions)
    about = {f for f in held if ".dist-info/" in f}
    assert held - about == rooms
    assert {Path(f).name for f in about} == {
        *("METADATA", "WHEEL", "RECORD", "LICENSE", "entry_points.txt"),
    }


def test_namespace_itself_holds_no_module(distributions: Path) -> None:
    assert "abeyance/__init__.py" not in _wheel(distributions)


def test_both_rooms_are_marked_as_typed(distributions: Path) -> None:
    assert {"abeyance/actors/py.typed", "abeyance/storage/py.typed"} <= _wheel(distributions)


def test_wheel_of_the_checkout_equals_the_wheel_of_the_source_archive(
    checkout: Path, distributions: Path, tmp_path: Path
) -> None:
    succeed(
        sys.executable,
        *("-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path),
        cwd=checkout,
    )
    assert _wheel(tmp_path) == _wheel(distributions)


def test_every_requirement_has_a_lower_and_an_upper_bound(distributions: Path) -> None:
    (path,) = distributions.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        (name,) = (n for n in wheel.namelist() if n.endswith("/METADATA"))
        metadata = Parser().parsestr(wheel.read(name).decode())
    required = [str(r).partition(";")[0] for r in metadata.get_all("Requires-Dist", [])]
    # tzdata is data: its versions are dates, and a newer one is always the better one.
    unbounded = [r for r in required if ">=" not in r or "<" not in r]
    assert [r for r in unbounded if not r.startswith("tzdata>=")] == []


def test_version_is_written_in_one_place(distributions: Path) -> None:
    written: dict[str, str] = {}
    exec((ROOT / "actors" / "_version.py").read_text(), written)
    (path,) = distributions.glob("*.whl")
    assert path.name.startswith(f"abeyance-{written['__version__']}-")

"""Each way to install it, beside hosts that have modules of the same bare names."""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from .checkout import ROOT, run, succeed

_IMPORTS = "import abeyance.actors, abeyance.storage; print(abeyance.actors.__file__)"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host application with a `storage.py` and an `actors` package of its own."""
    home = tmp_path / "host"
    (home / "actors").mkdir(parents=True)
    (home / "storage.py").write_text("OWNER = 'host'\n")
    (home / "actors" / "__init__.py").write_text("OWNER = 'host'\n")
    (home / "main.py").write_text(
        "import actors, storage\n"
        "import abeyance.actors, abeyance.storage\n"
        "assert actors.OWNER == storage.OWNER == 'host'\n"
        "assert abeyance.actors is not actors and abeyance.storage is not storage\n"
        "import storage as again\n"
        "assert again is storage\n"
        "print('both')\n"
    )
    return home


@pytest.mark.slow
def test_wheel_imports_beside_a_host_with_modules_of_the_same_names(
    distributions: Path, environment: Path, install: Callable[..., str], host: Path
) -> None:
    install(*distributions.glob("*.whl"))
    assert succeed(environment, "main.py", cwd=host).strip() == "both"


@pytest.mark.slow
def test_source_archive_installs_and_imports(
    distributions: Path, environment: Path, install: Callable[..., str], host: Path
) -> None:
    install(*distributions.glob("*.tar.gz"))
    assert succeed(environment, "main.py", cwd=host).strip() == "both"


def test_editable_install_imports_from_the_checkout_and_sees_new_modules(
    checkout: Path, environment: Path, install: Callable[..., str], host: Path
) -> None:
    install("--editable", checkout)
    assert succeed(environment, "main.py", cwd=host).strip() == "both"
    where = succeed(environment, "-c", _IMPORTS, cwd=host).strip()
    assert Path(where).resolve() == (checkout / "actors" / "__init__.py").resolve()
    new = checkout / "storage" / "added_later.py"
    new.write_text("HERE = True\n")
    try:
        succeed(environment, "-c", "from abeyance.storage.added_later import HERE", cwd=host)
    finally:
        new.unlink()


@pytest.mark.slow
def test_uninstalling_leaves_the_hosts_files_alone(
    distributions: Path, environment: Path, install: Callable[..., str], host: Path, tmp_path: Path
) -> None:
    install(*distributions.glob("*.whl"))
    site = Path(
        succeed(
            environment,
            "-c",
            "import sysconfig; print(sysconfig.get_path('purelib'))",
            cwd=tmp_path,
        ).strip()
    )
    (site / "storage.py").write_text("OWNER = 'another distribution'\n")
    succeed(
        *(sys.executable, "-m", "pip", "--python", environment, "uninstall", "--yes", "--quiet"),
        "abeyance",
        cwd=tmp_path,
    )
    assert (site / "storage.py").exists()
    assert [f for f in site.rglob("abeyance*/**/*") if f.is_file()] == []


@pytest.mark.slow
def test_console_script_is_installed_and_names_its_version(
    distributions: Path, environment: Path, install: Callable[..., str], tmp_path: Path
) -> None:
    install(*distributions.glob("*.whl"))
    assert "demo" in succeed(environment.parent / "abeyance", "--help", cwd=tmp_path)


@pytest.mark.parametrize("room", ["actors", "storage"])
def test_room_refuses_to_be_imported_by_its_bare_name(room: str) -> None:
    done = run(sys.executable, "-c", f"import {room}", cwd=ROOT)
    assert done.returncode != 0
    assert f"import abeyance.{room}, not the folder" in done.stdout


def test_source_archive_links_its_rooms_when_the_script_sets_it_up(
    distributions: Path, tmp_path: Path
) -> None:
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("abeyance-*")
    assert not (unpacked / ".dev").exists()
    # Stops before anything is downloaded: the interpreter it is told to use does not exist.
    done = run("./dev", "test", cwd=unpacked, PYTHON="no-such-python")
    assert done.returncode == 2
    assert (unpacked / ".dev" / "abeyance" / "actors" / "__init__.py").is_file()
    assert (unpacked / ".dev" / "abeyance" / "storage" / "__init__.py").is_file()

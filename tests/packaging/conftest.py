"""A scratch copy of the checkout, its distributions, and environments to install them into.

No network: distributions are built with the backend that is installed here, and an environment
sees this one's dependencies (but not its editable project) through a path file.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from .checkout import LINKS, ROOT, checkout_files, succeed


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout as it stands, links included, apart from what git ignores."""
    if not (ROOT / ".git").exists():
        pytest.skip("the file lists are compared in a checkout; this is not one")
    copy = tmp_path_factory.mktemp("checkout")
    for name in checkout_files():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    for room in LINKS:
        link = copy / ".dev" / "abeyance" / room
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path("..", "..", room))
    return copy


@pytest.fixture(scope="session")
def distributions(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive of the checkout and the wheel built from that archive."""
    out = tmp_path_factory.mktemp("dist")
    succeed(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, cwd=checkout)
    return out


@pytest.fixture(scope="session")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Links to what is installed here, except the project itself: an uninstall must not see it."""
    folder = tmp_path_factory.mktemp("dependencies")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "abeyance" not in entry.name and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture
def environment(dependencies: Path, tmp_path: Path) -> Path:
    """A new environment that can import this one's dependencies and not its abeyance."""
    home = tmp_path / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    inside = Path(
        sysconfig.get_path("purelib", "venv", vars={"base": str(home), "platbase": str(home)})
    )
    (inside / "outer.pth").write_text(f"{dependencies}\n")
    return home / "bin" / "python"


@pytest.fixture
def install(environment: Path, tmp_path: Path) -> Callable[..., str]:
    """Install into `environment` without dependencies and without an index."""

    def _install(*what: str | Path) -> str:
        return succeed(
            sys.executable,
            *("-m", "pip", "--python", environment, "install"),
            *("--no-deps", "--no-index", "--no-build-isolation", "--quiet"),
            *("--ignore-installed", "--disable-pip-version-check"),
            *what,
            cwd=tmp_path,
        )

    return _install

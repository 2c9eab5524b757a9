"""Files from the network: from the first mirror that has the right one."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from rushlight.io.files import PathLike, replacing
from rushlight.version import __version__

Progress: TypeAlias = Callable[[int, "int | None"], Any]

_PIECE = 1 << 18


class DownloadError(OSError):
    """No mirror gave the file.  The message lists what each said and what to do."""


class _MirrorError(Exception):
    """What is wrong with one mirror."""


def download_file(
    urls: str | Sequence[str],
    path: PathLike,
    sha256: str | None = None,
    *,
    md5: str | None = None,
    timeout: float = 30.0,
    progress: Progress | None = None,
) -> str:
    """Fetch a file from the first of some mirrors that has it, and return its path.

    A file that is there and right is kept without asking anybody. Otherwise `path` is written whole
    or not at all, and its folder is made. sha256, md5: what the bytes must give, in hexadecimal; at
    least one is needed. timeout: seconds without an answer until the next mirror is tried.
    progress: called with the bytes so far and, where the server says it, their number in all.
    Raises: DownloadError (an OSError) when every mirror fails; OSError when the file cannot be
    written; ValueError without a checksum or a mirror.
    """
    urls = [urls] if isinstance(urls, str) else list(urls)
    path = os.fspath(path)
    sums = {kind: x.lower() for kind, x in (("sha256", sha256), ("md5", md5)) if x is not None}
    if not urls or not sums:
        raise ValueError("download_file: expected at least one URL and a checksum, sha256 or md5")
    if os.path.isfile(path) and _problem(sums, _digests_of(path, sums)) is None:
        return path
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    tried = []
    for url in urls:
        try:
            _fetch(url, path, sums, timeout, progress)
            return path
        except _MirrorError as error:
            tried.append(f"  {url}: {error}")
    wanted = " and ".join(f"{kind} {x}" for kind, x in sums.items())
    raise DownloadError(
        f"could not download {os.path.basename(path)}; tried\n" + "\n".join(tried) + "\n"
        f"Check the network, or fetch the file on another machine and put it at {path} ({wanted})"
    )


def _fetch(
    url: str, path: str, sums: dict[str, str], timeout: float, progress: Progress | None
) -> None:
    digests = _new_digests(sums)
    with _open(url, timeout) as answer, replacing(path) as file:
        length = answer.headers.get("Content-Length", "")
        total = int(length) if length.isdigit() else None
        done = 0
        while piece := _read(answer):
            file.write(piece)
            for digest in digests.values():
                digest.update(piece)
            done += len(piece)
            if progress is not None:
                progress(done, total)
        if total is not None and done < total:
            raise _MirrorError(f"the connection ended after {done} of {total} bytes")
        problem = _problem(sums, {kind: x.hexdigest() for kind, x in digests.items()})
        if problem is not None:
            raise _MirrorError(problem)


def _open(url: str, timeout: float) -> Any:
    try:
        request = urllib.request.Request(url, headers={"User-Agent": f"rushlight/{__version__}"})
        return urllib.request.urlopen(request, timeout=timeout)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _MirrorError(_text(error)) from error


def _read(answer: Any) -> bytes:
    try:
        piece: bytes = answer.read(_PIECE)
        return piece
    except (OSError, http.client.HTTPException) as error:
        raise _MirrorError(_text(error)) from error


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


def _new_digests(sums: dict[str, str]) -> dict[str, Any]:
    return {kind: hashlib.new(kind, usedforsecurity=False) for kind in sums}


def _digests_of(path: str, sums: dict[str, str]) -> dict[str, str]:
    digests = _new_digests(sums)
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            for digest in digests.values():
                digest.update(piece)
    return {kind: digest.hexdigest() for kind, digest in digests.items()}


def _problem(wanted: dict[str, str], got: dict[str, str]) -> str | None:
    for kind, value in wanted.items():
        if got[kind] != value:
            return f"wrong checksum: {kind} is {got[kind]}, expected {value}"
    return None

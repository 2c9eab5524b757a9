"""Files to read, and writing files whole or not at all."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, TypeAlias

from rushlight.errors import FormatError

PathLike: TypeAlias = "str | os.PathLike[str]"
_count = itertools.count()  # keeps threads of one process apart


def open_ordinary(path: PathLike) -> BinaryIO:
    """The file, open to be read.

    Raises: FileNotFoundError, IsADirectoryError, FormatError for a pipe and the like.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "there is no such file", os.fspath(path)) from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "a folder, expected a file", os.fspath(path))
    if not stat.S_ISREG(mode):
        raise FormatError(f"{path}: not an ordinary file")
    return open(path, "rb")


def one_line(error: BaseException) -> str:
    """What an error says, in a line that is no longer than can be read."""
    text = " ".join(str(error).split())
    return text if len(text) <= 400 else f"{text[:150]}...{text[-240:]}"  # a name may be endless


@contextmanager
def replacing(path: PathLike) -> Iterator[BinaryIO]:
    """A binary file that takes the place of `path` when the block ends without an error.

    Until then it is called `<path>.<pid>-<n>.part`, beside it; on any error, Ctrl-C included, it is
    removed and the file at `path` stays as it was. The contents are on the disk before the name is.
    Raises: OSError with the path: full disk, missing folder, not an ordinary file.
    """
    target = os.path.realpath(path)  # a link stays a link
    if os.path.isdir(target):
        raise IsADirectoryError(errno.EISDIR, "cannot be written: a folder", os.fspath(path))
    if os.path.exists(target) and not os.path.isfile(target):
        raise OSError(errno.EINVAL, "cannot be replaced: not an ordinary file", os.fspath(path))
    part = f"{target}.{os.getpid()}-{next(_count)}.part"
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(target):
            os.chmod(part, os.stat(target).st_mode & 0o7777)
        os.replace(part, target)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(part)
        if not isinstance(error, OSError) or error.errno is None:
            raise
        if error.filename not in (None, part):
            raise  # of another file, which the block reads
        why = f"{error.strerror}; nothing was written or replaced"
        raise OSError(error.errno, why, os.fspath(path)) from error
    _sync_folder(os.path.dirname(target))


def write_atomic(path: PathLike, data: bytes | str) -> None:
    """Write a small file, text as UTF-8, under the promises of `replacing`."""
    with replacing(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def _sync_folder(folder: str) -> None:
    """Put the folder's new entry on the disk, where a folder can be opened for that."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

"""Standard output, which may be closed, full, or read by somebody who leaves."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable
from contextlib import suppress


def prepare() -> None:
    """Make standard output one that can be written: to nowhere where there is none."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that cannot show all of Unicode
        sys.stdout.reconfigure(errors="replace")


def tell(line: str) -> None:
    """Print a line that the command can do without, should nobody take it."""
    with suppress(OSError):
        write([line + "\n"])


def write(pieces: Iterable[str]) -> bool:
    """Write each piece at once, as long as somebody reads on (unlike `| head`); whether all were.

    Raises: OSError that names standard output, for a full disk.
    """
    try:
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at exit: let that, and what comes, go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OSError(error.errno, error.strerror, "standard output") from None
    return True

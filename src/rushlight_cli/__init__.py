"""The command line.  A package of its own, so that `rushlight --help` need not load NumPy.

A command is a module with `add_arguments(parser)` and `run(options)`, which gives the exit code; it
loads Rushlight when it runs. Exit codes: 0, 1 for failures, 2 for usage, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from rushlight_cli.config import UsageError, nearest
from rushlight_cli.output import prepare

COMMANDS = {
    "train": "train a model on text or images",
    "sample": "let a trained model write",
    "predict": "say what images show",
    "convert": "turn a .pth file of weights into safetensors",
    "info": "what this machine and installation have",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, like all other errors."""
        print(f"{self.prog}: {message}; --help tells more", file=sys.stderr)
        sys.exit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    prepare()
    parser = _Parser(
        prog="rushlight",
        description="Neural networks on the machine you already have.",
        epilog="rushlight COMMAND --help tells more",
    )
    parser.add_argument("--version", action="store_true", help="print the version and end")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary.capitalize() + ".")
        if name in given[:1]:
            command.add_argument("--debug", action="store_true", help="show where an error arose")
            import_module(f"rushlight_cli.{name}").add_arguments(command)
    if given and not given[0].startswith("-") and given[0] not in COMMANDS:
        hint = nearest(given[0], COMMANDS)
        print(f"rushlight: unknown command {given[0]!r}{hint}", file=sys.stderr)
        return 2
    options = parser.parse_args(given)
    if options.version:
        from importlib.metadata import version

        print(f"rushlight {version('rushlight')}")
        return 0
    if options.command is None:
        parser.print_help()
        return 2
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    """The command's exit code; errors become one line, unless they are to be debugged."""
    try:
        return int(import_module(f"rushlight_cli.{options.command}").run(options))
    except KeyboardInterrupt:
        print(f"rushlight {options.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # nobody reads on, as with `| head`; nor at exit, when Python flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if options.debug:
            raise
        from rushlight.errors import ConfigError

        print(f"rushlight {options.command}: {_one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, UsageError | ConfigError) else 1


def _one_line(error: Exception) -> str:
    """What went wrong, in one line; an error that nobody foresaw is named."""
    from rushlight import errors

    message = " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return message or "out of memory"
    if isinstance(error, UsageError) or type(error).__module__ == errors.__name__:
        return message
    return f"{type(error).__name__}: {message} (--debug shows where)"

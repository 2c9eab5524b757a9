"""Say what images show, with a trained classifier.

    rushlight predict runs/flowers rose.jpg tulip.jpg

A line for each image: its likeliest classes, with their probabilities.
"""

from __future__ import annotations

import argparse
import sys

from rushlight_cli import output
from rushlight_cli.config import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add = parser.add_argument
    add("folder", metavar="RUN", help="folder of a run, the --out of `rushlight train`")
    add("images", nargs="+", metavar="IMAGE", help="image files, of any kind that Pillow reads")
    add("--top", type=int, default=3, metavar="N", help="classes to name; default: %(default)s")
    add("--weights", default="best", metavar="WHICH", help="best or last; default: %(default)s")


def run(options: argparse.Namespace) -> int:
    """Print the top classes of each image; 1 when one of them could not be read."""
    from rushlight.classify import load_classifier
    from rushlight.data.vision import default_loader
    from rushlight.errors import FormatError, ShapeError

    if options.top < 1:
        raise UsageError(f"--top must be at least 1, got {options.top}")
    classifier = load_classifier(options.folder, options.weights)
    failed = 0
    for path in options.images:
        try:
            top = classifier.top(default_loader(path), options.top)
        except (FormatError, OSError, ShapeError) as error:
            why = error.strerror if isinstance(error, OSError) else None
            why = str(error) if isinstance(error, ShapeError) else why
            print(f"rushlight predict: {f'{path}: {why}' if why else error}", file=sys.stderr)
            failed += 1
            continue
        line = "  ".join(f"{name} {share:.1%}" for name, share in top)
        if not output.write([f"{path}: {line}\n"]):
            break
    return 1 if failed else 0

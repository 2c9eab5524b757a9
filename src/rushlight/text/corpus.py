"""From text files to a file of tokens, in pieces, so that a corpus need not fit into memory."""

from __future__ import annotations

import codecs
import json
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rushlight.data import TokenFile
from rushlight.errors import ConfigError, FormatError
from rushlight.io import replacing, write_atomic
from rushlight.text.tokenizer import (
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    tokenizer_from_dict,
)

TOKENS, DESCRIPTION = "tokens.bin", "tokens.json"
PIECE = 1 << 20  # bytes read at a time
# What differs from one installation to the next, and tables that are hardly code.
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
_LEFT_OUT |= {"encodings", "pydoc_data", "__pycache__"}


@dataclass(frozen=True)
class Corpus:
    """Tokens on disk and the tokenizer that made them."""

    tokens: TokenFile  # (N,)
    tokenizer: Tokenizer
    skipped: int  # files of folders that are not text


def standard_library() -> list[Path]:
    """The Python files of the interpreter's standard library, without its tests."""
    folder = Path(sysconfig.get_path("stdlib"))
    paths = sorted(folder.rglob("*.py"))
    return [path for path in paths if not _LEFT_OUT & set(path.relative_to(folder).parts)]


def find_files(paths: Sequence[str | Path], kind: str) -> tuple[list[Path], int]:
    """The files named, and those text files below the folders named; how many were no text.

    kind: "byte" takes every file without zero bytes for text, "char" wants UTF-8.

    Hidden files and folders, and the folders of runs, are left out. The standard library's source
    when no path is given.
    Raises: ConfigError for a path that is neither file nor folder.
    """
    found, skipped = [] if paths else standard_library(), 0
    for path in map(Path, paths):
        if path.is_dir():
            runs = {p.parent for p in path.rglob(DESCRIPTION)}
            below = [p for p in sorted(path.rglob("*")) if p.is_file() and not _hidden(p, path)]
            below = [p for p in below if runs.isdisjoint(p.parents)]
            text = [p for p in below if _is_text(p, kind)]
            found += text
            skipped += len(below) - len(text)
        elif path.is_file():
            found.append(path)
        elif path.exists():
            raise ConfigError(f"{path}: not an ordinary file")
        else:
            raise ConfigError(f"{path}: no such file or folder")
    return found, skipped


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _is_text(path: Path, kind: str) -> bool:
    try:
        for _ in _pieces(path, kind):
            pass
    except FormatError:
        return False
    return True


def _pieces(path: Path, kind: str) -> Iterator[Any]:
    """The contents of a file bit by bit, as bytes or as characters.  Raises: FormatError."""
    return _text(path) if kind == "char" else _bytes(path)


def _bytes(path: Path) -> Iterator[bytes]:
    start = 0
    with path.open("rb") as file:
        while piece := _read(file, path):
            if b"\0" in piece:
                where = start + piece.index(b"\0")
                raise FormatError(f"{path}: not text: byte {where} is 0; leave it out")
            yield piece
            start += len(piece)


def _read(file: BinaryIO, path: Path) -> bytes:
    try:
        return file.read(PIECE)
    except OSError as error:  # which does not know its file
        raise OSError(error.errno, error.strerror, str(path)) from error


def _text(path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    start = 0
    try:
        for piece in _bytes(path):
            yield decoder.decode(piece)
            start += len(piece)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        where = start + error.start  # at most three bytes off, after a character in two pieces
        raise FormatError(
            f"{path}: not UTF-8 text near byte {where}; convert it, or use --tokens byte"
        ) from None


def write_corpus(paths: Sequence[str | Path], kind: str, folder: Path) -> Corpus:
    """Encode text files, one after the other, into tokens.bin and tokens.json of a folder.

    kind: "byte" or "char" (the symbols are those of the text, sorted).
    Raises: ConfigError, FormatError (no text at all, not text), OSError.
    """
    files, skipped = find_files(paths, kind)
    files = [path for path in files if folder.resolve() not in path.resolve().parents]
    tokenizer: Tokenizer = ByteTokenizer()
    if kind == "char":
        symbols: set[str] = set()
        for path in files:
            for text in _text(path):
                symbols.update(text)
        if symbols:
            tokenizer = CharTokenizer("".join(sorted(symbols)))
    count, dtype = 0, "uint8"
    with replacing(folder / TOKENS) as out:
        for path in files:
            for piece in _pieces(path, kind):
                tokens = tokenizer.encode(piece)
                count, dtype = count + len(tokens), tokens.dtype.name
                out.write(tokens.tobytes())
        if not count:
            named = ", ".join(map(str, paths)) or "the standard library"
            raise FormatError(f"{named}: no text to learn from")
    description = {"tokenizer": tokenizer.to_dict(), "dtype": dtype, "count": count}
    description |= {"sources": [str(path) for path in paths], "skipped": skipped}
    write_atomic(folder / DESCRIPTION, json.dumps(description, indent=1) + "\n")
    return read_corpus(folder)


def read_corpus(folder: Path) -> Corpus:
    """The corpus of a folder.  Raises: FormatError when its files are damaged or missing."""
    description, tokenizer = read_description(folder)
    path = folder / TOKENS
    try:
        tokens = TokenFile(path, description["dtype"])
        count, skipped = description["count"], description["skipped"]
    except FileNotFoundError:
        raise FormatError(f"{path} is missing") from None
    except (KeyError, TypeError) as error:
        raise FormatError(f"{folder / DESCRIPTION}: damaged: {error}") from None
    if len(tokens) != count:
        raise FormatError(f"{path}: {len(tokens)} tokens, {DESCRIPTION} says {count}")
    return Corpus(tokens, tokenizer, skipped)


def read_description(folder: Path) -> tuple[dict[str, Any], Tokenizer]:
    """What tokens.json says of a corpus, and its tokenizer.  Raises: FormatError."""
    path = folder / DESCRIPTION
    try:
        description = json.loads(path.read_text("utf-8"))
        return description, tokenizer_from_dict(description["tokenizer"])
    except FileNotFoundError:
        raise FormatError(f"{path} is missing") from None
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path}: damaged: {error}") from None

"""Tokenizers without merges: one token per byte, or one per character.

Both are a few array operations per text, so that a corpus of many megabytes takes a moment.
Tokens are one-dimensional arrays of the smallest dtype that holds them and that tensors know.
"""

from __future__ import annotations

import codecs
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from rushlight.errors import FormatError

Tokens: TypeAlias = npt.NDArray[Any]


class Decoder(Protocol):
    """Turns tokens into text one by one; all pieces joined are what `decode` gives."""

    def feed(self, token: int) -> str:
        """The text that is certain with one more token, perhaps none yet."""

    def flush(self) -> str:
        """What is left when no token follows."""


class Tokenizer(Protocol):
    """What all tokenizers have."""

    @property
    def vocabulary(self) -> int:
        """Number of different tokens."""

    def encode(self, text: str) -> Tokens:
        """Tokens (N,) of a text.  Raises: ValueError for text it has no tokens for."""

    def decode(self, tokens: npt.ArrayLike) -> str:
        """The text of tokens (N,).  Raises: ValueError for one outside the vocabulary."""

    def decoder(self) -> Decoder:
        """A fresh decoder for tokens that come one by one."""

    def to_dict(self) -> dict[str, Any]:
        """What `tokenizer_from_dict` makes the same tokenizer of; fit for JSON."""


class ByteTokenizer:
    """The 256 bytes of UTF-8 text: knows every text and every file."""

    vocabulary = 256

    def encode(self, text: str | bytes) -> Tokens:
        """The bytes of a text in UTF-8, or bytes as they are: (N,) uint8.

        What Python could not decode of a file name or an argument becomes the bytes it was.
        Raises: ValueError for other lone surrogates, which are half a character.
        """
        if isinstance(text, str):
            text = text.encode("utf-8", "surrogateescape")
        return np.frombuffer(text, np.uint8)

    def decode_bytes(self, tokens: npt.ArrayLike) -> bytes:
        """The bytes of tokens (N,): exact, where `decode` replaces what is no UTF-8."""
        return _checked(tokens, self.vocabulary).astype(np.uint8).tobytes()

    def decode(self, tokens: npt.ArrayLike) -> str:
        """The text of tokens (N,); bytes that are no UTF-8 become U+FFFD.

        Raises: ValueError for tokens outside 0 to 255.
        """
        return self.decode_bytes(tokens).decode("utf-8", "replace")

    def decoder(self) -> Decoder:
        """A decoder that holds bytes back until their character is complete."""
        return _ByteDecoder()

    def to_dict(self) -> dict[str, Any]:
        """Its kind, which is all there is."""
        return {"kind": "byte"}


class _ByteDecoder:
    def __init__(self) -> None:
        self._state = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        return self._state.decode(bytes([_in_range(token, 256)]))

    def flush(self) -> str:
        return self._state.decode(b"", final=True)


class CharTokenizer:
    """One token per character: token i is symbols[i].

    symbols: all different; `of` collects those of a text in sorted order.
    Raises: ValueError for none, for one that comes twice, and for lone surrogates.
    """

    def __init__(self, symbols: str) -> None:
        self.symbols = symbols
        self._codes = _code_points(symbols)
        if not symbols or len(set(symbols)) != len(symbols):
            raise ValueError(
                "CharTokenizer: expected different symbols, at least one; "
                "CharTokenizer.of(text) collects them"
            )
        if any(0xD800 <= code < 0xE000 for code in self._codes):
            raise ValueError("CharTokenizer: a lone surrogate is half a character, not a symbol")
        self._dtype = np.dtype(np.uint8 if len(symbols) <= 256 else np.int32)
        # One place per code point, and one more, that any code point beyond is sent to.
        self._token_of = np.full(int(self._codes.max()) + 2, -1, np.int32)
        self._token_of[self._codes] = np.arange(len(symbols))

    @classmethod
    def of(cls, text: str) -> CharTokenizer:
        """The tokenizer of all characters of a text, in sorted order."""
        return cls("".join(sorted(set(text))))

    @property
    def vocabulary(self) -> int:
        """Number of symbols."""
        return len(self.symbols)

    def encode(self, text: str) -> Tokens:
        """A token per character: (N,), uint8 up to 256 symbols, else int32.

        Raises: ValueError for characters that are no symbols.
        """
        codes = _code_points(text)
        tokens = self._token_of[np.minimum(codes, len(self._token_of) - 1)]
        unknown = tokens < 0
        if unknown.any():
            different = list(dict.fromkeys(map(chr, codes[unknown][:10_000])))
            named = ", ".join(map(repr, different[:5])) + ", ..." * (len(different) > 5)
            raise ValueError(
                f"the text that the {self.vocabulary} symbols were collected from had no {named}"
            )
        return tokens.astype(self._dtype)

    def decode(self, tokens: npt.ArrayLike) -> str:
        """The text of tokens (N,).  Raises: ValueError for one outside the vocabulary."""
        codes = self._codes[_checked(tokens, self.vocabulary)]
        return codes.tobytes().decode("utf-32-le")

    def decoder(self) -> Decoder:
        """A decoder: each token is a whole character."""
        return _CharDecoder(self.symbols)

    def to_dict(self) -> dict[str, Any]:
        """Its kind and symbols."""
        return {"kind": "char", "symbols": self.symbols}


class _CharDecoder:
    def __init__(self, symbols: str) -> None:
        self._symbols = symbols

    def feed(self, token: int) -> str:
        return self._symbols[_in_range(token, len(self._symbols))]

    def flush(self) -> str:
        return ""


def tokenizer_from_dict(state: Any) -> Tokenizer:
    """The tokenizer that `to_dict` described.  Raises: FormatError for anything else."""
    if state == {"kind": "byte"}:
        return ByteTokenizer()
    if isinstance(state, dict) and state.keys() == {"kind", "symbols"} and state["kind"] == "char":
        try:
            return CharTokenizer(state["symbols"])
        except (ValueError, TypeError, AttributeError) as error:
            raise FormatError(f"tokenizer: {error}") from None
    raise FormatError(
        "tokenizer: expected {'kind': 'byte'} or {'kind': 'char', 'symbols': ...}, "
        f"got {state!r:.80}"
    )


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    # Surrogates pass here, so that they can be named as any other unknown character.
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.dtype("<u4"))


def _checked(tokens: npt.ArrayLike, vocabulary: int) -> Tokens:
    array = np.asarray(tokens)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size > 0):
        raise ValueError(
            f"decode: expected a row of integers, got {array.dtype} of shape {array.shape}"
        )
    if array.size > 0:
        _in_range(int(array.min()), vocabulary)
        _in_range(int(array.max()), vocabulary)
    return array if array.size > 0 else array.astype(np.int64)


def _in_range(token: int, vocabulary: int) -> int:
    if not 0 <= token < vocabulary:
        raise ValueError(f"decode: token {token} is outside the vocabulary of {vocabulary}")
    return token

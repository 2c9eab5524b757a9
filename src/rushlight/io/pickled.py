"""Pickles read as data: a machine for their operations that can call nothing.

Python's own unpickler calls what a file names, so a list of allowed names has to be right in every
detail, and even with an empty list a small file can make it take all memory (one large memo number)
or all time (the hash of a tuple that holds itself often). Here a name is a `Word`, nothing is ever
imported, and a call of a word is a look-up in a table that the reader of a format brings.

Work and memory are in proportion to the file: lengths are checked against the bytes that are there,
operations and copied items are counted, and keys are plain values whose hashes nobody can choose.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

MOST_OPERATIONS = 10_000_000  # about 40 to a tensor; at worst 100 bytes of memory each
_MOST_KEY = 1 << 60  # below it, no two integers have the same hash
_Source: TypeAlias = Any  # bytes, or what has read, readline and tell

# From the arguments and the function that counts copied items to the value
Maker: TypeAlias = Callable[[tuple[Any, ...], Callable[[int], None]], Any]


@dataclass(frozen=True, slots=True)
class Word:
    """The name of something in a Python module, as a pickle gives it; never looked up."""

    name: str


class Object:
    """What a maker returns when a pickle may go on to give it a state (BUILD)."""

    def build(self, state: Any, spend: Callable[[int], None]) -> None:
        """Take the state.  Raises: ValueError."""
        raise NotImplementedError


class Machine:
    """Runs pickles.

    words: the full names that a pickle may use; a maker where it may call them, None where not.
    stored: makes the value of a persistent id.  size: bytes the work has to be in proportion to.
    """

    def __init__(
        self, words: Mapping[str, Maker | None], stored: Callable[[Any], Any], size: int
    ) -> None:
        self.words = words
        self.stored = stored
        self.left = (1 << 18) + 2 * size
        self.operations = 0

    def run(self, source: _Source) -> Any:
        """The value of the pickle that begins at source; a file is left right behind it.

        Values are None, bool, int, float, str, bytes, list, tuple, dict, set, Word and what makers
        return; containers may be shared and may hold themselves.  Raises: ValueError.
        """
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        try:
            for name, argument in _operations(source):
                self.operations += 1
                if self.operations > MOST_OPERATIONS:
                    raise ValueError(f"more than {MOST_OPERATIONS:,} operations in its pickle")
                if name in _ARGUMENTS:
                    self.stack.append(argument)
                elif name in _OPERATIONS:
                    _OPERATIONS[name](self, argument)
                else:
                    raise ValueError(f"its pickle has the operation {name}, unknown in such files")
            return self.stack.pop()
        except (IndexError, KeyError):
            raise ValueError("its pickle is damaged: a value is missing") from None

    def spend(self, items: int) -> None:
        """Count items that are copied.  Raises: ValueError when they are out of proportion."""
        self.left -= items
        if self.left < 0:
            raise ValueError("its pickle unfolds to far more than its size")

    def last(self, count: int) -> list[Any]:
        """Take so many values off the stack."""
        return [self.stack.pop() for _ in range(count)][::-1]

    def marked(self) -> list[Any]:
        """Take what lies on the stack above the last mark."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items


def _operations(source: _Source) -> Iterator[tuple[str, Any]]:
    """Names and arguments of a pickle's operations.  Raises: ValueError."""
    try:
        for operation, argument, _ in pickletools.genops(source):
            yield operation.name, argument
    except ValueError as error:
        raise ValueError(f"its pickle is cut or damaged: {error}") from None


# ---- operations ----


def _pop(m: Machine, _: Any) -> None:
    if m.marks and m.marks[-1] == len(m.stack):
        m.marks.pop()
    else:
        m.stack.pop()


def _fill(m: Machine, kind: type[Any], items: list[Any]) -> None:
    """Put items into the list, dict or set on top of the stack."""
    top = m.stack[-1]
    if not isinstance(top, kind):
        raise ValueError(f"its pickle is damaged: it fills a {kind.__name__} that is none")
    if kind is list:
        top.extend(items)
    else:
        top.update(_pairs(items) if kind is dict else map(plain_key, items))


def _pairs(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise ValueError("its pickle is damaged: a key without a value")
    return {plain_key(k): v for k, v in zip(items[::2], items[1::2], strict=True)}


def plain_key(key: Any) -> Any:
    """The key, when it is one that a dict or set may have.  Raises: ValueError."""
    if type(key) is int and abs(key) >= _MOST_KEY:
        raise ValueError("a dict of its pickle has an integer key of more than 60 bits")
    if key is not None and type(key) not in (str, int, float, bool, bytes):
        kind = key.name if isinstance(key, Word) else type(key).__name__
        raise ValueError(f"a dict of its pickle has a key of type {kind}; text and numbers can be")
    return key


def _put(m: Machine, number: Any) -> None:
    if number >= _MOST_KEY:
        raise ValueError("its pickle is damaged: a value with too large a number")
    m.memo[number] = m.stack[-1]


def _word(m: Machine, name: str) -> None:
    if name not in m.words:
        raise ValueError(refusal(name))
    m.stack.append(Word(name))


def _word_of_two(m: Machine, _: Any) -> None:
    module, name = m.last(2)
    if not isinstance(name, str) or not isinstance(module, str):
        raise ValueError("its pickle is damaged: a name that is no text")
    _word(m, f"{module}.{name}")


def _refuse(m: Machine, pair: Any) -> None:
    raise ValueError(refusal(pair.replace(" ", ".", 1)))


def _call(m: Machine, _: Any) -> None:
    word, arguments = m.last(2)
    m.stack.append(make(word, arguments, m.words, m.spend))


def make(
    word: Any, arguments: Any, words: Mapping[str, Maker | None], spend: Callable[[int], None]
) -> Any:
    """What a call of a word means.  Raises: ValueError for words that are not called."""
    maker = words.get(word.name) if isinstance(word, Word) else None
    if maker is None or not isinstance(arguments, tuple):
        wanted = word.name if isinstance(word, Word) else f"a {type(word).__name__}"
        raise ValueError(refusal(wanted))
    return maker(arguments, spend)


def _build(m: Machine, _: Any) -> None:
    state, value = m.stack.pop(), m.stack[-1]
    if isinstance(value, Object):
        value.build(state, m.spend)
    elif not isinstance(value, dict):  # a dict's are attributes, such as _metadata: left out
        raise ValueError(f"its pickle gives a state to a {type(value).__name__}")


def refusal(name: str) -> str:
    """Why a pickle that names something is not read."""
    shown = name if len(name) <= 80 else name[:77] + "..."
    if not shown.isprintable():
        shown = ascii(shown)
    return (
        f"its pickle wants to call {shown}; refused, and nothing was run: only tensors, containers "
        "and numbers are read, because calling what a file names runs its code. (Of a model, save "
        "the state_dict().)"
    )


_ARGUMENTS = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    )
)
# By name; each takes the machine and the operation's argument
_OPERATIONS: dict[str, Callable[[Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda m, _: None),
    "NONE": lambda m, _: m.stack.append(None),
    "NEWTRUE": lambda m, _: m.stack.append(True),
    "NEWFALSE": lambda m, _: m.stack.append(False),
    "EMPTY_LIST": lambda m, _: m.stack.append([]),
    "EMPTY_TUPLE": lambda m, _: m.stack.append(()),
    "EMPTY_DICT": lambda m, _: m.stack.append({}),
    "EMPTY_SET": lambda m, _: m.stack.append(set()),
    "BYTEARRAY8": lambda m, data: m.stack.append(bytes(data)),
    "LIST": lambda m, _: m.stack.append(m.marked()),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.marked())),
    "DICT": lambda m, _: m.stack.append(_pairs(m.marked())),
    "FROZENSET": lambda m, _: m.stack.append(set(map(plain_key, m.marked()))),
    "TUPLE1": lambda m, _: m.stack.append(tuple(m.last(1))),
    "TUPLE2": lambda m, _: m.stack.append(tuple(m.last(2))),
    "TUPLE3": lambda m, _: m.stack.append(tuple(m.last(3))),
    "APPEND": lambda m, _: _fill(m, list, m.last(1)),
    "APPENDS": lambda m, _: _fill(m, list, m.marked()),
    "SETITEM": lambda m, _: _fill(m, dict, m.last(2)),
    "SETITEMS": lambda m, _: _fill(m, dict, m.marked()),
    "ADDITEMS": lambda m, _: _fill(m, set, m.marked()),
    "MARK": lambda m, _: m.marks.append(len(m.stack)),
    "POP": _pop,
    "POP_MARK": lambda m, _: m.marked().clear(),
    "DUP": lambda m, _: m.stack.append(m.stack[-1]),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _put),
    "MEMOIZE": lambda m, _: _put(m, len(m.memo)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda m, n: m.stack.append(m.memo[n])),
    "GLOBAL": lambda m, pair: _word(m, pair.replace(" ", ".", 1)),
    "STACK_GLOBAL": _word_of_two,
    "REDUCE": _call,
    "NEWOBJ": _call,
    "BUILD": _build,
    "INST": _refuse,  # of Python 2's classes
    "BINPERSID": lambda m, _: m.stack.append(m.stored(m.stack.pop())),
}

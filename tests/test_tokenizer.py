"""Tokenizers: round trips, streaming, what they refuse."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rushlight as rl
from rushlight.text import ByteTokenizer, CharTokenizer, tokenizer_from_dict

TEXTS = [
    "",
    " ",
    "\n\r\n\t",
    "café",
    "cafe\u0301",
    "漢字かな",
    "👩‍👩‍👧‍👦 🏳️‍🌈",
    "a\0b\0",
    "\x80\xff",
    "\ufeffx\uffff",
    "\U0010ffff",
]
texts = st.text(st.characters(exclude_categories=["Cs"]))


def streamed(tokenizer, tokens):
    decoder = tokenizer.decoder()
    pieces = [decoder.feed(token) for token in tokens.tolist()]
    return [*pieces, decoder.flush()]


def check_round_trip(tokenizer, text):
    tokens = tokenizer.encode(text)
    assert tokens.ndim == 1
    assert len(tokens) == 0 or 0 <= tokens.min() <= tokens.max() < tokenizer.vocabulary
    assert tokenizer.decode(tokens) == tokenizer.decode(tokens.tolist()) == text
    pieces = streamed(tokenizer, tokens)
    assert "".join(pieces) == text
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")
    again = tokenizer_from_dict(json.loads(json.dumps(tokenizer.to_dict())))
    assert type(again) is type(tokenizer)
    assert np.array_equal(again.encode(text), tokens)


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(text):
    check_round_trip(ByteTokenizer(), text)
    check_round_trip(CharTokenizer.of(text + "~"), text)


@given(texts)
def test_any_text(text):
    check_round_trip(ByteTokenizer(), text)
    check_round_trip(CharTokenizer.of(text + "~"), text)


@given(st.binary())
def test_any_bytes(data):
    tokenizer = ByteTokenizer()
    tokens = tokenizer.encode(data)
    assert tokens.tolist() == list(data)
    assert tokenizer.decode_bytes(tokens) == data
    assert "".join(streamed(tokenizer, tokens)) == tokenizer.decode(tokens)


def test_every_single_byte():
    tokenizer = ByteTokenizer()
    assert tokenizer.vocabulary == 256
    for byte in range(256):
        tokens = tokenizer.encode(bytes([byte]))
        assert tokenizer.decode_bytes(tokens) == bytes([byte])
        text = chr(byte) if byte < 128 else "\ufffd"
        assert tokenizer.decode(tokens) == "".join(streamed(tokenizer, tokens)) == text
    # Python's own way to keep such bytes in file names and arguments
    assert tokenizer.encode("a\udc80").tolist() == [97, 128]


def test_pieces_are_whole_characters():
    tokenizer = ByteTokenizer()
    assert streamed(tokenizer, tokenizer.encode("aé👧")) == ["a", "", "é", "", "", "", "👧", ""]
    assert streamed(tokenizer, tokenizer.encode("👧")[:3]) == ["", "", "", "\ufffd"]


def test_symbols_are_sorted_and_their_order_is_kept():
    assert CharTokenizer.of("hello\n").symbols == "\nehlo"
    assert CharTokenizer.of("hello\n").encode("hell").tolist() == [2, 1, 3, 3]
    assert CharTokenizer("ba").encode("ab").tolist() == [1, 0]


@pytest.mark.parametrize(("count", "dtype"), [(256, np.uint8), (257, np.int32)])
def test_smallest_dtype(count, dtype):
    symbols = "".join(map(chr, range(count)))
    tokens = CharTokenizer(symbols).encode(symbols)
    assert tokens.dtype == dtype
    assert tokens.tolist() == list(range(count))
    assert rl.tensor(tokens).dtype.numpy == dtype


def test_unknown_characters_are_named():
    tokenizer = CharTokenizer.of("abc")
    with pytest.raises(ValueError, match=r"the 3 symbols .* had no 'é', '漢', '\\ud800'$"):
        tokenizer.encode("aéb漢é\ud800")
    with pytest.raises(ValueError, match=r"no 'd', 'e', 'f', 'g', 'h', \.\.\.$"):
        tokenizer.encode("abcdefghij" * 3)
    with pytest.raises(ValueError, match="surrogates"):
        ByteTokenizer().encode("\ud800")


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharTokenizer.of("abc")])
def test_tokens_outside_are_refused(tokenizer):
    for token in (-1, tokenizer.vocabulary):
        with pytest.raises(ValueError, match=f"token {token} is outside"):
            tokenizer.decode([0, token])
        with pytest.raises(ValueError, match=f"token {token} is outside"):
            tokenizer.decoder().feed(token)
    for wrong in ([0.5], [[0]], ["a"]):
        with pytest.raises(ValueError, match="row of integers"):
            tokenizer.decode(wrong)


@pytest.mark.parametrize("symbols", ["", "aba", "a\ud800"])
def test_symbols_refused(symbols):
    with pytest.raises(ValueError, match="CharTokenizer"):
        CharTokenizer(symbols)
    with pytest.raises(rl.FormatError, match="CharTokenizer"):
        tokenizer_from_dict({"kind": "char", "symbols": symbols})


@pytest.mark.parametrize(
    "state",
    [
        None,
        3,
        "byte",
        [],
        {},
        {"kind": "bpe"},
        {"kind": ["char"]},
        {"kind": "char"},
        {"kind": "char", "symbols": 3},
        {"kind": "byte", "more": 1},
    ],
)
def test_damaged_states_are_refused(state):
    with pytest.raises(rl.FormatError, match="tokenizer"):
        tokenizer_from_dict(state)

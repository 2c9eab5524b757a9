"""From text to tokens and back."""

from rushlight.text.tokenizer import (
    ByteTokenizer,
    CharTokenizer,
    Decoder,
    Tokenizer,
    tokenizer_from_dict,
)

__all__ = ["ByteTokenizer", "CharTokenizer", "Decoder", "Tokenizer", "tokenizer_from_dict"]

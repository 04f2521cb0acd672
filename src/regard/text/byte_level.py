"""The characters by which a byte-level BPE vocabulary spells bytes, as in GPT-2."""

from __future__ import annotations

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_DECODER = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + index): byte for index, byte in enumerate(_OTHERS)}
"""The byte for each character of an entry."""


def decode_entry(entry: str) -> bytes | None:
    """The bytes of an entry; None if it has characters that stand for no byte.

    Examples:
        >>> decode_entry("ĠcafÃ©").decode()
        ' café'
    """
    decoded = [BYTE_DECODER.get(character) for character in entry]
    return None if None in decoded else bytes(byte for byte in decoded if byte is not None)


def readable_bytes(token: bytes) -> str:
    """Bytes as text if they are whole characters without ``▁``, which means a space; else as ``<0xC3>``."""
    try:
        text = token.decode()
        if "▁" not in text:
            return text.replace(" ", "▁")
    except UnicodeDecodeError:
        pass
    return "".join("▁" if byte == 0x20 else f"<0x{byte:02X}>" for byte in token)

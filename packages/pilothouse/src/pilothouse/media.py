"""Files and bytes as content: their media type, base64, and pictures and documents as blocks for a prompt.

The content decides the media type, because the name of a file may be wrong. Knows nothing of tools and prompts.
"""

from __future__ import annotations

import base64
import os

from pilothouse.errors import UsageError
from pilothouse.messages import DocumentBlock, ImageBlock

# Media types by the first bytes of a file; the second pattern is at the offset before it.
_MAGIC_NUMBERS: tuple[tuple[bytes, int, bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", 0, b"", "image/png"),
    (b"\xff\xd8\xff", 0, b"", "image/jpeg"),
    (b"GIF87a", 0, b"", "image/gif"),
    (b"GIF89a", 0, b"", "image/gif"),
    (b"RIFF", 8, b"WEBP", "image/webp"),
    (b"RIFF", 8, b"WAVE", "audio/wav"),
    (b"ID3", 0, b"", "audio/mpeg"),
    (b"\xff\xfb", 0, b"", "audio/mpeg"),
    (b"\xff\xf3", 0, b"", "audio/mpeg"),
    (b"OggS", 0, b"", "audio/ogg"),
    (b"fLaC", 0, b"", "audio/flac"),
)

_PDF_MAGIC = b"%PDF-"
PROMPT_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The formats that the API reads."""


def image(source: str | os.PathLike[str] | bytes) -> ImageBlock:
    """Make a content block from a picture: `ph.query(["What is this?", ph.image("chart.png")])`.

    Args:
        source: path of a PNG, JPEG, GIF or WebP file, or its bytes.

    Raises:
        UsageError: the file cannot be read, or has none of these formats.
    """
    data = read_source(source)
    media_type = sniff_media_type(data)
    if media_type not in PROMPT_IMAGES:
        raise UsageError(f"{_name(source)} is not a PNG, JPEG, GIF or WebP picture")
    return ImageBlock(source={"type": "base64", "media_type": media_type, "data": to_base64(data)})


def document(source: str | os.PathLike[str] | bytes, *, title: str | None = None) -> DocumentBlock:
    """Make a content block from a document.

    Args:
        source: path of a PDF or UTF-8 text file, or its bytes.
        title: title of the document; by default the name of the file.

    Raises:
        UsageError: the file cannot be read, or is neither a PDF nor text.
    """
    data = read_source(source)
    if title is None and not isinstance(source, bytes):
        title = os.path.basename(source)  # noqa: PTH119 - pathlib is slow to import
    if data.startswith(_PDF_MAGIC):
        body = {"type": "base64", "media_type": "application/pdf", "data": to_base64(data)}
    else:
        try:
            body = {"type": "text", "media_type": "text/plain", "data": data.decode("utf-8-sig")}
        except UnicodeDecodeError:
            raise UsageError(f"{_name(source)} is neither a PDF nor UTF-8 text") from None
    return DocumentBlock(source=body, title=title)


def sniff_media_type(data: bytes) -> str | None:
    """Detect the media type of an image or audio file from its first bytes; None if unknown."""
    return next(
        (kind for start, at, second, kind in _MAGIC_NUMBERS if data.startswith(start) and data.startswith(second, at)),
        None,
    )


def read_source(source: str | os.PathLike[str] | bytes) -> bytes:
    """Return bytes as they are, or read the file at a path.

    Raises:
        UsageError: the file cannot be read, or `source` is neither a path nor bytes.
    """
    if isinstance(source, bytes):
        return source
    if not isinstance(source, (str, os.PathLike)):  # pyright: ignore[reportUnnecessaryIsInstance] - a number is a file
        raise UsageError(f"expected a path or bytes, got {type(source).__name__}")
    try:
        with open(source, "rb") as file:  # noqa: PTH123 - pathlib is slow to import
            return file.read()
    except (OSError, ValueError) as error:  # ValueError: a null byte
        why = getattr(error, "strerror", None) or error
        advice = "; download it, and pass the file or its bytes" if "://" in str(source) else ""
        raise UsageError(f"cannot read {os.fspath(source)!r}: {why}{advice}") from error


def to_base64(data: bytes) -> str:
    """Return bytes as base64 text."""
    return base64.b64encode(data).decode("ascii")


def _name(source: str | os.PathLike[str] | bytes) -> str:
    return f"a value of {len(source):,} bytes" if isinstance(source, bytes) else repr(os.fspath(source))

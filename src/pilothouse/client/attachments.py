"""Pictures and documents from files or bytes, as content blocks for a prompt."""

from __future__ import annotations

import os

from pilothouse.errors import UsageError
from pilothouse.messages import DocumentBlock, ImageBlock

# First bytes of the formats that the API reads: the name of a file may be wrong, its content is not.
_IMAGE_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_PDF_MAGIC = b"%PDF-"


def image(source: str | os.PathLike[str] | bytes) -> ImageBlock:
    """Make a content block from a picture: `ph.query(["What is this?", ph.image("chart.png")])`.

    Args:
        source: path of a PNG, JPEG, GIF or WebP file, or its bytes.

    Raises:
        UsageError: the file cannot be read, or has none of these formats.
    """
    data = _read(source)
    media_type = next((name for magic, name in _IMAGE_MAGIC if data.startswith(magic)), None)
    if media_type is None and data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        media_type = "image/webp"
    if media_type is None:
        raise UsageError(f"{_name(source)} is no PNG, JPEG, GIF or WebP picture")
    return ImageBlock(source={"type": "base64", "media_type": media_type, "data": _base64(data)})


def document(source: str | os.PathLike[str] | bytes, *, title: str | None = None) -> DocumentBlock:
    """Make a content block from a document.

    Args:
        source: path of a PDF or UTF-8 text file, or its bytes.
        title: title of the document; by default the name of the file.

    Raises:
        UsageError: the file cannot be read, or is neither a PDF nor text.
    """
    data = _read(source)
    if title is None and not isinstance(source, bytes):
        title = os.path.basename(source)  # noqa: PTH119 - pathlib is slow to import
    if data.startswith(_PDF_MAGIC):
        body = {"type": "base64", "media_type": "application/pdf", "data": _base64(data)}
    else:
        try:
            body = {"type": "text", "media_type": "text/plain", "data": data.decode("utf-8-sig")}
        except UnicodeDecodeError:
            raise UsageError(f"{_name(source)} is neither a PDF nor UTF-8 text") from None
    return DocumentBlock(source=body, title=title)


def _read(source: str | os.PathLike[str] | bytes) -> bytes:
    if isinstance(source, bytes):
        return source
    try:
        with open(source, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError as error:
        raise UsageError(f"cannot read {_name(source)}: {error.strerror or error}") from error


def _name(source: str | os.PathLike[str] | bytes) -> str:
    return f"a value of {len(source):,} bytes" if isinstance(source, bytes) else repr(os.fspath(source))


def _base64(data: bytes) -> str:
    import base64

    return base64.b64encode(data).decode("ascii")

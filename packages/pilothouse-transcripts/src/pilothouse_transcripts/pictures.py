"""Pictures that the Messages API takes: checked, and scaled down with Pillow (extra `images`) if they are too large.

For conversations that the CLI does not prepare: histories, and the engine without the CLI. The CLI itself
scales the pictures of prompts and tools, but not those of a conversation that it resumes; and a picture that the API
refuses is in every later request of its conversation.
"""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, cast

from pilothouse.errors import UsageError
from pilothouse.support import sniff_media_type

MAX_PIXELS: Final = 2000
"""Most pixels of each side: the API's limit with more than 20 pictures in a request. With fewer, it is 8000."""
MAX_BYTES: Final = 3_750_000
"""Most bytes; in base64 they are the 5 MB that the API takes."""
MAX_AREA: Final = 89_000_000
"""Most pixels of a picture that is scaled down here: they need up to 356 MB of memory. Pillow warns of more."""
_QUALITIES: Final = (85, 60, 30)  # of a JPEG, until it is small enough
# What Pillow raises for damaged files besides its own error; warnings, if Python turns them into errors.
_DAMAGE: Final = (
    OSError, ValueError, SyntaxError, TypeError, LookupError, EOFError, ArithmeticError, struct.error, Warning,
)  # fmt: skip


def fit_picture(data: bytes) -> tuple[bytes, str]:
    """Return a picture that the API takes, and its media type: as it is, or scaled down.

    Raises:
        UsageError: it is not a PNG, JPEG, GIF or WebP picture, is damaged, or is too large and Pillow is not installed.
    """
    media_type = sniff_media_type(data)
    if media_type is None or not media_type.startswith("image/"):
        raise UsageError(f"{len(data):,} bytes are not a PNG, JPEG, GIF or WebP picture")
    size = read_picture_size(data)
    if size is None:
        raise UsageError("the picture is damaged: it does not say how large it is")
    if max(size) <= MAX_PIXELS and len(data) <= MAX_BYTES:
        return data, media_type
    about = f"the picture has {size[0]} x {size[1]} pixels and {len(data):,} bytes"
    limits = f"{about}, and the API takes {MAX_PIXELS} x {MAX_PIXELS} and {MAX_BYTES:,}"
    if size[0] * size[1] > MAX_AREA:
        raise UsageError(f"{limits}; make it smaller")
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise UsageError(f"{limits}; make it smaller, or pip install 'pilothouse[images]', which scales it") from None
    try:
        with Image.open(io.BytesIO(data)) as picture:
            if picture.width * picture.height > MAX_AREA:
                raise ValueError(f"its data has {picture.width} x {picture.height}")
            return _scale(picture)
    except (*_DAMAGE, Image.DecompressionBombError) as error:
        raise UsageError(f"{about}, and is damaged: {error}") from error


def fit_picture_block(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return an `image` block of the API with a picture that it takes. Pictures at an address stay as they are.

    Raises:
        UsageError: as `fit_picture`, or the data is not base64.
    """
    source: Any = block.get("source")
    if not isinstance(source, Mapping):
        return dict(block)
    source = cast("Mapping[str, Any]", source)
    if source.get("type") != "base64":
        return dict(block)
    try:
        data = base64.b64decode(source["data"], validate=True)
    except (ValueError, TypeError, KeyError):
        raise UsageError("the data of the picture is not base64") from None
    fitted, media_type = fit_picture(data)
    return {**block, "source": {**source, "media_type": media_type, "data": base64.b64encode(fitted).decode()}}


def _scale(picture: Any) -> tuple[bytes, str]:
    from PIL import ImageOps

    picture.thumbnail((MAX_PIXELS, MAX_PIXELS))
    with suppress(*_DAMAGE):  # of the EXIF data alone
        ImageOps.exif_transpose(picture, in_place=True)
    made = b"" if picture.format in ("JPEG", "MPO") else _encode(picture, "PNG")
    if made and len(made) <= MAX_BYTES:
        return made, "image/png"
    flat = picture.convert("RGB")
    for quality in _QUALITIES:
        made = _encode(flat, "JPEG", quality=quality)
        if len(made) <= MAX_BYTES:
            break
    return made, "image/jpeg"


def _encode(picture: Any, form: str, **settings: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **settings)
    return file.getvalue()


def read_picture_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height in pixels from the head of a PNG, JPEG, GIF or WebP file; None if it is cut."""
    try:
        if data.startswith(b"\x89PNG"):
            return struct.unpack_from(">II", data, 16)
        if data.startswith(b"GIF8"):
            return struct.unpack_from("<HH", data, 6)
        return _read_webp_size(data) if data.startswith(b"RIFF") else _read_jpeg_size(data)
    except (struct.error, IndexError):
        return None


def _read_webp_size(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8X":
            width, height = (int.from_bytes(data[start : start + 3], "little") + 1 for start in (24, 27))
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case _:
            width, height = (number & 0x3FFF for number in struct.unpack_from("<HH", data, 26))
    return (width, height) if len(data) >= 30 else None


def _read_jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Go from segment to segment, until one that begins a frame (SOF)."""
    start = 2
    while data[start] == 0xFF:
        marker = data[start + 1]
        if marker == 0xFF:  # padding
            start += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, start + 5)
            return width, height
        else:
            start += 2 + struct.unpack_from(">H", data, start + 2)[0]
    return None

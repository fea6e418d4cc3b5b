"""Pictures for the API: their size is in their head, and those that are too large are scaled down, or refused."""

from __future__ import annotations

import base64
import io
import os
import struct
import sys
import zlib
from typing import Any

import pytest
from PIL import ExifTags, Image

from pilothouse.errors import UsageError
from pilothouse_transcripts.pictures import MAX_BYTES, fit_picture, fit_picture_block, read_picture_size


def draw(form: str, width: int = 70, height: int = 30, mode: str = "RGB", **settings: Any) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height), 0).save(file, form, **settings)
    return file.getvalue()


def noise(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.frombytes("RGB", (width, height), os.urandom(width * height * 3)).save(file, "PNG")
    return file.getvalue()


def claim(width: int, height: int) -> bytes:
    """The head of a PNG without its pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + head + struct.pack(">I", zlib.crc32(b"IHDR" + head))


def frame(width: int, height: int) -> bytes:
    """A GIF whose first frame is larger than the picture says in its head."""
    data = bytearray(draw("GIF", 3000, 1))
    where = data.index(b",\0\0\0\0" + struct.pack("<HH", 3000, 1)) + 5
    data[where : where + 4] = struct.pack("<HH", width, height)
    return bytes(data)


FORMS = {
    "png": draw("PNG"),
    "gif": draw("GIF"),
    "jpeg": draw("JPEG"),
    "progressive jpeg": draw("JPEG", progressive=True, comment=b"\xff\xc0" * 40),
    "webp lossy": draw("WEBP"),
    "webp lossless": draw("WEBP", lossless=True),
    "webp extended": draw("WEBP", mode="RGBA", exif=b"Exif\0\0" + b"x" * 20),
}


@pytest.mark.parametrize("data", FORMS.values(), ids=FORMS)
def test_the_size_is_in_the_head(data: bytes) -> None:
    assert read_picture_size(data) == (70, 30)
    assert fit_picture(data)[0] is data
    assert read_picture_size(data[:9]) is None


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (draw("PNG", 9000, 100), "image/png"),
        (draw("GIF", 2001, 1), "image/png"),
        (draw("JPEG", 100, 3000), "image/jpeg"),
        (draw("WEBP", 2500, 2500, mode="RGBA"), "image/png"),
        (noise(1300, 1300), "image/jpeg"),
    ],
    ids=["wide", "gif", "jpeg", "webp", "bytes"],
)
def test_a_large_picture_is_scaled_down(data: bytes, kind: str) -> None:
    fitted, media_type = fit_picture(data)
    width, height = read_picture_size(data) or (0, 0)
    size = read_picture_size(fitted) or (9999, 9999)
    assert (media_type, len(fitted) <= MAX_BYTES, max(size) <= 2000) == (kind, True, True)
    assert size[0] / width == pytest.approx(min(1, 2000 / max(width, height)), abs=0.01)
    with Image.open(io.BytesIO(fitted)) as picture:
        picture.load()


def test_a_jpeg_is_encoded_as_jpeg_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    forms: list[str] = []
    save = Image.Image.save

    def spy(picture: Any, file: Any, form: str, **settings: Any) -> None:
        forms.append(form)
        save(picture, file, form, **settings)

    photo, print_ready = draw("JPEG", 100, 3000), draw("JPEG", 100, 3000, mode="CMYK")
    monkeypatch.setattr(Image.Image, "save", spy)
    for data in (photo, print_ready):
        fitted, media_type = fit_picture(data)
        with Image.open(io.BytesIO(fitted)) as picture:
            assert (picture.mode, picture.size, media_type) == ("RGB", (67, 2000), "image/jpeg")
    assert forms == ["JPEG", "JPEG"]


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_a_picture_that_is_turned_by_its_exif_stays_upright(form: str) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # to be turned by 90 degrees
    fitted, _ = fit_picture(draw(form, 4000, 1000, exif=exif))
    with Image.open(io.BytesIO(fitted)) as picture:
        assert (picture.size, picture.getexif().get(ExifTags.Base.Orientation, 1)) == ((500, 2000), 1)


def test_broken_exif_is_left_out() -> None:
    fitted, _ = fit_picture(draw("JPEG", 4000, 1000, exif=b"Exif\0\0" + b"x" * 20))
    assert read_picture_size(fitted) == (2000, 500)


def test_without_pillow_the_error_names_limit_and_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = draw("PNG", 9000, 100)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match=r"9000 x 100 pixels.*2000 x 2000.*pip install 'pilothouse\[images\]'"):
        fit_picture(wide)
    assert fit_picture(FORMS["png"])[1] == "image/png"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"hello", "are not a PNG"),
        (FORMS["png"][:20], "damaged"),
        (claim(9000, 9000), "damaged"),
        (draw("PNG", 9000, 100)[:200], "damaged"),
        (claim(20_000, 20_000), "make it smaller"),
        (claim(10_000, 9_500), "make it smaller"),
        (frame(20_000, 20_000), "3000 x 1 pixels.*damaged"),
        (frame(10_000, 9_500), "3000 x 1 pixels.*damaged"),
    ],
    ids=["text", "cut head", "no pixels", "half", "too many pixels", "many pixels", "bomb", "small bomb"],
)
def test_what_is_no_picture_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit_picture(data)


@pytest.mark.filterwarnings("ignore")
def test_a_warning_of_pillow_is_not_needed_to_refuse() -> None:
    with pytest.raises(UsageError, match=r"3000 x 1 pixels.*damaged: its data has 10000 x 9500"):
        fit_picture(frame(10_000, 9_500))


def block(data: str, media_type: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def test_a_block_says_the_type_that_its_picture_has() -> None:
    data = base64.b64encode(FORMS["jpeg"]).decode()
    assert fit_picture_block(block(data)) == block(data, "image/jpeg")


def test_a_picture_at_an_address_stays() -> None:
    given = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    assert fit_picture_block(given) == given
    assert fit_picture_block({"type": "image"}) == {"type": "image"}
    with pytest.raises(UsageError, match="not base64"):
        fit_picture_block(block("!!!"))

"""Images are read in every form, within bounds, and no file does harm."""

import base64
import io
import json
import os
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from rekindle.core.errors import InvalidRequest
from rekindle.formats.images.sources import MOST_BYTES, ImageFile, ImagePixels, from_base64, from_data_url, image_source
from tests.unit.images.bombs import chunk, file_of, png
from tests.unit.images.vision_goldens import PIXELS, SOURCES, sha256
from tests.waiting import PATIENCE

RED, WHITE = [255, 0, 0], [255, 255, 255]


def picture() -> Image.Image:
    """Return an image of 3 x 2 pixels, each of another colour."""
    return Image.fromarray(np.arange(18, dtype=np.uint8).reshape(2, 3, 3) * 10)


@pytest.mark.parametrize("name", SOURCES)
def test_sources_have_the_pixels_of_transformers(name: str) -> None:
    pixels = image_source(PIXELS / "sources" / name).pixels()
    assert list(pixels.shape[1::-1]) == SOURCES[name]["rgb_size"]
    assert sha256(pixels) == SOURCES[name]["rgb_sha256"]


def test_all_forms_of_an_image_are_equal(tmp_path: Path) -> None:
    image = picture()
    data = file_of(image)
    path = tmp_path / "a picture.png"
    path.write_bytes(data)
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    array = np.asarray(image)
    forms = [image, array, jnp.asarray(array), path, str(path), data, bytearray(data), memoryview(data), url]
    for form in forms:
        np.testing.assert_array_equal(image_source(form).pixels(), array)
    np.testing.assert_array_equal(from_base64(base64.b64encode(data).decode()).pixels(), array)
    assert isinstance(image_source(data), ImageFile)
    assert isinstance(image_source(image), ImagePixels)
    assert image_source(source := image_source(data)) is source


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with a name")
def test_an_image_comes_from_a_pipe_which_has_no_size_and_is_read_once(tmp_path: Path) -> None:
    path, data = tmp_path / "pipe", file_of(picture())
    os.mkfifo(path)
    thread = threading.Thread(target=path.write_bytes, args=(data,))
    thread.start()
    assert image_source(path) == image_source(data)
    thread.join(PATIENCE)


def test_later_changes_by_the_caller_have_no_effect(tmp_path: Path) -> None:
    array = np.zeros((2, 2, 3), np.uint8)
    path = tmp_path / "image.png"
    path.write_bytes(file_of(picture()))
    of_array, of_path = image_source(array), image_source(path)
    array[:] = 255
    path.unlink()
    assert not of_array.pixels().any()
    np.testing.assert_array_equal(of_path.pixels(), np.asarray(picture()))


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF"])
def test_all_formats_are_read(form: str) -> None:
    data = file_of(Image.new("RGB", (8, 4), (255, 0, 0)), form)
    pixels = image_source(data).pixels()
    assert pixels.shape == (4, 8, 3)
    np.testing.assert_allclose(pixels, np.broadcast_to(RED, pixels.shape), atol=3)


def test_of_a_gif_the_first_frame_is_read() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    data = file_of(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert image_source(data).pixels()[0, 0].tolist() == RED


@pytest.mark.parametrize(
    "image",
    [
        Image.new("RGBA", (2, 2), (0, 255, 0, 0)),
        Image.new("LA", (2, 2), (0, 0)),
        Image.new("RGBA", (2, 2), (0, 0, 0, 0)).convert("PA"),
    ],
    ids=["RGBA", "LA", "PA"],
)
def test_clear_pixels_are_white(image: Image.Image) -> None:
    assert image_source(image).pixels().reshape(-1, 3).tolist() == [WHITE] * 4


@pytest.mark.parametrize("mode", ["P", "L", "RGB"])
def test_a_clear_colour_of_a_file_is_white(mode: str) -> None:
    clear: Any = (0, 0, 0) if mode == "RGB" else 0
    data = file_of(Image.new("RGB", (2, 2)).convert(mode), transparency=clear)
    assert image_source(data).pixels().reshape(-1, 3).tolist() == [WHITE] * 4


def test_arrays_may_be_gray_or_have_alpha() -> None:
    gray = np.array([[0, 128]], np.uint8)
    assert image_source(gray).pixels().tolist() == [[[0] * 3, [128] * 3]]
    assert image_source(gray[:, :, None]).pixels().tolist() == [[[0] * 3, [128] * 3]]
    assert image_source(np.zeros((1, 1, 4), np.uint8)).pixels().tolist() == [[WHITE]]


def test_gray_of_16_bits_is_scaled() -> None:
    values = np.array([[0, 255, 256, 32768, 65535]], np.uint16)
    for image in (Image.fromarray(values), file_of(Image.fromarray(values))):
        assert image_source(image).pixels()[0, :, 0].tolist() == [0, 1, 1, 128, 255]


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_the_exif_of_a_file_turns_it_and_that_of_a_pil_image_does_not(form: str, turn: int) -> None:
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = turn
    data = file_of(picture(), form, exif=exif)
    decoded = Image.open(io.BytesIO(data))
    np.testing.assert_array_equal(
        image_source(data).pixels(), np.asarray((ImageOps.exif_transpose(decoded) or decoded).convert("RGB"))
    )
    assert image_source(Image.open(io.BytesIO(data))).size == (2, 3)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_a_damaged_exif_turns_nothing() -> None:
    data = file_of(picture(), "JPEG", exif=b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\xff\xff\xff\xff")
    assert image_source(data).pixels().shape == (2, 3, 3)


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "empty"),
    "text": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "PNG, JPEG, WebP or GIF"),
    "bmp": (lambda: file_of(picture(), "BMP"), "PNG, JPEG, WebP or GIF"),
    "tiff": (lambda: file_of(picture(), "TIFF"), "PNG, JPEG, WebP or GIF"),
    "eps": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "PNG, JPEG, WebP or GIF"),
    "signature alone": (lambda: b"\x89PNG\r\n\x1a\n", "damaged"),
    "jpeg signature alone": (lambda: b"\xff\xd8\xff", "damaged"),
    "webp signature alone": (lambda: b"RIFF\0\0\0\0WEBP", "damaged"),
    "gif signature alone": (lambda: b"GIF89a", "damaged"),
    "bomb": (lambda: png(60_000, 60_000), "million pixels"),
    "bomb below the bound of Pillow": (lambda: png(8_000, 8_000), "million pixels"),
    "gif bomb": (lambda: b"GIF89a" + struct.pack("<HH", 65_535, 65_535) + b"\0\0\0;", "damaged|million pixels"),
    "no width": (lambda: png(0, 5), "damaged|pixels"),
    "pixels missing": (lambda: png(4, 4, chunk(b"IDAT", zlib.compress(b"\0\0\0\0"))), "damaged"),
    "wrong checksum": (lambda: png(1, 1)[:-4] + b"0000", "damaged"),
    "cut png": (lambda: (PIXELS / "sources" / "odd.png").read_bytes()[:5_000], "damaged"),
    "cut jpeg": (lambda: (PIXELS / "sources" / "turned.jpg").read_bytes()[:1_000], "damaged"),
    "cut webp": (lambda: file_of(Image.effect_noise((64, 64), 50), "WEBP")[:200], "damaged"),
    "cut gif": (lambda: file_of(Image.effect_noise((64, 64), 50), "GIF")[:200], "damaged"),
    "too long": (lambda: b"\x89PNG\r\n\x1a\n" + bytes(MOST_BYTES), "20 MiB"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_with_a_reason(name: str) -> None:
    make, reason = HOSTILE[name]
    with pytest.raises(InvalidRequest, match=reason) as caught:
        image_source(make()).pixels()
    assert caught.value.parameter == "prompt"


def test_sizes_are_refused_before_pixels_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import ImageFile as PillowFile

    def load(self: Any) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(PillowFile.ImageFile, "load", load)
    with pytest.raises(InvalidRequest, match="8000 x 8000"):
        image_source(png(8_000, 8_000))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("https://example.com/cat.png", "nothing is fetched"),
        ("HTTP://169.254.169.254/latest", "nothing is fetched"),
        ("file:///etc/passwd", "nothing is fetched"),
        ("/no/such/picture.png", "cannot be read"),
        ("a\0b", "cannot be read"),
        ("data:image/png;base64,@@@@", "base64"),
        ("data:image/png;base64,@@@", "must be in base64"),
        ("data:image/png,plain", "data:image/png;base64"),
        ("data:text/plain;base64,aGVsbG8gd29ybGQ=", "PNG, JPEG, WebP or GIF"),
        (None, "must be a PIL image"),
        (7, "must be a PIL image"),
        (io.BytesIO(b"x"), r"\.read\(\)"),
        (np.zeros((2, 2, 3), np.float32), "255"),
        (np.zeros((3, 9, 9), np.uint8), "transpose"),
        (np.zeros((2, 2, 2, 3), np.uint8), "height, width, 3"),
        (np.zeros((0, 2, 3), np.uint8), "must have pixels"),
        (Image.new("F", (2, 2)), "range of brightness"),
        (Image.new("I", (2, 2)), "range of brightness"),
    ],
)
def test_values_that_are_no_image_are_refused_with_a_cure(value: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        image_source(value)


def test_a_directory_is_no_image(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot be read|MiB|empty"):
        image_source(tmp_path)


def test_a_large_image_of_pil_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="50 million pixels"):
        image_source(Image.new("1", (8_000, 8_000)))


def test_data_urls_may_have_parameters_and_lines() -> None:
    data = file_of(picture())
    lines = "\n".join(json.dumps(base64.encodebytes(data).decode())[1:-1].split("\\n"))
    url = f"data:image/png;charset=utf-8;base64,{lines}"
    np.testing.assert_array_equal(from_data_url(url).pixels(), np.asarray(picture()))

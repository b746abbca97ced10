"""The work and the memory for a file are known before it is decoded, and nothing but its pixels is decoded."""

import io
import threading
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from rekindle.core.errors import InvalidRequest, RequestCancelled
from rekindle.formats.images import reading
from rekindle.formats.images.memory import ImageMemory
from rekindle.formats.images.reading import MOST_SIDE, decode, plain_of
from rekindle.formats.images.room import ROOM, Room
from rekindle.formats.images.sources import decoded, image_source
from tests.unit.images.bombs import (
    chunk,
    file_of,
    gif_of_frames,
    jpeg_of_notes,
    jpeg_of_scans,
    png,
    png_of_bits,
    webp_of_frames,
    zeros,
)

TEXT = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(8 << 20), 9))
PROFILE = chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(8 << 20), 9))
XMP = chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(bytes(8 << 20), 9))
GIF = b"GIF89a\4\0\4\0\0\0\0"
RED, PIXEL = [255, 0, 0], chunk(b"IDAT", zlib.compress(b"\0\xff\0\0"))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: jpeg_of_scans(101), "100 scans"),
        (lambda: jpeg_of_scans(40, 65_500, 763), "20 scans"),
        (lambda: jpeg_of_notes(110_000, 10), "100,000 parts"),
        (lambda: GIF + b"," + bytes(9) + b"\2" + b"\1\0" * 100_001, "100,000 parts"),
        (lambda: png(1, 1, *[chunk(b"tEXt", b"")] * 100_001, PIXEL), "100,000 parts"),
        (lambda: png(1, 49_000_000), "damaged|side"),
        (lambda: png(1, MOST_SIDE + 1, zeros(1, MOST_SIDE + 1), bits=1, colour=0), "65,535 pixels"),
        (lambda: b"\xff\xd8" + b"\xff\0" * 4_000_000, "no pixels"),
        (lambda: b"\xff\xd8\xff\xfe\0\2" + b"\xff\0" * 4_000_000, "no pixels"),
    ],
)
def test_a_file_with_more_work_than_a_picture_is_refused_before_it_is_decoded(
    make: Callable[[], bytes], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "import_module", lambda name: pytest.fail("decoded"))
    with pytest.raises(InvalidRequest, match=reason):
        image_source(make())


@pytest.mark.parametrize(
    ("data", "colour"),
    [
        (jpeg_of_notes(10_000), [200, 10, 10]),
        (png(1, 1, *[TEXT] * 20, PROFILE, XMP, PIXEL), RED),
        (png(1, 1, PIXEL, *[TEXT] * 20), RED),
        (gif_of_frames(5_000), RED),
        (webp_of_frames(5_000), RED),
    ],
    ids=["segments", "texts", "texts behind", "gif", "webp"],
)
def test_of_metadata_and_of_further_frames_the_decoder_sees_nothing(data: bytes, colour: list[int]) -> None:
    plain = plain_of(data)
    assert len(plain.join()) < 1_200
    np.testing.assert_allclose(decode(data)[0, 0], colour, atol=3)


def test_a_progressive_jpeg_of_a_camera_is_read() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (120, 160, 3), np.uint8)
    data = file_of(Image.fromarray(pixels), "JPEG", progressive=True, quality=95)
    assert plain_of(data).steps > 5 * 120 * 160
    assert image_source(data).pixels().shape == (120, 160, 3)
    assert image_source(jpeg_of_scans(100)).pixels().shape == (480, 640, 3)


@pytest.mark.parametrize("turn", range(0, 10))
def test_the_xmp_of_a_file_turns_it_where_its_exif_does_not(turn: int) -> None:
    image = Image.fromarray(np.arange(18, dtype=np.uint8).reshape(2, 3, 3) * 10)
    xmp = f'<x:xmpmeta tiff:Orientation="{turn}"/>'.encode()
    for form in ("PNG", "WEBP", "JPEG"):
        data = file_of(image, form, xmp=xmp)
        if form == "PNG":
            data = data[:33] + chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp) + data[33:]
        with Image.open(io.BytesIO(data)) as picture:
            expected: Any = ImageOps.exif_transpose(picture)
            np.testing.assert_array_equal(image_source(data).pixels(), np.asarray(expected.convert("RGB")))
            assert image_source(data).upright == (expected.height, expected.width)


def test_conversions_take_the_memory_of_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_STRIP", 100)
    sizes: list[int] = []
    convert = Image.Image.convert

    def noted(image: Any, *arguments: Any, **options: Any) -> Any:
        sizes.append(image.width * image.height)
        return convert(image, *arguments, **options)

    monkeypatch.setattr(Image.Image, "convert", noted)
    assert (decode(png_of_bits(40, 50)) == 127).all()  # half clear black on white
    assert max(sizes) == 256  # the palette
    sizes.clear()
    assert (decode(file_of(Image.new("RGBA", (40, 50), (0, 0, 0, 128)))) == 127).all()
    assert max(sizes) <= 100
    assert sum(sizes) >= 40 * 50


def test_memory_is_for_the_pixels_of_the_decoder() -> None:
    assert 4 * 49_000_000 <= image_source(png_of_bits(7_000, 7_000)).memory <= 10 * 49_000_000


def test_images_wait_for_their_room_in_order() -> None:
    room, inside, order = Room(100, 4), threading.Event(), list[str]()

    def use(name: str, size: int) -> None:
        with room.take(size):
            order.append(name)

    with room.take(60):
        threads = []
        for name, size in (("large", 1_000), ("small", 10)):  # the small one does not pass the large one
            waiting = len(room._waiting)
            threads.append(threading.Thread(target=use, args=(name, size)))
            threads[-1].start()
            while len(room._waiting) == waiting:
                inside.wait(0.001)
        assert order == []
    for thread in threads:
        thread.join()
    assert order == ["large", "small"]
    assert (list(room._waiting), room._sizes) == ([], [])


def test_nothing_is_decoded_for_callers_that_left() -> None:
    room = Room(100, 1)
    with room.take(10), pytest.raises(RequestCancelled), room.take(10, lambda: True):
        pytest.fail("nobody waits")
    assert (list(room._waiting), len(room._sizes)) == ([], 0)
    with pytest.raises(RequestCancelled), decoded([image_source(png_of_bits(9, 9))], lambda: True):
        pytest.fail("nobody waits")
    assert (list(ROOM._waiting), ROOM._sizes) == ([], [])
    memory = ImageMemory()
    with pytest.raises(RequestCancelled):
        memory.identity(image_source(png_of_bits(9, 9)), "rules", lambda: True)
    assert memory.decoded == 0


def test_a_decoder_ends_between_its_steps() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (700, 700, 3), np.uint8)
    data, questions = file_of(Image.fromarray(pixels), "PNG"), list[None]()

    def ended() -> bool:
        questions.append(None)
        return len(questions) > 5

    with pytest.raises(RequestCancelled):
        decode(data, ended)
    assert len(questions) == 6


def test_a_picture_for_several_requests_at_once_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(1 << 40, 1)
    monkeypatch.setattr("rekindle.formats.images.memory.ROOM", room)
    memory, image = ImageMemory(), image_source(png_of_bits(300, 300))
    threads = [threading.Thread(target=memory.identity, args=(image, "rules")) for _ in range(4)]
    with room.take(1):
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert memory.decoded == 1

"""Values of items as people read them: images of pixels, short text, curves, and what a user's decoder makes."""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from di_store.dashboard.decoders import decoders
from di_store.dashboard.images import Picture, frames_of, picture
from di_store.dashboard.item_values import BRIEF, WHOLE, curves_of, shown_value, text_of, value_text

RANDOM = np.random.default_rng(7)


def pixels(*shape: int) -> np.ndarray:
    return RANDOM.integers(256, size=shape, dtype=np.uint8)


def opened(found: Picture | None) -> np.ndarray:
    assert found is not None
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(found.source.partition(",")[2]))))


def test_images_keep_their_pixels() -> None:
    grey, colours = pixels(20, 30), pixels(20, 30, 3)
    for array, expected in (
        (grey, grey),
        (grey[..., None], grey),
        (grey[None], grey),
        (colours, colours),
        (np.moveaxis(colours, -1, 0), colours),
        (colours[None], colours),
    ):
        np.testing.assert_array_equal(opened(picture(array, 100, 16)), expected)


@pytest.mark.parametrize(
    "shape", [(4, 20, 30), (20, 30, 4), (2, 2, 20, 30), (4, 20, 30, 3), (4, 3, 20, 30), (4, 1, 20, 30)]
)
def test_frames_lie_side_by_side(shape: tuple[int, ...]) -> None:
    array = pixels(*shape)
    frames = frames_of(array)
    assert frames is not None
    assert len(frames) == 4
    strip = opened(picture(array, 100, 16))
    for at, frame in enumerate(frames):
        np.testing.assert_array_equal(strip[:, at * 32 : at * 32 + 30], frame)
    first = array[..., 0] if shape == (20, 30, 4) else array[0].reshape(-1, *array.shape[-2:])[0]
    if array.shape[-1] != 3 and shape != (4, 3, 20, 30):
        np.testing.assert_array_equal(frames[0], first)


def test_a_long_strip_shows_frames_of_the_whole_time() -> None:
    array = np.repeat(np.arange(100, dtype=np.uint8), 20 * 30).reshape(100, 20, 30)
    found = picture(array, 100, 5)
    assert found is not None
    assert found.what == "100 frames of 30 × 20, 5 of them shown"
    assert opened(found)[0, ::32].tolist() == [0, 24, 49, 74, 99]


def test_large_frames_are_made_smaller() -> None:
    array = pixels(210, 160, 3)
    np.testing.assert_array_equal(opened(picture(array, 64, 4)), array[::4, ::4])


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((20, 30), np.int32),
        pixels(30),
        pixels(4, 4),
        pixels(20, 4),
        pixels(0, 20, 30),
        np.zeros((1, 8, 5000), np.uint8),
        np.array(3, np.uint8),
        np.array(["a"]),
    ],
)
def test_other_arrays_are_no_images(array: np.ndarray) -> None:
    assert picture(array, 64, 4) is None


def test_text_is_cut_and_has_no_control_characters() -> None:
    assert text_of("a\x1b[31m\x00\u202eb\ud800\nc\t", 80) == "a\\x1b[31m\\x00\\u202eb\\ud800\nc\t"
    assert text_of("x" * 10_000_000, 10) == "xxxxxxxxxx… (10,000,000 characters)"
    assert text_of("é".encode() * 50, 9) == "éééé… (100 bytes)"  # not half a character
    assert text_of(b"\xff\xfe", 80) == "\\xff\\xfe"
    text_of("\ud800<script>", 80).encode()


def test_numbers_are_short_and_those_that_are_none_are_said() -> None:
    assert value_text(np.float32(1 / 3), 80) == "0.333333"
    assert value_text(np.array([[1, np.nan], [np.inf, -0.5]]), 80) == "[[1, nan], [inf, -0.5]]"
    values = np.arange(100.0)
    values[3:5] = np.nan, np.inf
    assert value_text(values, 80) == "float64 (100,), 2 of 100 NaN or infinite, 0 to 99, mean 50.4388"
    assert value_text(np.full(100, np.nan), 80) == "float64 (100,), 100 of 100 NaN or infinite"
    assert value_text(np.arange(20, dtype=np.uint8), 80) == "uint8 (20,), 0 to 19, mean 9.5"
    assert value_text(np.zeros((3, 0)), 80) == "float64 (3, 0)"
    assert value_text(np.array(["a\x00", "<b>"]), 80) == "a\n<b>"


class Unwilling:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_values_of_any_class_are_short() -> None:
    many = {"text": "y" * 10_000_000, "rows": list(range(10_000_000)), "array": np.zeros(1_000_000)}
    assert len(value_text(many, 80)) < 300
    assert len(value_text(many, 20_000)) < 30_000
    assert "Unwilling" in value_text(Unwilling(), 80)
    assert "Unwilling" in value_text([Unwilling()], 80)
    assert value_text(10**10_000, 80)


def test_rows_of_varying_length_are_shown_each() -> None:
    rows = [np.arange(at) for at in range(10)]
    shown = shown_value("tokens", rows, BRIEF)
    assert shown.text.splitlines()[:3] == ["[]", "[0]", "[0, 1]"]
    assert shown.text.endswith("… 2 more")


def test_a_decoder_makes_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_tokens_of_this_test.py").write_text(
        "class Words:\n    def text(self, tokens):\n        return ' '.join('abc'[token] for token in tokens)\n"
        "words = Words()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = decoders(["my.chats.tokens=my_tokens_of_this_test:words.text"])
    assert list(found) == ["my.chats.tokens"]
    decode = found["my.chats.tokens"]
    shown = shown_value("tokens", [np.array([0, 2]), np.array([1, 9])], WHOLE, decode)
    assert shown.decoded
    assert shown.text == "a c\nthe decoder failed: IndexError: string index out of range"


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("chats.tokens", "write TABLE.COLUMN=MODULE:FUNCTION"),
        ("chats=builtins:str", "write TABLE.COLUMN=MODULE:FUNCTION"),
        ("chats.tokens=builtins", "write TABLE.COLUMN=MODULE:FUNCTION"),
        ("chats.tokens=no_such_module:text", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("chats.tokens=builtins:no_such_name", "no_such_name"),
        ("chats.tokens=math:pi", "pi of math is a float, not a function"),
    ],
)
def test_a_decoder_that_is_not_there_is_named(option: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        decoders([option])
    assert str(caught.value).startswith(f"--decode {option}: ")


def test_curves_are_of_numbers() -> None:
    steps = np.arange(3)
    (reward,) = curves_of("reward", steps, np.array([1.0, np.nan, 3.0]))
    assert (reward.name, reward.steps) == ("reward", [0, 1, 2])
    assert [each.name for each in curves_of("obs", steps, np.zeros((3, 2, 2)))] == [f"obs[{at}]" for at in range(4)]
    assert len(curves_of("obs", steps, np.zeros((3, 16)))) == 8
    for other in (np.zeros((3, 17)), np.array(["a", "b", "c"]), np.zeros((0,)), np.zeros(3, "c16")):
        assert curves_of("obs", steps, other) == []

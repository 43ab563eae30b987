"""Paints the shapes of a plot (plot.py) as PNG, with Pillow: `pip install 'llamapy[plot]'`.

Pillow brings a font of its own, so the picture is the same on machines without any.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

from llamapy.core.errors import LlamapyError
from llamapy.tasks.plot import BLUE, HEIGHT, RADIUS, WIDTH, Dot, Line, Shape, Text

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

EXTRA = "pip install 'llamapy[plot]'; .svg and .html need nothing"
SCALE = 2  # pixels of the picture for one of the plot
FINE = 3  # drawn so much larger still, and made smaller: smooth edges
ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}


def available() -> None:
    """LlamapyError if the package that draws is missing."""
    try:
        import PIL.ImageFont  # noqa: F401
    except ImportError:
        raise LlamapyError("a plot as .png needs the package pillow", hint=EXTRA) from None


def png(drawn: Sequence[Shape]) -> bytes:
    """The picture as a PNG file of SCALE * WIDTH x SCALE * HEIGHT pixels."""
    available()
    from PIL import Image, ImageDraw

    large = Image.new("RGB", (WIDTH * SCALE * FINE, HEIGHT * SCALE * FINE), "white")
    brush = ImageDraw.Draw(large)
    for shape in drawn:
        _paint(large, brush, shape, SCALE * FINE)
    data = BytesIO()
    size = (WIDTH * SCALE, HEIGHT * SCALE)
    large.resize(size, Image.Resampling.BOX).save(data, "png", optimize=True)
    return data.getvalue()


def _paint(image: Image.Image, brush: ImageDraw.ImageDraw, shape: Shape, scale: int) -> None:
    if isinstance(shape, Line):
        ends = (shape.x1 * scale, shape.y1 * scale, shape.x2 * scale, shape.y2 * scale)
        brush.line(ends, fill=shape.color, width=scale)
    elif isinstance(shape, Dot):
        brush.circle((shape.x * scale, shape.y * scale), RADIUS * scale, fill=BLUE)
    else:
        _write(image, brush, shape, scale)


def _write(image: Image.Image, brush: ImageDraw.ImageDraw, text: Text, scale: int) -> None:
    from PIL import Image, ImageDraw, ImageFont

    font, at = ImageFont.load_default(text.size * scale), (text.x * scale, text.y * scale)
    if not text.turned:
        brush.text(at, text.text, fill="black", font=font, anchor=ANCHORS[text.anchor])
        return
    side = round(font.getlength(text.text)) + 2 * text.size * scale
    side += side % 2
    square = Image.new("L", (side, side))  # the text's mask, its anchor in the middle
    middle = (side / 2, side / 2)
    ImageDraw.Draw(square).text(middle, text.text, fill=255, font=font, anchor="ms")
    corner = (round(at[0] - side / 2), round(at[1] - side / 2))
    image.paste("black", corner, square.rotate(90))

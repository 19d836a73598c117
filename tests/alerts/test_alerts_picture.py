"""The picture of the loss: a PNG that other programs read, which shows the curve, its gaps and its incidents."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from notices_by_hand import resumed
from strict_services import BrokenRuleError, discord, strict, telegram
from test_alerts_channels import CASES, NOW

from supervisor.alerts.channel import Answer, PicturedChannel
from supervisor.alerts.picture import HEIGHT, INCIDENT, LEFT, LINE, RIGHT, WIDTH, LossCurve, draw_loss

Numbers = list[float | None]


def curve(mean: Numbers, incidents_s: tuple[float, ...] = ()) -> LossCurve:
    """A point each minute of an hour."""
    at: Numbers = [60.0 * number for number in range(len(mean))]
    low: Numbers = [None if value is None else value - 0.1 for value in mean]
    high: Numbers = [None if value is None else value + 0.1 for value in mean]
    return LossCurve(hours=1.0, at_s=at, low=low, mean=mean, high=high, incidents_s=incidents_s)


def decode(png: bytes) -> list[bytes]:
    """Return the rows of pixels; checks every chunk on the way."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    place, data, kinds = 8, b"", []
    while place < len(png):
        length, kind = struct.unpack(">I4s", png[place : place + 8])
        content = png[place + 8 : place + 8 + length]
        assert struct.unpack(">I", png[place + 8 + length : place + 12 + length])[0] == zlib.crc32(kind + content)
        kinds.append(kind)
        data += content if kind == b"IDAT" else b""
        place += 12 + length
    assert kinds == [b"IHDR", b"PLTE", b"IDAT", b"IEND"]
    raw = zlib.decompress(data)
    assert len(raw) == HEIGHT * (WIDTH + 1)
    return [raw[row * (WIDTH + 1) + 1 : (row + 1) * (WIDTH + 1)] for row in range(HEIGHT)]


def find_rows(rows: list[bytes], x: int, color: int) -> list[int]:
    return [number for number, row in enumerate(rows) if row[x] == color]


def drawn(shown: LossCurve) -> list[bytes]:
    png = draw_loss(shown)
    assert png is not None
    return decode(png)


def test_a_loss_that_falls_goes_down_and_an_incident_is_a_line_across() -> None:
    rows = drawn(curve([3.0 - 0.04 * number for number in range(60)], incidents_s=(1800.0,)))
    heights = [find_rows(rows, x, LINE)[0] for x in range(LEFT, WIDTH - RIGHT - 20, 10)]
    assert heights == sorted(heights)
    assert heights[-1] - heights[0] > HEIGHT / 2
    middle = LEFT + (WIDTH - LEFT - RIGHT - 1) // 2
    assert max(len(find_rows(rows, x, INCIDENT)) for x in (middle, middle + 1)) > HEIGHT / 2


def test_where_the_loss_is_unknown_the_line_is_broken() -> None:
    mean: Numbers = [2.0 + (number % 2) for number in range(60)]
    mean[20:40] = [None] * 20
    rows = drawn(curve(mean))
    assert not any(find_rows(rows, x, LINE) for x in range(LEFT + 200, LEFT + 340))
    assert all(find_rows(rows, x, LINE) for x in range(LEFT, LEFT + 160))


def test_one_point_is_no_picture() -> None:
    assert draw_loss(curve([])) is None
    assert draw_loss(curve([1.0, None, None])) is None


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=50))
def test_every_finite_loss_can_be_drawn(mean: Numbers) -> None:
    png = draw_loss(curve(mean))
    if png is not None:
        assert len(decode(png)) == HEIGHT


@pytest.mark.parametrize(("kind", "service"), [("discord", discord), ("telegram", telegram)])
def test_the_service_takes_a_message_with_its_picture(kind: str, service: object, tmp_path: Path) -> None:
    png = draw_loss(curve([2.0, 1.0, 1.5]))
    assert png is not None
    with strict(CASES[kind].service) as server:
        channel = CASES[kind].channel(server.port, tmp_path)
        assert isinstance(channel, PicturedChannel)
        assert channel.picture
        content = channel.render(resumed())
        assert channel.send_with_picture(resumed(), content, png, NOW) == Answer(delivered=True)
        assert channel.send(resumed(), content, NOW).delivered
    with_picture, without = server.accepted
    assert with_picture == without


def test_the_services_here_refuse_a_picture_that_is_cut_off() -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="photo"; filename="a.png"\r\n\r\n\x89PNG\r\n--b--\r\n'
    with pytest.raises(BrokenRuleError, match="a whole PNG"):
        telegram("/bot1:a/sendPhoto", {"content-type": "multipart/form-data; boundary=b"}, body)

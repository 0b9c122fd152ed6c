"""What is drawn of the courts: floor, walls, doors and landmarks, as coloured faces with four corners.

Panels of a wall and tiles of the floor differ a little from their neighbours, so that one sees oneself move.
"""

import math
from collections.abc import Iterator

from tools.train.video.courts import COURT, COURTS, DOOR, FAR, SIDE, WHITE, Colour, Court

HEIGHT, EDGE = 1.5, 0.15
"""Height of a wall, and of the white edge at its top."""
PANEL = 1.0
"""Width of a wall's panels, and side of the floor's tiles."""
OPENING = ((COURT - DOOR) / 2, (COURT + DOOR) / 2)
"""Where the door is along a wall."""
SKY: Colour = (120, 195, 255)
FLOOR: tuple[Colour, Colour] = ((236, 226, 200), (208, 196, 168))
SUN = (0.48, 0.64, 0.6)
"""Where the sun is; a unit vector."""
SIDES = 12
"""Faces around a landmark."""

Point = tuple[float, float, float]
Corners = tuple[Point, Point, Point, Point]
Face = tuple[Corners, Colour]


def faces() -> Iterator[Face]:
    """All faces; they are seen from both sides."""
    tiles = math.ceil(SIDE / PANEL)
    for i in range(tiles):
        for j in range(tiles):
            yield _flat(i * PANEL, j * PANEL), FLOOR[(i + j) % 2]
    for court in COURTS:
        yield from _walls(court)
        yield from _landmark(court)
    for start in (0.0, FAR):  # the sides of doors
        for edge in OPENING:
            yield _upright((COURT, start + edge), (FAR, start + edge)), WHITE
            yield _upright((start + edge, COURT), (start + edge, FAR)), WHITE


def _walls(court: Court) -> Iterator[Face]:
    """A court's four walls from inside, panel by panel."""
    for along in (0, 1):
        for far in (0.0, COURT):
            outer = (court.x, court.y)[1 - along] + far in (0.0, SIDE)
            for i in range(round(COURT / PANEL)):
                start = i * PANEL
                if not outer and OPENING[0] <= start < OPENING[1]:
                    continue
                ends = [(start, far), (start + PANEL, far)]
                one, two = ((court.x + (a, b)[along], court.y + (b, a)[along]) for a, b in ends)
                shade = (0.84, 1.0)[along] * (1.0, 0.9)[i % 2]
                yield _upright(one, two, 0.0, HEIGHT - EDGE), _shaded(court.colour, shade)
                yield _upright(one, two, HEIGHT - EDGE, HEIGHT), _shaded(WHITE, (0.9, 1.0)[along])


def _landmark(court: Court) -> Iterator[Face]:
    """Rings of faces; those that look towards the sun are brighter."""
    base = 0.0
    for piece in court.landmark:
        lean = math.atan2(piece.lower - piece.upper, piece.height)
        for i in range(SIDES):
            turned = 2 * math.pi * (i + 0.5) / SIDES
            normal = (math.cos(turned) * math.cos(lean), math.sin(turned) * math.cos(lean), math.sin(lean))
            bright = sum(a * b for a, b in zip(normal, SUN, strict=True))
            low, high = (piece.lower, base), (piece.upper, base + piece.height)
            corners = _around(court, i, *low), _around(court, i + 1, *low), _around(court, i + 1, *high)
            yield (*corners, _around(court, i, *high)), _shaded(piece.colour, 0.8 + 0.25 * bright)
        base += piece.height


def _around(court: Court, number: int, radius: float, height: float) -> Point:
    """A corner of a ring around a court's landmark."""
    (x, y), turned = court.corner, 2 * math.pi * number / SIDES
    return x + radius * math.cos(turned), y + radius * math.sin(turned), height


def _flat(x: float, y: float) -> Corners:
    """A tile of the floor, which ends where the world does."""
    to_x, to_y = min(x + PANEL, SIDE), min(y + PANEL, SIDE)
    return (x, y, 0.0), (to_x, y, 0.0), (to_x, to_y, 0.0), (x, to_y, 0.0)


def _upright(one: tuple[float, float], two: tuple[float, float], low: float = 0.0, high: float = HEIGHT) -> Corners:
    return (*one, low), (*two, low), (*two, high), (*one, high)


def _shaded(colour: Colour, share: float) -> Colour:
    red, green, blue = (min(255, round(part * share)) for part in colour)
    return red, green, blue

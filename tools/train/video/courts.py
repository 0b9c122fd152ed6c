"""The world of the shipped models: four open courts around a crossing.

Every court has walls of its own colour and a landmark in its outer corner, so that a glance says which one it is. Doors
lead to both neighbours: who turns the same way at every centre comes back to the first court. `faces` says what of them
is drawn.
"""

import math
from dataclasses import dataclass

COURT, WALL, DOOR = 4.0, 0.5, 2.0
"""Side of a court, thickness of a wall, and width of a door; the unit is about a metre."""
FAR = COURT + WALL
"""Where the second court of a side begins."""
SIDE = 2 * COURT + WALL
"""Side of the world."""
APART = 1.1
"""From a court's centre to its landmark, along either side."""
BODY = 0.3
"""The player's radius."""

Colour = tuple[int, int, int]
WHITE: Colour = (250, 250, 250)


@dataclass(frozen=True)
class Piece:
    """A part of a landmark: round, and tapering upwards."""

    height: float
    lower: float  # its radius below
    upper: float  # its radius above
    colour: Colour


@dataclass(frozen=True)
class Court:
    """One of the four."""

    x: float  # its least x
    y: float  # its least y
    colour: Colour  # its walls
    landmark: tuple[Piece, ...]  # the pieces of its landmark, from the ground up

    @property
    def centre(self) -> tuple[float, float]:
        """Where its two ways through cross."""
        return self.x + COURT / 2, self.y + COURT / 2

    @property
    def corner(self) -> tuple[float, float]:
        """Where its landmark stands: off the centre, away from the crossing."""
        x, y = self.centre
        return x + math.copysign(APART, x - SIDE / 2), y + math.copysign(APART, y - SIDE / 2)


def _ball(radius: float, colour: Colour, pieces: int = 6) -> tuple[Piece, ...]:
    heights = [radius * (1 - math.cos(math.pi * i / pieces)) for i in range(pieces + 1)]
    radii = [radius * math.sin(math.pi * i / pieces) for i in range(pieces + 1)]
    return tuple(Piece(heights[i + 1] - heights[i], radii[i], radii[i + 1], colour) for i in range(pieces))


FIR = (Piece(0.5, 0.12, 0.12, (120, 80, 40)), Piece(1.3, 0.6, 0.0, (40, 160, 60)))
BALL = (Piece(0.6, 0.3, 0.3, WHITE), *_ball(0.5, (40, 90, 220)))
POST = (Piece(0.35, 0.3, 0.3, (255, 140, 20)), Piece(0.35, 0.3, 0.3, WHITE)) * 3
PYRAMID = (Piece(1.7, 0.75, 0.0, (255, 225, 70)),)
COURTS = (
    Court(0, 0, (232, 78, 66), FIR),
    Court(FAR, 0, (250, 205, 60), BALL),
    Court(FAR, FAR, (64, 130, 235), POST),
    Court(0, FAR, (176, 92, 214), PYRAMID),
)
"""The courts, in the order in which who turns left meets them."""


def free(x: float, y: float) -> bool:
    """Whether the player has room at a place."""
    for court in COURTS:
        if math.dist((x, y), court.corner) < BODY + max(piece.lower for piece in court.landmark):
            return False
    if not (BODY <= x <= SIDE - BODY and BODY <= y <= SIDE - BODY):
        return False
    return _passes(x, y) and _passes(y, x)


def _passes(across: float, along: float) -> bool:
    """Whether the inner wall at a place across is not there, or a door is, at a place along it."""
    if abs(across - SIDE / 2) >= WALL / 2 + BODY:
        return True
    middle = COURT / 2 if along < SIDE / 2 else FAR + COURT / 2
    return abs(along - middle) <= DOOR / 2 - BODY

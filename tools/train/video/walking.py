"""How the player of the training episodes walks: from court to court, with moments of doing anything at all.

A player who acts at random soon stands at a wall and stays there; one who always walks on never shows what a turn on
the spot looks like. A model needs both.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from tools.train.video.courts import COURTS, free

ACTIONS = ("stay", "left", "right", "forward")
"""The action space, by number."""
STEP, TURN = 0.75, 15.0
"""What an action moves: units of the world, and degrees. Six steps lead from centre to centre, six turns around a
corner, and all places lie on a lattice: there are about 2,100 views, so that a small model can know them all."""
AHEAD = 0.6
"""Least cosine at which a step forward moves along a side: to the nearest of eight neighbouring places."""
SHARES = (0.1, 0.35, 0.35, 0.2)
"""Probability of each action in a moment of doing anything."""
MOMENT, LASTS = 0.06, 8
"""Probability of such a moment at any frame, and its mean length in frames."""
NEAR = 0.3
"""The player has reached a place that is so near."""


TOUR = (("forward", 6), ("left", 6)) * 4
"""Actions, and for how many frames each is repeated: from the first court's centre through all of them, and back."""


@dataclass(frozen=True)
class Pose:
    """Where the player stands, and looks: along x, turned left by so many degrees."""

    x: float
    y: float
    degrees: float

    @classmethod
    def first(cls) -> "Pose":
        """Where the tour begins: at the first court's centre, with the second one ahead."""
        return cls(*COURTS[0].centre, 0.0)

    def after(self, action: int) -> "Pose":
        """The pose after an action; a wall or a landmark lets the player slide along it."""
        name = ACTIONS[action]
        if name in ("left", "right"):
            return replace(self, degrees=(self.degrees + (TURN if name == "left" else -TURN)) % 360)
        if name == "stay":
            return self
        turned = math.radians(self.degrees)
        x, y = self.x + STEP * _way(math.cos(turned)), self.y + STEP * _way(math.sin(turned))
        if free(x, y):
            return replace(self, x=x, y=y)
        if free(x, self.y):
            return replace(self, x=x)
        return replace(self, y=y) if free(self.x, y) else self


def _way(part: float) -> int:
    return (part > AHEAD) - (part < -AHEAD)


@dataclass
class Walker:
    """A player who goes from court to court."""

    draws: np.random.Generator  # what the player decides by
    pose: Pose = field(init=False)  # where the player stands

    def __post_init__(self) -> None:
        self._court = int(self.draws.integers(len(COURTS)))
        self._route: list[tuple[float, float]] = []
        self._moment, self._action = 0, 0
        turns = int(self.draws.integers(round(360 / TURN)))
        self.pose = Pose(*self._somewhere(), TURN * turns)

    def acts(self) -> int:
        """The next action, which changes the pose."""
        if self._moment == 0 and self.draws.random() < MOMENT:
            self._moment = int(self.draws.geometric(1 / LASTS))
            self._action = int(self.draws.choice(len(ACTIONS), p=SHARES))
        if self._moment:
            self._moment -= 1
            action = self._action
        else:
            action = self._towards_goal()
        self.pose = self.pose.after(action)
        return action

    def _towards_goal(self) -> int:
        if not self._route:
            self._choose()
        x, y = (goal - here for goal, here in zip(self._route[0], (self.pose.x, self.pose.y), strict=True))
        if math.hypot(x, y) < NEAR:
            self._route.pop(0)
            return self._towards_goal()
        off = (math.degrees(math.atan2(y, x)) - self.pose.degrees + 180) % 360 - 180
        forward = ACTIONS.index("forward")
        if abs(off) > TURN * 0.75:
            return ACTIONS.index("left" if off > 0 else "right")
        if self.pose.after(forward) == self.pose:  # in front of something: another way
            self._choose()
        return forward

    def _choose(self) -> None:
        """A court beside this one, and the way there: doors are straight ahead from centres."""
        here = COURTS[self._court].centre
        self._court = (self._court + int(self.draws.choice((-1, 1), p=(0.35, 0.65)))) % len(COURTS)
        there = COURTS[self._court].centre
        self._route = [here, there] + ([self._somewhere()] if self.draws.random() < 0.5 else [])

    def _somewhere(self) -> tuple[float, float]:
        """A place in the court, which is its centre half of the time."""
        middle = COURTS[self._court].centre
        if self.draws.random() < 0.5:
            return middle
        while True:
            x, y = (float(at + STEP * self.draws.integers(-2, 3)) for at in middle)
            if free(x, y):
                return x, y

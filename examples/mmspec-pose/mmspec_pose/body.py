"""A body of 24 joints: rotations from six numbers a joint, where they put the joints, and a stick figure of it."""

import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.nn.functional import normalize

PARENTS = (-1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 12, 13, 14, 16, 17, 18, 19, 20, 21)
"""The joint that each is attached to, numbered as SMPL's: pelvis, hips, spine, knees, … hands."""
LEFT = {1: (0.1, -0.1, 0.0), 4: (0.0, -0.4, 0.0), 7: (0.0, -0.4, 0.0), 10: (0.0, -0.05, 0.12)}
ARM = {13: (0.08, 0.1, 0.0), 16: (0.1, 0.05, 0.0), 18: (0.26, 0.0, 0.0), 20: (0.25, 0.0, 0.0), 22: (0.08, 0.0, 0.0)}
MIDDLE = {0: (0.0, 0.0, 0.0), 3: (0.0, 0.12, 0.0), 6: (0.0, 0.13, 0.0), 9: (0.0, 0.06, 0.0)}
MIDDLE |= {12: (0.0, 0.22, 0.0), 15: (0.0, 0.12, 0.0)}
BONES: dict[int, tuple[float, float, float]] = {**MIDDLE, **LEFT, **ARM}
"""From a joint's parent to it, in metres, with arms stretched out; those of the right side mirror the left one's."""


def rotations(six: Tensor) -> Tensor:
    """Rotations `[…, 3, 3]` of six numbers `[…, 6]`: two columns, made orthonormal (arXiv 1812.07035)."""
    first, second = six.unflatten(-1, (2, 3)).unbind(-2)
    x = normalize(first, dim=-1)
    y = normalize(second - (x * second).sum(-1, keepdim=True) * x, dim=-1)
    return torch.stack([x, y, torch.linalg.cross(x, y)], -1)


def joints(turned: Tensor) -> Tensor:
    """Places `[…, 24, 3]` of the joints, the pelvis at 0, of their rotations `[…, 24, 3, 3]` against their parents."""
    bones = BONES | {joint + 1: (-x, y, z) for joint, (x, y, z) in (LEFT | ARM).items()}
    rest = turned.new_tensor([bones[joint] for joint in range(len(PARENTS))])
    within, places = [turned[..., 0, :, :]], [torch.zeros_like(turned[..., 0, :, 0])]
    for joint, parent in list(enumerate(PARENTS))[1:]:
        places.append(places[parent] + within[parent] @ rest[joint])
        within.append(within[parent] @ turned[..., joint, :, :])
    return torch.stack(places, -2)


def stick_figures(poses: Tensor, side: int = 128) -> Image.Image:
    """Bodies `[n, 24, 3, 3]`, seen from the front, in a row."""
    sheet = Image.new("RGB", (side * max(len(poses), 1), side), "white")
    pen = ImageDraw.Draw(sheet)
    for number, body in enumerate(joints(poses).tolist()):
        at = [(side * (number + 0.5 + x / 2.2), side * (0.45 - y / 2.2)) for x, y, _ in body]
        for joint, parent in list(enumerate(PARENTS))[1:]:
            pen.line([at[parent], at[joint]], fill="black", width=2)
        x, y = at[15]
        pen.ellipse([x - side / 20, y - side / 20, x + side / 20, y + side / 20], fill="black")
    return sheet

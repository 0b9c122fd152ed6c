"""Pictures of the courts, drawn by Panda3D's software renderer: no screen and no graphics card.

Panda3D (modified BSD licence) is needed for training only: `pip install -e '.[tools]'`.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from tools.train.video.faces import SKY, Face
from tools.train.video.walking import Pose

EYE = 0.8
"""Height of the eye."""
VIEW = 80.0
"""Width of what is seen, in degrees."""
FINER = 4
"""Pixels are means of so many by so many."""
SETTINGS = "load-display p3tinydisplay\naudio-library-name null\nnotify-level fatal"
"""The software renderer, and no sound; it says that there is no screen, which is no fault."""


class Camera:
    """A camera that looks at faces.

    Args:
        faces: What there is; see `faces.faces`.
        size: Height and width of a picture in pixels.

    Raises:
        ValueError: Panda3D is not installed.
    """

    def __init__(self, faces: Iterable[Face], size: tuple[int, int]) -> None:
        try:
            from panda3d import core
        except ImportError as error:
            raise ValueError(
                "frames are drawn by Panda3D, which is not installed: pip install -e '.[tools]'"
            ) from error
        core.load_prc_file_data("", SETTINGS)
        self._height, self._width = (FINER * side for side in size)
        pipe = core.GraphicsPipeSelection.get_global_ptr().make_default_pipe()
        self._engine = core.GraphicsEngine(pipe)
        colours, window = core.FrameBufferProperties(), core.WindowProperties.size(self._width, self._height)
        colours.rgb_color, colours.depth_bits = True, 24
        unseen = core.GraphicsPipe.BF_refuse_window
        screen = self._engine.make_output(pipe, "courts", 0, colours, window, unseen)
        self._picture = core.Texture()
        screen.add_render_texture(self._picture, core.GraphicsOutput.RTM_copy_ram)
        screen.set_clear_color((*(c / 255 for c in SKY), 1))
        scene = core.NodePath(_mesh(core, faces))
        scene.set_two_sided(True)
        lens = core.PerspectiveLens()
        lens.set_fov(VIEW, 2 * math.degrees(math.atan(math.tan(math.radians(VIEW / 2)) * self._height / self._width)))
        lens.set_near_far(0.05, 50)
        self._eye = scene.attach_new_node(core.Camera("eye", lens))
        screen.make_display_region().set_camera(self._eye)

    def sees(self, pose: Pose) -> np.ndarray:
        """What the player sees: `[height, width, 3]` uint8."""
        self._eye.set_pos_hpr(pose.x, pose.y, EYE, pose.degrees - 90, 0, 0)  # Panda3D's 0° looks along y
        self._engine.render_frame()
        fine = np.frombuffer(self._picture.get_ram_image_as("RGB"), np.uint8)
        fine = fine.reshape(self._height // FINER, FINER, self._width // FINER, FINER, 3)[::-1]
        return (fine.mean((1, 3)) + 0.5).astype(np.uint8)

    def close(self) -> None:
        """Free the picture's memory."""
        self._engine.remove_all_windows()


def _mesh(core: Any, faces: Iterable[Face]) -> Any:
    """A node of all faces."""
    data = core.GeomVertexData("courts", core.GeomVertexFormat.get_v3c4(), core.Geom.UH_static)
    places, colours = core.GeomVertexWriter(data, "vertex"), core.GeomVertexWriter(data, "color")
    triangles = core.GeomTriangles(core.Geom.UH_static)
    for number, (corners, colour) in enumerate(faces):
        for corner in corners:
            places.add_data3(*corner)
            colours.add_data4(*(c / 255 for c in colour), 1)
        first = 4 * number
        triangles.add_vertices(first, first + 1, first + 2)
        triangles.add_vertices(first, first + 2, first + 3)
    geom = core.Geom(data)
    geom.add_primitive(triangles)
    node = core.GeomNode("courts")
    node.add_geom(geom)
    return node

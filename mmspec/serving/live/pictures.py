"""Pictures in messages."""

import base64

from PIL.Image import Image

from mmspec.api import row_values


def png(picture: Image) -> str:
    """A picture as a PNG in base64."""
    return base64.b64encode(row_values.png(picture)).decode()

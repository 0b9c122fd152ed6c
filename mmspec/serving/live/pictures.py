"""Pictures in messages."""

import base64
from io import BytesIO

from PIL.Image import Image


def png(picture: Image) -> str:
    file = BytesIO()
    picture.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()

"""What the cards of all shipped models say, a file a modality."""

from tools.cards.models import continuous, image, ssm, text, video

SHIPPED = (*text.SHIPPED, *ssm.SHIPPED, *image.SHIPPED, *continuous.SHIPPED, *video.SHIPPED)

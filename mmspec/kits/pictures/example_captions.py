"""What is drawn: captions of emoji, half of them of pictures that no model was trained on."""

HELD_OUT = (
    "earth globe asia australia",
    "white sun behind cloud",
    "rose",
    "french fries",
    "trophy",
    "elephant",
    "ok hand sign skin 5",
    "athletic shoe",
    "ghost",
    "sparkling heart",
    "clock face three oclock",
    "relieved face",
    "vertical traffic light",
    "flying saucer",
    "croissant",
    "hot beverage",
)
"""Captions of pictures that the model was not trained on."""
SEEN = (
    "heavy black heart",
    "red apple",
    "cat face",
    "rocket",
    "smiling face with sunglasses",
    "slice of pizza",
    "police officer skin 4",
    "house building",
    "penguin",
    "guitar",
    "evergreen tree",
    "thumbs up sign skin 5",
    "umbrella",
    "soccer ball",
    "blue book",
    "birthday cake",
)
"""Captions of pictures that it was."""
CAPTIONS = tuple(caption for pair in zip(SEEN, HELD_OUT, strict=True) for caption in pair)

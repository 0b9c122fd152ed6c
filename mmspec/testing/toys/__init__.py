"""Five toy modalities, each a target with a drafter or two, each with a distribution that is known in closed form."""

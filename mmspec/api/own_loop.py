"""Models that keep their own loop, and are enabled inside it: targets that offer `own-loop`.

Such a target's factory is called as `factory(model, method=…, k=…, why=…)` and returns the handle itself: a context
manager with `report`, `method`, `why` and `disable()`, which stands in the model's attributes as `HANDLE` until then.
"""

from collections.abc import Mapping
from typing import Any

from mmspec.api.build import DEFAULT_K, budget
from mmspec.api.choice import AUTO
from mmspec.api.mistakes import MEANT
from mmspec.registry import Component, installed, pair, require
from mmspec.registry.matching import HOME, OWN_LOOP
from mmspec.registry.suggest import unknown

HANDLE = "_mmspec_enabled"


def target_of(model: Any) -> Component | None:
    """The target of a model that keeps its own loop; None for all others."""
    target = installed().target_for(model)
    return target if target is not None and OWN_LOOP in target.offers else None


def enabled(
    model: Any, target: Component, method: str, k: int | None, parts: Mapping[str, Any], options: dict[str, Any]
) -> Any:
    """Enable such a model.

    Args:
        model: A live model, or a live pipeline of diffusers.
        target: Its target.
        method: A method's name, or `auto`.
        k: Units to draft per round.
        parts: What else `enable` takes by name, which these methods have none of.
        options: All the rest.

    Raises:
        ValueError: The method does not fit, or an argument has no meaning here.
    """
    registry, why = installed(), ""
    near = (target.owner, HOME) if method == AUTO else ()
    if method == AUTO:
        method, why = target.default_method, f"{target.default_method}, which the target {target.name} is used with"
    pairing = pair(registry, method, near=near)
    require(registry, pairing, target)
    k = budget(k, options, target.default_k or DEFAULT_K)
    given = [name for name, value in parts.items() if value is not None] + list(options)
    if given:
        hints = "".join(f"; {unknown('argument', name, ('method', 'k'), MEANT)}" for name in options)
        raise ValueError(f"{method} takes k= and no {', no '.join(f'{name}=' for name in given)}{hints}")
    return target.load()(model, method=pairing.method.name, k=k, why=why)

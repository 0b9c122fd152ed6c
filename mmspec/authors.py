"""The stable surface for authors of plugins: everything here keeps its name and meaning within a minor version.

Importing this module imports neither torch nor transformers; what is exported is loaded on first use.

* Manifest: `hookimpl` marks a hook, `answering` makes one of a place, `hookspec` declares one for other plugins.
  `mmspec_components` yields specs: `TargetSpec` (with `DefaultMethod` for `auto`), `DrafterSpec`, `RuleSpec`,
  `MethodSpec`, `AdapterSpec`.
* Protocols, which are implemented and not inherited: `Target`, `Drafter`, `Rule`, `Distribution`, `Policy`; for
  drafters in plain Python `HostDrafter`, of which `HostDrafterAdapter` makes a `Drafter`.
* Data of a round: `State`, `Draft`, `Prefill`, `TargetOutput`, `Scores`, `Verdict`, `Step`.
* Random numbers: `Round` for rules, `DraftNoise` for drafters, `Noise` for distributions.
* Distributions: `Categorical`, `PointMass`, `Gaussian`, `GaussianMixture`, `DenoisingChain`, `External`, `Mixed`;
  `couple`, `take_nodes` and `where_nodes` work on any of them.
* Beside a text: `decoder_for` puts a decoder together for a live model, a `Warp` says how it samples, and `UnitStates`
  collects the hidden states that its units are drawn from (`FINAL`: behind the final norm), for a head of yours.
* To build on: `walk` and `walk_where` for rules; `DraftModel` with a `Shape` (`Frontier`, `Level`) for drafters with a
  smaller model; `Jacobi` with an `Initialisation` (`Window`) for windows. `Decoder` is the loop.
* Tests: `parametrize_checks`, `check_component` and `checks_of` measure every promise of a component; `Example` says
  what a component is tried on.
"""

from typing import TYPE_CHECKING

from mmspec.lazy import lazily

if TYPE_CHECKING:
    from mmspec.api.build import decoder_for as decoder_for
    from mmspec.core.decoder import Decoder as Decoder
    from mmspec.core.distributions import Categorical as Categorical
    from mmspec.core.distributions import DenoisingChain as DenoisingChain
    from mmspec.core.distributions import Distribution as Distribution
    from mmspec.core.distributions import External as External
    from mmspec.core.distributions import Gaussian as Gaussian
    from mmspec.core.distributions import GaussianMixture as GaussianMixture
    from mmspec.core.distributions import Mixed as Mixed
    from mmspec.core.distributions import PointMass as PointMass
    from mmspec.core.distributions import couple as couple
    from mmspec.core.distributions import take_nodes as take_nodes
    from mmspec.core.distributions import where_nodes as where_nodes
    from mmspec.core.drafters.draft_model import DraftModel as DraftModel
    from mmspec.core.drafters.host import HostDrafter as HostDrafter
    from mmspec.core.drafters.host import HostDrafterAdapter as HostDrafterAdapter
    from mmspec.core.drafters.jacobi import Initialisation as Initialisation
    from mmspec.core.drafters.jacobi import Jacobi as Jacobi
    from mmspec.core.drafters.jacobi import Window as Window
    from mmspec.core.drafters.shapes.shape import Frontier as Frontier
    from mmspec.core.drafters.shapes.shape import Level as Level
    from mmspec.core.drafters.shapes.shape import Shape as Shape
    from mmspec.core.hidden import FINAL as FINAL
    from mmspec.core.live import Live as Live
    from mmspec.core.noise import DraftNoise as DraftNoise
    from mmspec.core.noise import Noise as Noise
    from mmspec.core.noise import Round as Round
    from mmspec.core.policies import Policy as Policy
    from mmspec.core.protocols import Drafter as Drafter
    from mmspec.core.protocols import Target as Target
    from mmspec.core.rules.rule import Rule as Rule
    from mmspec.core.rules.rule import walk as walk
    from mmspec.core.rules.rule import walk_where as walk_where
    from mmspec.core.state import State as State
    from mmspec.core.types import Draft as Draft
    from mmspec.core.types import Prefill as Prefill
    from mmspec.core.types import Scores as Scores
    from mmspec.core.types import Step as Step
    from mmspec.core.types import TargetOutput as TargetOutput
    from mmspec.core.types import Verdict as Verdict
    from mmspec.core.unit_states import UnitStates as UnitStates
    from mmspec.core.warp import Warp as Warp
    from mmspec.registry import AdapterSpec as AdapterSpec
    from mmspec.registry import DefaultMethod as DefaultMethod
    from mmspec.registry import DrafterSpec as DrafterSpec
    from mmspec.registry import MethodSpec as MethodSpec
    from mmspec.registry import PolicySpec as PolicySpec
    from mmspec.registry import RuleSpec as RuleSpec
    from mmspec.registry import TargetSpec as TargetSpec
    from mmspec.registry import answering as answering
    from mmspec.registry import hookimpl as hookimpl
    from mmspec.registry import hookspec as hookspec
    from mmspec.testing import Example as Example
    from mmspec.testing import check_component as check_component
    from mmspec.testing import checks_of as checks_of
    from mmspec.testing import parametrize_checks as parametrize_checks

_EXPORTS = {
    "mmspec.api.build": "decoder_for",
    "mmspec.core.decoder": "Decoder",
    "mmspec.core.distributions": "Categorical DenoisingChain Distribution External Gaussian GaussianMixture Mixed "
    "PointMass couple take_nodes where_nodes",
    "mmspec.core.drafters.draft_model": "DraftModel",
    "mmspec.core.drafters.host": "HostDrafter HostDrafterAdapter",
    "mmspec.core.drafters.jacobi": "Initialisation Jacobi Window",
    "mmspec.core.drafters.shapes.shape": "Frontier Level Shape",
    "mmspec.core.hidden": "FINAL",
    "mmspec.core.live": "Live",
    "mmspec.core.noise": "DraftNoise Noise Round",
    "mmspec.core.policies": "Policy",
    "mmspec.core.protocols": "Drafter Target",
    "mmspec.core.rules.rule": "Rule walk walk_where",
    "mmspec.core.state": "State",
    "mmspec.core.types": "Draft Scores Prefill Step TargetOutput Verdict",
    "mmspec.core.unit_states": "UnitStates",
    "mmspec.core.warp": "Warp",
    "mmspec.registry": "AdapterSpec DefaultMethod DrafterSpec MethodSpec PolicySpec RuleSpec TargetSpec "
    "answering hookimpl hookspec",
    "mmspec.testing": "Example check_component checks_of parametrize_checks",
}
_HOMES = {name: module for module, names in _EXPORTS.items() for name in names.split()}
__getattr__, __dir__ = lazily(__name__, _HOMES)

"""`mirror-sd` on transformers models: what the exit says, and by whom."""

import threading
from typing import Any

import pytest
import torch

import mmspec
from mmspec.hosts.draft_models import drafting_target
from mmspec.testing import tiny_models
from mmspec_zoo.overlap.mirror_sd import LayerExit
from tests.support import random_models
from tests.support.examples import zoo


@pytest.mark.parametrize("layer", [1, 2])
def test_the_exit_says_what_norm_and_head_make_of_a_layers_states(layer: int) -> None:
    model, ids = zoo.deeper(), tiny_models.prompt([0])["input_ids"]
    heard: list[torch.Tensor] = []
    exit = LayerExit(drafting_target(model), layer)
    with torch.inference_mode():
        exit.once(heard.append)
        other = threading.Thread(target=lambda: model(ids[:, :2]))
        other.start()
        other.join()
        assert not heard  # it was another thread's pass
        states = model(ids, output_hidden_states=True).hidden_states[layer]
        model(ids)
        assert len(heard) == 1  # once
        assert torch.equal(heard[0], model.lm_head(model.model.norm(states)))
        exit.once(heard.append)()
        model(ids)
    assert len(heard) == 1  # it was taken back


def test_exits_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="can be left behind layer 1 to 1, not 2"):
        mmspec.enable(tiny_models.llama(), "mirror-sd", drafter=random_models.small(), executor="serial", exit=2)


def test_a_pass_that_was_interrupted_before_its_exit_does_no_harm() -> None:
    """The ear that is left hears the next call's first pass, and asks nothing for that call."""
    model, inputs = tiny_models.llama(), tiny_models.prompt([0, 1])
    call: dict[str, Any] = dict(max_new_tokens=20, pad_token_id=0, eos_token_id=None, do_sample=True)
    torch.manual_seed(3)
    plain = model.generate(**inputs, **call)
    passes: list[int] = []

    def interrupt(*_: Any) -> None:
        passes.append(1)
        if len(passes) == 5 and enabled:
            raise KeyboardInterrupt

    enabled: list[Any] = []
    hook = model.model.layers[0].register_forward_pre_hook(interrupt)
    with mmspec.enable(model, "mirror-sd", drafter=random_models.small(), executor="serial", k=3) as spec:
        model.generate(**inputs, **call)  # its first padded batch is compared with stock
        enabled.append(spec)
        passes.clear()
        with pytest.raises(KeyboardInterrupt):
            model.generate(**inputs, **call)
        hook.remove()
        assert model.model.layers[1]._forward_pre_hooks
        torch.manual_seed(3)
        assert torch.equal(model.generate(**inputs, **call), plain) and not spec.report.faults
        assert not model.model.layers[1]._forward_pre_hooks

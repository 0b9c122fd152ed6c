"""A head by its folder: `auto` and `drafter=` know it from a smaller model."""

import warnings
from pathlib import Path

import pytest
import torch

import mmspec
from mmspec.api.build import decoder_for
from mmspec.cli.fitting import fits_of
from mmspec.registry import installed
from mmspec_text.drafters.eagle import Eagle
from mmspec_text.drafters.heads.eagle.family import is_head
from tests.support.eagle_layouts import LAYOUTS
from tests.text.conftest import llama


@pytest.mark.parametrize("layout", ["eagle-1", "eagle-3", "nemo", "speculators", "modelopt-final-state"])
def test_auto_chooses_the_method_of_a_head(layout: str, tmp_path: Path) -> None:
    model, folder = llama(num_hidden_layers=6), str(LAYOUTS[layout].save(tmp_path))
    decoder = decoder_for(model, drafter=folder)
    assert isinstance(decoder.drafter, Eagle) and decoder.name == "eagle"
    assert decoder.why == f"eagle, because {folder!r} is a head that eagle drafts with"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_heads_of_every_layout_are_known(layout: str, tmp_path: Path) -> None:
    stored = LAYOUTS[layout]
    assert is_head(stored.config, [stored.rename(key) for key in stored.weights()])


def test_what_is_no_head_of_this_family(tmp_path: Path) -> None:
    assert not is_head({}, llama().state_dict())
    third = LAYOUTS["eagle-3"].weights()
    assert not is_head({}, [*third, "hidden_norm.weight"]), "one of DFlash"
    llama().save_pretrained(tmp_path)
    decoder = decoder_for(llama(), drafter=str(tmp_path))
    assert decoder.name == "draft-model"


def test_another_methods_rule_takes_the_head_too(tmp_path: Path) -> None:
    """A method that drafts without a model keeps its rule, and gets the head's drafter."""
    folder = str(LAYOUTS["eagle-3"].save(tmp_path))
    decoder = decoder_for(llama(num_hidden_layers=6), "prompt-lookup", drafter=folder)
    assert isinstance(decoder.drafter, Eagle)


def test_what_fits_a_model_names_the_method() -> None:
    """No head is at hand to try, so that only the words are compared."""
    fit = next(fit for fit in fits_of(installed(), "mmspec/text-1m").methods if fit.method == "eagle")
    assert fit.fits and "trained for this model" in fit.why and fit.required == ["model"]


def test_a_target_whose_vocabulary_was_resized_is_refused_by_name(tmp_path: Path) -> None:
    """The head has its embedding of the target; enabled again, it drafts for the ids that it knows."""
    stored, model = LAYOUTS["eagle-3"].save(tmp_path), llama(num_hidden_layers=6)
    with mmspec.enable(model, drafter=str(stored)):
        model.resize_token_embeddings(105)
        with pytest.raises(ValueError, match="the model has 105 token ids now"):
            model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4)
    with mmspec.enable(model, drafter=str(stored)):
        ours = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4)
    assert torch.equal(ours, model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4))


def test_texts_longer_than_a_heads_training_texts_are_named(tmp_path: Path) -> None:
    stored = str(LAYOUTS["eagle-3"].save(tmp_path, changed={"max_position_embeddings": 24}))
    decoder = decoder_for(llama(num_hidden_layers=6), "eagle", drafter=stored, options={"probe": False})
    prompt = torch.tensor([[1, 2, 3, 4]])
    with pytest.warns(UserWarning, match="trained for texts of 24 tokens, and this one may have 34: .* of the last 10"):
        decoder.generate(prompt, 30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoder.generate(prompt, 20)


def test_the_tree_of_the_released_code(tmp_path: Path) -> None:
    """Its defaults: `total_token=60`, the root included, `depth=7` levels behind the first, `top_k=10`."""
    model, folder = llama(num_hidden_layers=6), str(LAYOUTS["eagle-3"].save(tmp_path))
    said = {"form": "rerank", "width": 10, "nodes": 59}
    ours, same = (
        decoder_for(model, "eagle", drafter=folder, k=k, options={"probe": False, **options})
        for k, options in ((None, {"form": "published"}), (8, said))
    )
    assert (ours.k, ours.k_from, ours.drafter.width(8)) == (8, "its head", 59)
    assert ours.drafter.shape == same.drafter.shape and ours.drafter.shape.fed(8) == 70
    prompt = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    outputs = [decoder.generate(prompt, 30, seed=1) for decoder in (ours, same, decoder_for(model, "plain"))]
    assert all(torch.equal(a, b) for out in outputs[1:] for a, b in zip(outputs[0].units, out.units, strict=True))
    assert outputs[0].report.rounds == outputs[1].report.rounds and max(outputs[0].report.sizes) == 60
    short = decoder_for(model, "eagle", drafter=folder, k=3, options={"probe": False, "form": "published"})
    assert short.k == 3 and short.drafter.width(3) == 59
    with pytest.raises(ValueError, match="form=chain, heap"):
        decoder_for(model, "eagle", drafter=folder, rule="rejection", options={"form": "published"})

"""JSON by a schema, with a grammar that drafts: `python examples/json_schema.py` (`pip install llguidance`).

Keys, quotes and brackets follow from the schema, so that they are drafted without a model. What stands between them is
the model's: the shipped one writes nonsense, in the right form.
"""

import json
import sys

import llguidance
import llguidance.hf

import mmspec

SCHEMA = {
    "type": "object",
    "properties": {
        "first_registration_number": {"type": "integer", "minimum": 0, "maximum": 9999},
        "permanent_residential_address": {"type": "string", "maxLength": 24},
        "is_currently_employed_there": {"type": "boolean"},
    },
    "required": ["first_registration_number", "permanent_residential_address", "is_currently_employed_there"],
    "additionalProperties": False,
}


def main(name: str = "mmspec/text-14m") -> None:
    pipe = mmspec.Pipeline.from_pretrained(name)
    model, tokenizer = pipe.model, pipe.tokenizer
    table = llguidance.hf.from_tokenizer(tokenizer, n_vocab=model.config.vocab_size)
    schema = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA), overrides={"whitespace_flexible": False})
    inputs = tokenizer("The record, as JSON:\n", return_tensors="pt", return_token_type_ids=False)
    texts = []
    for method, k in (("plain", 0), ("grammar", 8)):
        grammar = mmspec.Grammar(lambda: llguidance.LLMatcher(table, schema))  # one of its own for every call
        with mmspec.enable(model, method, k=k) as spec:
            output = model.generate(**inputs, logits_processor=[grammar], max_new_tokens=200, do_sample=False)
        texts.append(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
        print(f"{spec.report.rounds} passes ({method})")
    assert texts[0] == texts[1]
    print(json.dumps(json.loads(texts[1]), indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:2])

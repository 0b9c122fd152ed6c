"""The zoo: published methods of decoding texts that few need, by the same door as a stranger's plugin.

* `overlap/`: a smaller model that drafts while the target verifies (pearl, saguaro, mirror-sd).
* `self_drafting/`: the target drafts for itself (layer-skip, swift, del).
* `sorted/`: a draft model whose first layers are models, too (s2d).
* `vocabularies/`: a draft model of fewer tokens, or of others (vocab-trim, omnidraft).
* `conditioned/`: target and drafter read different prompts (ambedkar, rapid).
* `infill/`: texts with blanks, filled in any order (xlnet, assd).
* `relaxed/`: lossy rules (rollback, judge).
* `specmemo`: a draft model within a budget of bytes.
"""

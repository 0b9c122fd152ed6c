"""The zoo: published methods of decoding texts that few need, by the same door as a stranger's plugin.

A folder has a family: a small model that drafts while the target verifies (`overlap`), a target that drafts for itself
(`self_drafting`), draft models with exits (`sorted`) or other tokens (`vocabularies`), two prompts (`conditioned`),
blanks in any order (`infill`), lossy rules (`relaxed`).
"""

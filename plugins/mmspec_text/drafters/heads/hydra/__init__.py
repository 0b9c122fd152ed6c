"""Hydra's heads: Medusa's, but each reads the drafted units before its own."""

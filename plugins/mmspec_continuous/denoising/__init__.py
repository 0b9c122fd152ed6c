"""Speculative denoising: several steps of a stochastic diffusion sampler per network call, exact in distribution."""

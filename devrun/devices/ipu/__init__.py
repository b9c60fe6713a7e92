"""Graphcore IPUs, through PopTorch; see `docs/ipu.md`."""

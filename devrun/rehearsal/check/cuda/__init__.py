"""What a run on the CPU shows of a training on CUDA.

Every tensor is tagged by where it would be (`origins`), and every operator seen
(`watch`); `steps` asks judges about each: syncs, mismatches, determinism, precision.
Memory, `torch.compile` and the memory format are tried in forked processes (`aside`).
"""

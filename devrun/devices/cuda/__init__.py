"""NVIDIA and AMD GPUs: the adapter, and its probes for rehearsals."""

"""Several processes as one training: how model, data and update are divided.

All of it is torch's own: DistributedDataParallel, `fully_shard`, `parallelize_module`
and DeviceMesh. Here is what decides between them, and what an adapter asks of each.
"""

"""Checkpoints: whole or not there, verified before use, nothing in them is run."""

from devrun.checkpoint.background import BackgroundWriter
from devrun.checkpoint.catalog import (
    CheckpointInfo,
    checkpoint_at,
    find_latest,
    list_checkpoints,
    read_latest,
    read_pointer,
    remove_checkpoint,
)
from devrun.checkpoint.codec import decode_tree, encode_tree, has_shards
from devrun.checkpoint.draft import write_checkpoint, write_pointer
from devrun.checkpoint.fitting import fits, load_state_dict
from devrun.checkpoint.loader import CheckpointLoader
from devrun.checkpoint.loader import load_any as _load_checkpoint
from devrun.checkpoint.loader import load_with_prefix as _load_checkpoint_with_prefix
from devrun.checkpoint.manifest import Manifest, environment
from devrun.checkpoint.mmcv_format import (
    MmcvCheckpoint,
    export_weights,
    mmcv_optimizer_tree,
    read_mmcv_checkpoint,
    write_mmcv_checkpoint,
)
from devrun.checkpoint.names import step_name
from devrun.checkpoint.reader import (
    Checkpoint,
    MissingCheckpointError,
    read_checkpoint,
    read_manifest,
    verify_checkpoint,
)
from devrun.checkpoint.retention import prune, set_others_aside, sweep_leftovers
from devrun.checkpoint.rng import host_rng_state, set_host_rng_state
from devrun.checkpoint.state import (
    load_optimizer_state_by_name,
    optimizer_state_by_name,
    positional_optimizer_state,
    prepare_optimizer_state,
)
from devrun.checkpoint.tensorfile import Like
from devrun.checkpoint.weights import (
    get_state_dict,
    load_checkpoint,
    save_checkpoint,
    weights_to_cpu,
)

__all__ = [
    "BackgroundWriter",
    "Checkpoint",
    "CheckpointInfo",
    "CheckpointLoader",
    "Like",
    "Manifest",
    "MissingCheckpointError",
    "MmcvCheckpoint",
    "_load_checkpoint",
    "_load_checkpoint_with_prefix",
    "checkpoint_at",
    "decode_tree",
    "encode_tree",
    "environment",
    "export_weights",
    "find_latest",
    "fits",
    "get_state_dict",
    "has_shards",
    "host_rng_state",
    "list_checkpoints",
    "load_checkpoint",
    "load_optimizer_state_by_name",
    "load_state_dict",
    "mmcv_optimizer_tree",
    "optimizer_state_by_name",
    "positional_optimizer_state",
    "prepare_optimizer_state",
    "prune",
    "read_checkpoint",
    "read_latest",
    "read_manifest",
    "read_mmcv_checkpoint",
    "read_pointer",
    "remove_checkpoint",
    "save_checkpoint",
    "set_host_rng_state",
    "set_others_aside",
    "step_name",
    "sweep_leftovers",
    "verify_checkpoint",
    "weights_to_cpu",
    "write_checkpoint",
    "write_mmcv_checkpoint",
    "write_pointer",
]

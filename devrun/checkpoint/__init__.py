"""Checkpoints: whole or not there, verified before use, nothing in them is run."""

from devrun.checkpoint import loader as _loader
from devrun.checkpoint.background import BackgroundWriter as BackgroundWriter
from devrun.checkpoint.background import write_checkpoint as write_checkpoint
from devrun.checkpoint.catalog import checkpoint_at as checkpoint_at
from devrun.checkpoint.catalog import find_latest as find_latest
from devrun.checkpoint.catalog import list_checkpoints as list_checkpoints
from devrun.checkpoint.catalog import prune as prune
from devrun.checkpoint.catalog import read_latest as read_latest
from devrun.checkpoint.catalog import read_pointer as read_pointer
from devrun.checkpoint.catalog import remove_checkpoint as remove_checkpoint
from devrun.checkpoint.catalog import set_others_aside as set_others_aside
from devrun.checkpoint.catalog import sweep_leftovers as sweep_leftovers
from devrun.checkpoint.codec import decode_tree as decode_tree
from devrun.checkpoint.codec import encode_tree as encode_tree
from devrun.checkpoint.codec import has_shards as has_shards
from devrun.checkpoint.draft import write_pointer as write_pointer
from devrun.checkpoint.fitting import fits as fits
from devrun.checkpoint.fitting import load_state_dict as load_state_dict
from devrun.checkpoint.loader import CheckpointLoader as CheckpointLoader
from devrun.checkpoint.loader import get_state_dict as get_state_dict
from devrun.checkpoint.loader import load_checkpoint as load_checkpoint
from devrun.checkpoint.loader import save_checkpoint as save_checkpoint
from devrun.checkpoint.loader import weights_to_cpu as weights_to_cpu
from devrun.checkpoint.manifest import Manifest as Manifest
from devrun.checkpoint.manifest import environment as environment
from devrun.checkpoint.mmcv_format import MmcvCheckpoint as MmcvCheckpoint
from devrun.checkpoint.mmcv_format import export_weights as export_weights
from devrun.checkpoint.mmcv_format import mmcv_optimizer_tree as mmcv_optimizer_tree
from devrun.checkpoint.mmcv_format import read_mmcv_checkpoint as read_mmcv_checkpoint
from devrun.checkpoint.mmcv_format import write_mmcv_checkpoint as write_mmcv_checkpoint
from devrun.checkpoint.names import step_name as step_name
from devrun.checkpoint.reader import Checkpoint as Checkpoint
from devrun.checkpoint.reader import read_checkpoint as read_checkpoint
from devrun.checkpoint.reader import verify_checkpoint as verify_checkpoint
from devrun.checkpoint.rng import host_rng_state as host_rng_state
from devrun.checkpoint.rng import set_host_rng_state as set_host_rng_state
from devrun.checkpoint.state import optimizer_state_by_name as optimizer_state_by_name
from devrun.checkpoint.state import (
    positional_optimizer_state as positional_optimizer_state,
)
from devrun.checkpoint.state import prepare_optimizer_state as prepare_optimizer_state
from devrun.checkpoint.tensorfile import Like as Like

_load_checkpoint = _loader.load_any  # two names that MMCV's users import
_load_checkpoint_with_prefix = _loader.load_with_prefix

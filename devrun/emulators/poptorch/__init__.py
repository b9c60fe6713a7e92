"""A look-alike of PopTorch 3.4 on CPU torch, for machines without IPUs.

It speaks PopTorch's names, arity and refusals, so that programs written for the real
package run unmodified and their mistakes show without the hardware.

Emulated, with the results of plain PyTorch at the same global batch: `Options` with
freezing; `trainingModel` and `inferenceModel`; combined batches cut in the device's
order; gradient accumulation and replicas, by mean or sum; device iterations; output
modes; implicit and explicit losses; a forward that runs once and is replayed; the
device's own copies of weights, buffers, optimizer state and random numbers; constant
and variable hyper-parameters; SGD, Adam, AdamW, RMSprop and LAMB; attaching, saving and
loading; blocks, stages and phases with the checks of IPUs and pipelines; `DataLoader`,
`for_loop`, `cond` and the other helpers; the types in which inputs and results travel.

Not modelled: the memory of an IPU (only a labelled estimate, `poptorch.emulation`),
time and cycles, PopVision's profiles, PopART's graph, stochastic rounding, the random
sequences of the hardware, custom operations without a given stand-in. They raise an
error that says so, or return what their docstring says. Several processes are emulated
in loaders and options only.

`import poptorch.emulation` succeeds here and nowhere else: it sets the number of IPUs,
counts compilations and transfers, and tells this package from the real one.
"""

# ruff: noqa: N802 - PopTorch's names, in groups
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from poptorch import (
    _executor_files,
    _impl,
    _torch_ops,
    emulation,
    enums,
    ops,
    optim,
    options,
    poptorch_core,
    profiling,
)
from poptorch._accessor import AsynchronousDataAccessor
from poptorch._args_parser import ICustomArgParser, registerCustomArgParser
from poptorch._blocks import (
    Attribute,
    BeginBlock,
    Block,
    BlockFunction,
    NameScope,
    removeBlocks,
)
from poptorch._ctc import ctc_beam_search_decoder
from poptorch._dataloader import DataLoader
from poptorch._executor_files import shallow
from poptorch._flow_ops import MultiConv, cond, custom_op, for_loop
from poptorch._impl import (
    isRunningOnIpu,
    registerPostCompileHook,
    registerPreCompileHook,
)
from poptorch._logging import install, logger, setLogLevel
from poptorch._overlap import set_overlap_for_input, set_overlap_for_output
from poptorch._poplar_executor import PoplarExecutor
from poptorch._printing import module_repr
from poptorch.emulation import ipuHardwareIsAvailable, ipuHardwareVersion
from poptorch.enums import (
    AutoStage,
    CommGroupType,
    ConnectionType,
    DataLoaderMode,
    HalfFloatCastingBehavior,
    Liveness,
    MatMulSerializationMode,
    MeanReductionStrategy,
    MultiConvPlanType,
    OutputMode,
    OverlapMode,
    ReductionType,
    SharingStrategy,
    SyncPattern,
    VariableRetrievalMode,
)
from poptorch.ops import (
    CPU,
    dynamic_slice,
    dynamic_update,
    identity_loss,
    ipu_print_tensor,
    nop,
    recomputationCheckpoint,
    serializedMatMul,
    set_available_memory,
)
from poptorch.options import (
    Options,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    TensorLocationSettings,
)
from poptorch.poptorch_core import Error, RecoverableError, UnrecoverableError

__version__ = "3.4.0"

install()
_torch_ops.install()


def trainingModel(
    model: torch.nn.Module | PoplarExecutor,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """Wrap a model whose forward contains its loss. SGD at 0.01 without an optimizer.

    The model itself is wrapped in place until `destroy()`: reading its parameters
    fetches what the device trained.

    Raises:
        Error: Options of another type.
        AssertionError: An optimizer that the device does not have.
        RuntimeError: A model that is wrapped already.
    """
    user_model: Any = model._user_model if isinstance(model, PoplarExecutor) else model
    return PoplarExecutor(
        model=shallow(user_model),
        options=options,
        training=True,
        poptorch_version=__version__,
        optimizer=optimizer,
        user_model=user_model,
    )


def inferenceModel(
    model: torch.nn.Module | PoplarExecutor, options: Options | None = None
) -> PoplarExecutor:
    """Wrap a model for inference; any number of wrappers may share it.

    Raises:
        Error: Options of another type, or gradient accumulation.
    """
    if isinstance(model, PoplarExecutor):
        module = user_model = model._user_model  # its flags count when it is compiled
    else:
        module, user_model = shallow(model), model
    return PoplarExecutor(
        model=module,
        options=options,
        training=False,
        poptorch_version=__version__,
        user_model=user_model,
    )


def load(filename: str, edit_opts_fn: Callable[[Any], None] | None = None) -> Any:
    """The executor in a file that was saved with its model.

    Only open files that you trust: a pickled model can run code.

    Raises:
        Error: No such executable, another version, or one without its model.
    """
    content = _executor_files.read(filename, __version__)
    if content["model"] is None:
        raise Error(
            f"{filename} holds no model (export_model=False): wrap the model and use "
            "loadExecutable()"
        )
    options = content["options"].clone()
    # The file may come from a machine without a device.
    options.deleteIfExists("ipu_version")
    options.connectionType(ConnectionType.Always)
    if edit_opts_fn is not None:
        edit_opts_fn(options)
    model = content["model"]
    if content["training"]:
        executor = trainingModel(model, options, content["optimizer"])
    else:
        executor = inferenceModel(model, options)
    executor._load_content(content)
    return executor


__all__ = [
    "Attribute",
    "AsynchronousDataAccessor",
    "AutoStage",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "CPU",
    "CommGroupType",
    "ConnectionType",
    "DataLoader",
    "DataLoaderMode",
    "Error",
    "HalfFloatCastingBehavior",
    "ICustomArgParser",
    "Liveness",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "MultiConv",
    "MultiConvPlanType",
    "NameScope",
    "Options",
    "OutputMode",
    "OverlapMode",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "PoplarExecutor",
    "RecoverableError",
    "ReductionType",
    "SerialPhasedExecution",
    "ShardedExecution",
    "SharingStrategy",
    "Stage",
    "SyncPattern",
    "TensorLocationSettings",
    "UnrecoverableError",
    "VariableRetrievalMode",
    "cond",
    "ctc_beam_search_decoder",
    "custom_op",
    "dynamic_slice",
    "dynamic_update",
    "emulation",
    "enums",
    "for_loop",
    "identity_loss",
    "inferenceModel",
    "ipuHardwareIsAvailable",
    "ipuHardwareVersion",
    "ipu_print_tensor",
    "isRunningOnIpu",
    "load",
    "logger",
    "module_repr",
    "nop",
    "ops",
    "optim",
    "options",
    "poptorch_core",
    "profiling",
    "recomputationCheckpoint",
    "registerCustomArgParser",
    "registerPostCompileHook",
    "registerPreCompileHook",
    "removeBlocks",
    "serializedMatMul",
    "setLogLevel",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
    "trainingModel",
    "_impl",
]

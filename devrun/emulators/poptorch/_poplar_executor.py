"""`PoplarExecutor`: a model compiled once for a device, and called like a function."""

from __future__ import annotations

import random
import time
from typing import Any

import torch
from torch import nn

from poptorch import (
    _cache,
    _devices,
    _impl,
    _machine,
    _placement,
    _rules,
    _wrapped,
    enums,
)
from poptorch._args_parser import ArgsParser, ParsedArgs, compare, rebuilt
from poptorch._compile import Compiler, check_batch
from poptorch._device_optimizer import DeviceOptimizer, family
from poptorch._errors import Error
from poptorch._executor_files import ExecutorFiles, shallow
from poptorch._executor_report import ExecutorReport
from poptorch._executor_state import ExecutorState
from poptorch._logging import logger
from poptorch._optimizer_attributes import AttributeWarnings
from poptorch._options_base import check
from poptorch._printing import module_repr
from poptorch._refusals import collecting, refuse, tried
from poptorch._run import Runner, combined, device_rng
from poptorch._weights import DeviceWeights
from poptorch.options import Options

_OWN = frozenset({"_user_model", "_executable", "_options"})


class PoplarExecutor(ExecutorState, ExecutorReport, ExecutorFiles):
    """What `trainingModel` and `inferenceModel` return.

    The first call compiles: forward runs once, on tensors without values. Every later
    call replays what it did, so Python code in forward runs no more.
    """

    def __init__(
        self,
        model: nn.Module,
        options: Options | None,
        training: bool,
        poptorch_version: str,
        optimizer: torch.optim.Optimizer | None = None,
        user_model: Any = None,
    ) -> None:
        if options is not None and not isinstance(options, Options):
            raise Error(
                f"Invalid type: options must be poptorch.Options, not {type(options)}"
            )
        options = options if options is not None else Options()
        self._user_model = user_model if user_model is not None else model
        self._module = model
        self._training = training
        self._poptorch_version = poptorch_version
        self._options = _resolved(options, training)
        options._freeze()
        self._options._freeze()
        self._args_parser = ArgsParser(model)
        self._weights = DeviceWeights()
        self._warnings = AttributeWarnings(self._options.relax_optimizer_checks)
        self._seen_version: int | None = None
        self._dict_warned = False
        self._seed = self._options._values.get("random_seed", _any_seed())
        self._optimizer = None
        self._forget()
        if training:
            self._optimizer = optimizer or torch.optim.SGD(
                self._user_model.parameters(), lr=0.01
            )
            family(self._optimizer)
            self._warnings.learn(self._optimizer)
            _check_groups(self._optimizer)
            self._choose_reduction(self._optimizer)
            _wrapped.wrap(self._user_model, self)
            self._own_optimizer()
        self._seed_device()

    def _forget(self) -> None:
        self._executable = None
        self._compiled_modes: dict[str, bool] = {}
        self._runner = None
        self._device_optimizer = None
        _devices.give_back(self)
        self._is_attached = False
        self._compile_seconds = 0.0
        self._run_seconds = None
        self._compiled_values, self._constants = [], []
        self._sent_values = []
        self._optimizer_stale = True

    # -- the user's model --------------------------------------------------------------

    @property
    def model(self) -> Any:
        """The user's model."""
        return self._user_model

    @property
    def _model(self) -> Any:
        """What is compiled; in training with `.model` and `.optimizer`, as in 2.x."""
        if not self._training:
            return self._module
        return _impl.WithOptimizer(self._module, self._optimizer)

    @property
    def options(self) -> Options:
        """The options of this executor: a frozen copy of the user's."""
        return self._options  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:
            raise AttributeError(name)
        return getattr(self._user_model, name)

    def __repr__(self) -> str:
        return module_repr(self._user_model)

    def train(self, mode: bool = True) -> Any:
        """Set the flag of the user's model; what is compiled does not change."""
        return self._user_model.train(mode)

    def eval(self) -> Any:
        """As `train(False)`."""
        return self._user_model.eval()

    # -- compiling ---------------------------------------------------------------------

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """As a call, without running."""
        if self._executable is not None:
            logger.warning("Call to compile() ignored: model is already compiled")
            return
        with torch.inference_mode(False):
            self._compile(self._parsed(args, kwargs))

    def _parsed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ParsedArgs:
        parser = self._args_parser
        call = parser(args, kwargs)
        if not self._dict_warned and any(
            isinstance(value, dict) for _, value in call.named()
        ):
            self._dict_warned = True
            logger.warning("Dicts as inputs only have partial support")
        tensors = call.tensors()
        for tensor in tensors:
            if tensor.requires_grad:
                logger.warning(
                    "Input tensor has requires_grad=True set. This tensor will be "
                    "detached because backward pass via inputs is not supported."
                )
            _rules.check_input(tensor)
        return call.with_tensors(parser.prepared(t) for t in tensors)

    def _compile(self, call: ParsedArgs) -> None:
        """Capture and check; on failure the executor is as before."""
        _impl.run_pre_compile_hooks()
        self._log_options()
        started = time.perf_counter()
        if self._module is self._user_model:  # not copied when it was wrapped
            module = shallow(self._user_model)
        else:
            module = self._module
        compiler = Compiler(module, self._user_model, self._options, self._training)
        try:
            graph = compiler.compile(call, call.tensors())
            self._weights = compiler.weights
            if self._training:
                self._device_optimizer = DeviceOptimizer(
                    self._optimizer,
                    self._weights.trained(),
                    self._options.Training.auto_loss_scaling,
                )
                self._weights.optimizer_copies = _state_tensors(self._device_optimizer)
                self._remember_optimizer()
            self._executable = graph
            self._compiled_modes = {
                name: child.training for name, child in module.named_modules()
            }
            tried(
                _placement.check_memory,
                self,
                operation="memory",
                training=self._training,
            )
            _cache.look_up(graph, self._options, self._training)
            if self._options.connection_type == enums.ConnectionType.Always:
                self._take_device()
            elif self._options.connection_type == enums.ConnectionType.OnDemand:
                _devices.target(graph.ipus)
        except BaseException:
            self._forget()
            raise
        finally:
            _impl.run_post_compile_hooks()
        self._runner = Runner(
            graph, self._weights, self._options, self._device_optimizer
        )
        self._compile_seconds = time.perf_counter() - started
        _machine.counts["compile"] += 1
        logger.debug("Finished Poplar compilation (emulated: captured)")
        if self._is_attached:
            self._weights.upload()
            if self._training:
                self._apply_optimizer()

    # -- running -----------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run once over a combined batch.

        Raises:
            AssertionError: An offline device, or a batch that cannot be cut.
            Error: Arguments other than those the model was compiled for.
        """
        check(
            self._options.connection_type != enums.ConnectionType.Never,
            "Trying to run a model on an offline device (ConnectionType.Never)",
        )
        with torch.inference_mode(False):
            call = self._parsed(args, kwargs)
            if self._executable is None:
                self._compile(call)
            if not self._is_attached:
                self.attachToDevice()
            self._follow_training()
            return self._run(call)

    def _follow_training(self) -> None:
        """An inference model sees what another executor trained."""
        trainer = _wrapped.owner(self._user_model)
        if self._training or trainer is None or trainer is self:
            return
        trainer.copyWeightsToHostIfNeeded()
        version = trainer._weights.version
        if self._seen_version is not None and self._seen_version != version:
            self._weights.upload()
        self._seen_version = version

    def _run(self, call: ParsedArgs) -> Any:
        graph, runner = self._executable, self._runner
        if graph is None or runner is None:
            raise Error("Model has not been compiled or has been destroyed.")
        compare(graph.signature, call)
        tensors = call.tensors()
        check_batch(tensors, self._options)
        if self._options.synthetic_data:
            tensors = [torch.zeros_like(t) for t in tensors]
        self._weights.note_lost()
        if before := getattr(collecting(), "before", None):
            before(self._user_model, runner)
        if self._training:
            self._note_unsent()
        started = time.perf_counter()
        with device_rng(self._rng):
            results = runner.run(tensors)
        self._run_seconds = time.perf_counter() - started
        _machine.counts["run"] += 1
        if self._options.log_cycle_count:
            logger.debug(
                "Total number of IPU cycles: %d (emulated: operations)",
                self._operations(),
            )
        if self._training or graph.buffers_change:
            self._weights.changed()
            self._optimizer_stale = True
        if not graph.outputs:
            return graph.output
        outputs = (
            _final(combined(results, self._options, index))
            if not isinstance(graph.outputs[index], torch.Tensor)
            else graph.outputs[index]
            for index in range(len(graph.outputs))
        )
        return rebuilt(graph.output, outputs)

    def destroy(self) -> None:
        """Fetch what changed, forget the executable, and unwrap the user's model."""
        if self._executable is None:
            return
        if self._is_attached:
            self._leave()
        self._forget()
        self._weights = DeviceWeights()
        self._seen_version = None
        if self._training:
            _wrapped.unwrap(self._user_model)


def _any_seed() -> int:
    return random.SystemRandom().getrandbits(31)


def _state_tensors(optimizer: DeviceOptimizer) -> int:
    """How many tensors of a weight's size an optimizer keeps for each weight."""
    group = optimizer.groups[0]
    if optimizer.family == "SGD":
        return 1 if group.get("momentum") else 0
    return 2


def _resolved(options: Options, training: bool) -> Options:
    """The executor's own copy, with what depends on training decided."""
    mine = options.clone()
    if mine.defaultOutputMode():
        mode = enums.OutputMode.Final if training else enums.OutputMode.All
        mine.outputMode(mode)
    steps = mine.Training.gradient_accumulation
    if not training and steps != 1:
        text = (
            "You must set poptorch.Options().Training.gradientAccumulation to 1 or "
            "leave it as its default value (1) when running a "
            "poptorch.inferenceModel()."
        )
        if mine._execution_strategy.pipelined:
            text += (
                " Use poptorch.Options().deviceIterations to process a sufficient "
                "number of batches each run for pipelined execution instead."
            )
        refuse(Error(text), "loops", training)
        mine.Training.gradientAccumulation(1)
    return mine


def _check_groups(optimizer: Any) -> None:
    """Groups must agree on everything that is one setting of the device."""
    first = optimizer.param_groups[0]
    if first.get("amsgrad"):
        raise ValueError("Only non-amsgrad Adam/AdamW optimizers are supported.")
    shared = {"centered", *getattr(optimizer, "_extra", ())} - {"velocity_scaling"}
    for index, group in enumerate(optimizer.param_groups):
        for name in sorted(shared & first.keys()):
            if group.get(name) != first[name]:
                raise ValueError(
                    f"All parameter groups must have the same {name}: group 0 has "
                    f"{first[name]}, group {index} has {group.get(name)}"
                )


def _final(tensor: torch.Tensor) -> torch.Tensor:
    """A result that says that there is no backward from it."""
    tensor.backward = _no_backward  # type: ignore[method-assign]
    return tensor


def _no_backward(*args: Any, **kwargs: Any) -> None:
    raise Error(
        "backward() cannot be called explicitly on outputs of a PopTorch model. If "
        "you're using a trainingModel, the backwards pass is performed automatically "
        "when invoking the model. If you're using an inferenceModel, you should use a "
        "trainingModel instead."
    )

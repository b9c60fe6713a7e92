"""From a model and one call to an executable: capture, then the device's checks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from poptorch import _placement, _rules
from poptorch._args_parser import ParsedArgs, rebuilt, tensors_in
from poptorch._capture import Recorder
from poptorch._errors import Error
from poptorch._overlap import check_overlaps
from poptorch._refusals import NUMBERS, binding_of, collecting, refuse, tried
from poptorch._tape import Node, Slot, Tape, ancestors
from poptorch._torch_private import registered, validates_distributions, version
from poptorch._weights import DeviceWeights, Variable, named_variables, replica_groups

_SAME = frozenset(
    [
        *("detach", "clone", "contiguous", "float", "half", "to", "type", "type_as"),
        *("alias", "flatten", "reshape", "squeeze", "unsqueeze", "view", "view_as"),
    ]
)
"""Operations that give the numbers that they are given."""


@dataclass
class Executable:
    """A captured forward and what is needed to run it."""

    tape: Tape
    slots: int
    inputs: list[int]
    changed_inputs: list[int]
    output: Any
    """The returned structure, with tensors that have no values."""
    outputs: list[Any]
    loss: int | None
    constants: dict[int, torch.Tensor]
    signature: ParsedArgs
    buffers_change: bool
    ipus: int
    half: bool
    names: list[str] = field(default_factory=list)


def micro_batches(options: Any) -> int:
    """Into how many parts each input is cut."""
    shared = options.replication_factor // options.input_group_size
    return int(
        options.device_iterations * options.Training.gradient_accumulation * shared
    )


def check_batch(tensors: list[torch.Tensor], options: Any) -> None:
    """Refuse inputs whose first dimension cannot be cut evenly.

    Raises:
        AssertionError: Listing all factors.
    """
    parts = micro_batches(options)
    for tensor in tensors:
        size = tensor.shape[0] if tensor.dim() else 1
        if size % parts:
            raise AssertionError(
                f"Invalid batch dimension: In the input {tuple(tensor.shape)}, the "
                f"batch dimension ({size}) must be a multiple of "
                f"Options.deviceIterations({options.device_iterations}) * "
                f"Options.replicationFactor({options.replication_factor}) / "
                f"Options.inputReplicaGrouping({options.input_group_size}) * "
                "Options.Training.gradientAccumulation"
                f"({options.Training.gradient_accumulation}) = {parts} because it is "
                "used to calculate the batch size which will be executed on the device "
                "in any given iteration."
            )


def micro(tensor: torch.Tensor, parts: int, index: int) -> torch.Tensor:
    """One part of a combined input; a single value is its own only part."""
    if not tensor.dim():
        return tensor
    size = tensor.shape[0] // parts
    return tensor[index * size : (index + 1) * size]


class Compiler:
    """Compiles one model for one signature."""

    def __init__(self, model: nn.Module, user_model: Any, options: Any, training: bool):
        self.model = model
        self.user_model = user_model
        self.options = options
        self.training = training
        self.weights = DeviceWeights()

    def compile(self, call: ParsedArgs, tensors: list[torch.Tensor]) -> Executable:
        """Run forward once, without values.

        Raises:
            Error: What the device or its compiler refuses.
            AssertionError: A batch that cannot be cut, or a block without a stage.
        """
        parts = micro_batches(self.options)
        check_batch(tensors, self.options)
        placement = _placement.Placement(self.options._execution_strategy)
        recorder = Recorder(placement, self.training)
        variables = list(named_variables(self.model, self.user_model))
        replicas = self.options.replication_factor
        slots = [
            recorder.add_source(tensor, bool(replica_groups(tensor, name, replicas)))
            for name, tensor, _ in variables
        ]
        stand_ins = [
            recorder.add_input(_rules.on_device(micro(t, parts, 0))) for t in tensors
        ]
        versions = [version(t) for t in stand_ins]
        before = [version(recorder.stand_in(t)) for _, t, _ in variables]
        held = _Registered(self.model)
        given = call.with_tensors(stand_ins)
        try:
            plain = torch.inference_mode(False), torch.enable_grad()
            around = getattr(collecting(), "around", nullcontext)(self.model)
            with ExitStack() as stack:
                for each in (*plain, _unchecked_distributions(), around, recorder):
                    stack.enter_context(each)
                result = self.model(*given.args, **given.kwargs)
            held.check(recorder)
        finally:
            held.restore()
        written = [
            tensor
            for (_, tensor, buffer), old in zip(variables, before)
            if buffer and version(recorder.stand_in(tensor)) != old
        ]
        changed = bool(written) or _updates_statistics(recorder)
        for (name, tensor, buffer), slot in zip(variables, slots):
            self.weights.add(Variable(name, slot, tensor, replicas, buffer))
        ipus = self._tried(_placement.check_machine, placement, self.options, instead=1)
        self._tried(_placement.check_loops, placement, self.options, self.training)
        self._tried(self._check_buffers, written)
        loss = _final_loss(recorder, result) if self.training else None
        return self._executable(
            recorder, call, result, stand_ins, versions, loss, changed, ipus
        )

    def _tried(self, check: Any, *args: Any, instead: Any = None) -> Any:
        name = check.__name__.rpartition("check_")[2]
        return tried(
            check, *args, operation=name, training=self.training, instead=instead
        )

    def _executable(
        self,
        recorder: Recorder,
        call: ParsedArgs,
        result: Any,
        stand_ins: list[torch.Tensor],
        versions: list[int],
        loss: int | None,
        changed: bool,
        ipus: int,
    ) -> Executable:
        outputs = [_output(recorder, t) for t in tensors_in(result)]
        inputs = [recorder._slot(t) for t in stand_ins]
        returned = [slot.index for slot in outputs if isinstance(slot, Slot)]
        self._tried(check_overlaps, recorder.tape, inputs, returned, self.options)
        if loss is not None:
            _note_other_loss(recorder.tape.nodes, loss, returned)
        kinds = {t.dtype for t in recorder._alive if isinstance(t, torch.Tensor)}
        return Executable(
            tape=recorder.tape,
            slots=recorder.count,
            inputs=inputs,
            changed_inputs=[
                index
                for index, (tensor, old) in enumerate(zip(stand_ins, versions))
                if version(tensor) != old
            ],
            output=rebuilt(result, (_meta(t) for t in tensors_in(result))),
            outputs=outputs,
            loss=loss,
            constants=recorder.constants,
            signature=call.with_tensors(_meta(t) for t in call.tensors()),
            buffers_change=changed,
            ipus=ipus,
            half=torch.float16 in kinds,
        )

    def _check_buffers(self, written: list[torch.Tensor]) -> None:
        """Refuse replicas that would differ; each may have statistics of its own."""
        norms = {
            id(tensor)
            for module in self.model.modules()
            if _is_norm(module)
            for tensor in nn.Module.buffers(module, recurse=False)
        }
        changed = any(id(tensor) not in norms for tensor in written)
        options = self.options
        if changed and options.replication_factor > 1 and options.broadcast_buffers:
            raise Error(
                "PopTorch does not support broadcasting buffers. If your model is able "
                "to tolerate buffers becoming out of sync between replicas, you can "
                "disable buffer broadcasting using "
                "poptorch.Options.broadcastBuffers(False)."
            )
        known = {v.name for v in self.weights.variables if v.buffer}
        for name in options.updatable_named_buffers:
            if name not in known:
                raise Error(
                    f"Updatable named buffer {name} is no buffer of the model "
                    f"(buffers: {sorted(known)})"
                )


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Distributions check values, which a capture does not have."""
    kind = torch.distributions.Distribution
    before = validates_distributions()
    kind.set_default_validate_args(False)
    try:
        yield
    finally:
        kind.set_default_validate_args(before)


def _is_norm(module: nn.Module) -> bool:
    """A norm of torch's that keeps running statistics, and rebinds them."""
    return hasattr(module, "track_running_stats")


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    """Shape and type of a tensor without its values."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _output(recorder: Recorder, tensor: torch.Tensor) -> Any:
    """The slot of a returned tensor; what never was on the device, as it is."""
    slot = recorder.slot_of(tensor)
    if slot is not None:
        return Slot(slot)
    warnings.warn(
        f"Output expected to be on the IPU but is on {tensor.device.type}",
        stacklevel=2,
    )
    return tensor.detach()


def _updates_statistics(recorder: Recorder) -> bool:
    """Norms change their running statistics without torch counting it as a change."""
    for node in recorder.tape.nodes:
        if node.name in ("batch_norm", "instance_norm"):
            if any(leaf is True for leaf in node.leaves):
                variables = [
                    s for s in node.reads if recorder.kinds.get(s) == "variable"
                ]
                if len(variables) > 2:
                    return True
    return False


def _final_loss(recorder: Recorder, result: Any) -> int:
    """The one loss that no other loss is made from; where it is got past that there is
    none, the last number that forward returns, or tensor.

    Raises:
        Error: None, or several.
    """
    marked = list(dict.fromkeys(recorder.losses))
    used: set[int] = set()
    for slot in marked:
        used |= ancestors(recorder.tape.nodes, slot) & set(marked)
    final = [slot for slot in marked if slot not in used]
    live = _live(recorder, result)
    # what nobody reads is taken out of the graph before losses are looked for
    final = [slot for slot in final if slot in live] or final
    if not final:
        error = Error(
            "Couldn't find a loss in graph! A training model needs one: a loss "
            "function of torch, or poptorch.identity_loss."
        )
        given = [one for one in tensors_in(result) if one.requires_grad]
        numbers = [one for one in given if one.dim() == 0] or given
        final = [s for s in map(recorder.slot_of, numbers) if s is not None]
        if not final:
            raise error
        nodes = recorder.tape.nodes
        made = [n.stack for n in nodes if final[-1] in dict(n.writes).values()]
        refuse(error, "loss", recorder.training, made[-1] if made else None)
        return final[-1]
    if len(final) > 1:
        error = Error(
            "Multiple independent losses found in graph. Graph must have one final "
            "loss. Wrap final graph loss in poptorch.identity_loss."
        )
        for slot in final[:-1]:
            place = recorder.detour.places.get(slot, ())
            refuse(error, "loss", recorder.training, place)
    return final[-1]


def _live(recorder: Recorder, result: Any) -> set[int]:
    """The slots of what is returned or changes a variable, and of what they need."""
    nodes = recorder.tape.nodes
    written = (slot for node in nodes for _, slot in node.writes)
    kept = {slot for slot in written if slot in recorder.kinds}
    kept.update(s for s in map(recorder.slot_of, tensors_in(result)) if s is not None)
    return kept.union(*(ancestors(nodes, slot) for slot in kept))


def _note_other_loss(nodes: Sequence[Node], loss: int, returned: list[int]) -> None:
    """Write down, where somebody collects, that the marked loss is not returned, but
    what is made of it: the backward pass begins at what is marked."""
    if collecting() is None:
        return
    same, made = {loss}, []
    for node in nodes:
        if same.intersection(node.reads):
            written = {slot for _, slot in node.writes}
            if node.name in _SAME:
                same |= written
            else:
                made.append((node, written))
    of_loss = [slot for slot in returned if loss in ancestors(nodes, slot)]
    wanted = set(of_loss).union(*(ancestors(nodes, slot) for slot in of_loss))
    wanted = set() if same.intersection(returned) else wanted
    for node, written in made:
        if written & (wanted | same):  # in place it is the same tensor
            error = Error(
                "loss: only what a loss function gives is trained on, or identity_loss "
                "marks, and not what is computed of it"
            )
            refuse(error, NUMBERS, True, node.stack)
            return


class _Registered:
    """Parameters, buffers and modules by place, to see what forward changes."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.places = []
        self.groups: list[tuple[dict[str, Any], set[str]]] = []
        for kind, full, module, group in _groups(model):
            self.groups.append((group, set(group)))
            for name, tensor in group.items():
                self.places.append((kind, full + name, module, group, name, tensor))

    def check(self, recorder: Recorder) -> None:
        """Refuse another tensor in the place of one."""
        for kind, full, module, group, name, tensor in self.places:
            if name not in group:
                text = (
                    f"{kind} {full} is removed from the model when calling the "
                    "forward method."
                )
            elif group[name] is tensor or _is_norm(module):
                continue
            else:
                text = (
                    f"{kind} {full} is reassigned within the model when calling the "
                    "forward method. This is not supported. Consider using "
                    f"self.{full}.copy_(src) to copy data from a source tensor, where "
                    "src is the name of the source tensor."
                )
            place = binding_of(module, name)
            refuse(Error(text), "assignment", recorder.training, place)

        known = {id(group): names for group, names in self.groups}
        for kind, full, module, group in _groups(self.model):
            for name in group.keys() - known.get(id(group), group.keys()):
                text = f"{kind} {full}{name} is added when calling the forward method."
                place = binding_of(module, name)
                refuse(Error(text), "assignment", recorder.training, place)

    def restore(self) -> None:
        """Put everything back where it was; what is new has no values."""
        for group, names in self.groups:
            group.update(dict.fromkeys(group.keys() - names))
        for _, _, _, group, name, tensor in self.places:
            group[name] = tensor


def _groups(model: nn.Module) -> Iterator[tuple[str, str, nn.Module, dict[str, Any]]]:
    """What kind it is, the path before its names, the module, and what it has."""
    for prefix, module in model.named_modules():
        for kind, group in registered(module).items():
            yield kind, f"{prefix}." if prefix else "", module, group

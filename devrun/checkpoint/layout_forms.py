"""How one layout keeps the numbers of a tensor that another has in another order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Form:
    """The two directions between a tensor of theirs and ours.

    Either raises RuntimeError or IndexError for a shape that is not of the form.
    """

    name: str
    ours: Callable[[Tensor], Tensor]
    theirs: Callable[[Tensor], Tensor]

    def shape(self, theirs: Shape) -> Shape | None:
        """That of ours for one of theirs; None if theirs cannot have it."""
        if not self.name:
            return theirs
        try:
            return tuple(self.ours(torch.empty(theirs, device="meta")).shape)
        except (RuntimeError, IndexError):
            return None

    def written(self, ours: Tensor) -> Tensor:
        """Theirs; ours as it is where it is of another shape than the form has."""
        try:
            return self.theirs(ours).contiguous()
        except (RuntimeError, IndexError):
            return ours.contiguous()


def _window(size: int) -> Form:
    """A convolution whose window is the whole image, ours a linear layer."""
    return Form(
        f"{size}x{size}",
        lambda theirs: _cut(theirs, size),
        lambda ours: ours.unflatten(-1, (-1, size, size)),
    )


def _cut(theirs: Tensor, size: int) -> Tensor:
    if theirs.shape[-2:] != (size, size):
        raise IndexError(f"{tuple(theirs.shape)} does not end in {size} x {size}")
    return theirs.flatten(-3)


def _swapped(sizes: tuple[int, int, int]) -> Callable[[Tensor], Tensor]:
    """The last dimension, split in three, with the first and the last exchanged."""
    return lambda given: given.unflatten(-1, sizes).transpose(-3, -1).flatten(-3)


SAME = Form("", lambda theirs: theirs, lambda ours: ours)
FORMS = {
    form.name: form
    for form in (
        SAME,
        Form("turned", Tensor.t, Tensor.t),
        _window(1),
        _window(7),
        # MMCls merges the patches of Swin by `unfold`: channel, row, column; the
        # others by column, row, channel
        Form("unfolded", _swapped((-1, 2, 2)), _swapped((2, 2, -1))),
    )
}

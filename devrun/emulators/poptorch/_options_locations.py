"""Where tensors live: `TensorLocationSettings` and the section that holds four."""

# ruff: noqa: N802 - PopTorch's names
from __future__ import annotations

from poptorch._options_base import OptionsDict, check, check_bool, check_int


class TensorLocationSettings(OptionsDict):
    """Storage of one kind of tensor. Recorded: the emulator has one memory."""

    def __init__(self) -> None:
        super().__init__()

    def minElementsForOffChip(self, count: int) -> TensorLocationSettings:
        """Smallest tensor that may leave the chip."""
        return self.createOrSet(
            minElementsForOffChip=check_int(count, "minElementsForOffChip", 0)
        )

    def minElementsForReplicatedTensorSharding(
        self, count: int
    ) -> TensorLocationSettings:
        """Smallest tensor that is sharded over replicas."""
        name = "minElementsForReplicatedTensorSharding"
        return self.createOrSet(**{name: check_int(count, name, 0)})

    def useOnChipStorage(self, use: bool | None = True) -> TensorLocationSettings:
        """On chip, in streaming memory, or (None) as the backend likes."""
        if use is None:
            self.deleteIfExists("onChip")
            return self
        return self.createOrSet(onChip=check_bool(use, "useOnChipStorage"))

    def useReplicatedTensorSharding(self, use: bool = True) -> TensorLocationSettings:
        """Cut the tensor over the replicas."""
        return self.createOrSet(
            useReplicatedTensorSharding=check_bool(use, "useReplicatedTensorSharding")
        )

    def useIOTilesToLoad(self, use: bool = True) -> TensorLocationSettings:
        """Load through the tiles set aside for I/O."""
        return self.createOrSet(useIOTilesToLoad=check_bool(use, "useIOTilesToLoad"))

    def useIOTilesToStore(self, use: bool = True) -> TensorLocationSettings:
        """Store through the tiles set aside for I/O."""
        return self.createOrSet(useIOTilesToStore=check_bool(use, "useIOTilesToStore"))


class _TensorLocationOptions(OptionsDict):
    """Locations of activations, weights, optimizer state and accumulators."""

    def __init__(self) -> None:
        super().__init__()

    def numIOTiles(self, num_tiles: int) -> _TensorLocationOptions:
        """Tiles set aside for I/O: an even number from 32 to 192."""
        self.checkIsFrozen()
        check(
            isinstance(num_tiles, int)
            and 32 <= num_tiles <= 192
            and num_tiles % 2 == 0,
            "numIOTiles must be an even number between 32 and 192.",
        )
        return self.createOrSet(numIOTiles=num_tiles)

    def _place(
        self, kind: str, location: TensorLocationSettings
    ) -> _TensorLocationOptions:
        self.checkIsFrozen()
        check(
            isinstance(location, TensorLocationSettings),
            f"expected TensorLocationSettings, not {type(location).__name__}",
        )
        return self.createOrSet(**{f"location_{kind}": location.toDict()})

    def setActivationLocation(
        self, location: TensorLocationSettings
    ) -> _TensorLocationOptions:
        """Where activations live."""
        return self._place("activation", location)

    def setWeightLocation(
        self, location: TensorLocationSettings
    ) -> _TensorLocationOptions:
        """Where weights live."""
        return self._place("weight", location)

    def setOptimizerLocation(
        self, location: TensorLocationSettings
    ) -> _TensorLocationOptions:
        """Where optimizer state lives."""
        return self._place("optimizer", location)

    def setAccumulatorLocation(
        self, location: TensorLocationSettings
    ) -> _TensorLocationOptions:
        """Where gradient accumulators live."""
        return self._place("accumulator", location)

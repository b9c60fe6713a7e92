"""How many samples make an update, and whether the pipeline and the IPUs allow it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import IterableDataset

from devrun.data.build import loader_options
from devrun.data.spec import BATCHES
from devrun.devices.ipu.options import MOST_IPUS, IPUSettings
from devrun.devices.ipu.probes.options import key_of, settings_of
from devrun.probes.finding import Finding
from devrun.probes.keys import given, line_of, pasted
from devrun.probes.probe import Probe, Training

_MICRO = (
    *(f"data.train_dataloader.{name}" for name in BATCHES),
    *(f"data.{name}" for name in reversed(BATCHES)),
)
_ACCUMULATION = "optimizer_config.cumulative_iters"


class Sizes:
    """The factors of one update, as the config has them and before any is reduced."""

    def __init__(self, cfg: Any, settings: IPUSettings) -> None:
        training = settings.training
        key = "Training.gradientAccumulation"
        own = training.get(key)
        update = cfg.get("optimizer_config") or {}
        options = loader_options(cfg["data"], "train")
        self.micro = options.get("samples_per_gpu") or 1
        self.micro_key = given(cfg, *_MICRO)
        self.accumulation = own or update.get("cumulative_iters") or 1
        self.accumulation_key = _ACCUMULATION if own is None else key_of(cfg, key)
        self.replicas = settings.replicas or training.get("replicationFactor") or 1
        self.iterations = training.get("deviceIterations") or 1
        edges = settings.train_split_edges
        places = [edge.get("ipu_id") for edge in edges if isinstance(edge, Mapping)]
        numbers = [place for place in places if isinstance(place, int)]
        self.ipus = max(settings.num_ipus or 1, *(n + 1 for n in numbers), 1)
        turns = sum(one != next_ for one, next_ in zip([0, *numbers], numbers))
        self.stages = max(self.ipus, 1 + turns)
        if training.get("executionStrategy") == "ShardedExecution":
            self.stages = 1
        self.rounds = bool(training.get("autoRoundNumIPUs"))
        split = (key_of(cfg, name) for name in ("train_split_edges", "num_ipus"))
        self.lines = {
            "data": line_of(cfg, "data.train"),
            "micro": line_of(cfg, self.micro_key, "data"),
            "accumulation": line_of(cfg, self.accumulation_key, *split),
            "split": line_of(cfg, key_of(cfg, "train_split_edges")),
            "IPUs": line_of(
                cfg, key_of(cfg, "replicas"), key_of(cfg, "num_ipus"), "ipu", "device"
            ),
        }
        """Those of the user's config, before anything in it is changed."""

    @property
    def needed(self) -> int:
        """The least accumulation that fills the pipeline."""
        return 2 * self.stages - 1

    @property
    def samples(self) -> int:
        return int(self.micro * self.accumulation * self.replicas * self.iterations)

    def __str__(self) -> str:
        factors = {
            "micro-batch": self.micro,
            "accumulation": self.accumulation,
            "replicas": self.replicas,
            "device iterations": self.iterations,
        }
        shown = [f"{n} {size}" for n, size in factors.items() if size != 1]
        return f"{' x '.join(shown) or 'micro-batch 1'} = {self.samples} samples"


class Arithmetic(Probe):
    """Looks at the sizes of the config itself, of which the rehearsal has smaller."""

    _sizes: Sizes | None = None
    _small: dict[str, Any] | None = None

    def before(self, cfg: Any) -> None:
        self._changes: dict[str, Any] = {}
        settings = settings_of(cfg, self.request)
        if settings is None or not isinstance(cfg.get("data"), Mapping):
            return
        sizes = self._sizes = Sizes(cfg, settings)
        self.note.fact("samples of an update", str(sizes))
        if sizes.stages > 1 and sizes.accumulation < sizes.needed:
            self._found(
                "accumulation",
                f"accumulation {sizes.accumulation} leaves stages of a pipeline of "
                f"{sizes.stages} without work: it needs {sizes.needed} (2 x "
                f"{sizes.stages} - 1) or more",
                {sizes.accumulation_key: sizes.needed},
                sizes.lines["accumulation"],
            )
            sizes.accumulation = sizes.needed
        self._count_ipus(cfg, sizes)

    def least(self, cfg: Any) -> dict[str, int]:
        return {} if self._sizes is None else {_ACCUMULATION: self._sizes.needed}

    def changes(self, cfg: Any) -> dict[str, Any]:
        return self._changes

    def built(self, training: Training) -> None:
        """A data set that one update would use up."""
        sizes = self._sizes
        data = getattr(training.loaders[0], "dataset", None)
        if sizes is None or self._small is not None or data is None:
            return
        if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
            return
        if (count := len(data)) < sizes.samples:
            self._small = _fewer(sizes, count)
            self._found(
                "data set",
                f"it has {count} samples, fewer than one update needs: {sizes}",
                self._small,
                sizes.lines["data"],
            )

    def work_around(self, error: Exception, cfg: Any) -> dict[str, Any] | None:
        """The same, where it is too small for the reduced sizes too."""
        if not self._small or getattr(error, "key", None) != "samples_per_gpu":
            return None
        small, self._small = self._small, {}
        return small

    def _count_ipus(self, cfg: Any, sizes: Sizes) -> None:
        used = sizes.ipus * sizes.replicas
        factors = f"{sizes.ipus} of a replica x {sizes.replicas} replicas"
        site = sizes.lines["IPUs"]
        if used > MOST_IPUS:
            fewer = 1 << (max(MOST_IPUS // sizes.ipus, 1)).bit_length() - 1
            self._found(
                "IPUs",
                f"{used} ({factors}) are more than the {MOST_IPUS} that one process "
                "can have",
                {key_of(cfg, "replicas"): fewer},
                site,
            )
            sizes.replicas = fewer
        elif used & (used - 1) and not sizes.rounds:
            self._found(
                "IPUs",
                f"{used} ({factors}) are no power of two, in which they are reserved",
                {key_of(cfg, "autoRoundNumIPUs"): True},
                site,
            )

    def _found(
        self, what: str, why: str, fix: dict[str, Any], site: str | None
    ) -> None:
        self._changes.update(fix)
        row = ("batch arithmetic", what, why, pasted(fix), site)
        self.note.found(Finding("breaks", *row, fix=fix))


def _fewer(sizes: Sizes, count: int) -> dict[str, Any]:
    """A micro-batch and accumulation with which `count` samples make an update."""
    least = sizes.needed if sizes.stages > 1 else 1
    micro = count // (least * sizes.replicas * sizes.iterations)
    fix = {sizes.micro_key: min(max(micro, 1), sizes.micro)}
    return {**fix, sizes.accumulation_key: least} if least < sizes.accumulation else fix

"""The links that vendors publish, each with where it was read.

Rates are peaks of the wire, one way, of one device.
"""

from __future__ import annotations

from devrun.rehearsal.scaling.links import Fabric, Link

_HLS = "docs.habana.ai, Network Configuration: 21 ports of a box of 8, 3 out of it"
_NCCL = "latencies: hwLat of NCCL's src/graph/tuning.cc, ring, simple protocol"
_NVLINK, _NDR = Link(3.4e-6, 450e9), Link(14e-6, 50e9)
_ASSUMED = "latency assumed, none is published"
_PODS = (
    "10 IPU-Links of a GC200, 320 GB/s both ways (thecharlieblake.co.uk/ipus); "
    f"{_ASSUMED}"
)
FABRICS = {
    one.name: one
    for one in (
        Fabric(
            "nvlink4",
            _NVLINK,
            most=8,
            trees=True,
            source=f"18 x 25 GB/s, H200 SXM; {_NCCL}",
        ),
        Fabric(
            "infiniband-400g",
            _NDR,
            trees=True,
            source=f"400 Gbit/s a NIC; {_NCCL}",
        ),
        Fabric(
            "dgx-h100",
            _NVLINK,
            box=8,
            across=_NDR,
            trees=True,
            source=f"nvlink4 in boxes of 8, infiniband-400g for each GPU; {_NCCL}",
        ),
        Fabric(
            "gaudi2",
            Link(10e-6, 262.5e9),
            box=8,
            across=Link(15e-6, 37.5e9),
            source=f"{_HLS}, of 100 GbE each; {_ASSUMED}",
        ),
        Fabric(
            "gaudi3",
            Link(10e-6, 525e9),
            box=8,
            across=Link(15e-6, 75e9),
            source=f"{_HLS}, of 200 GbE each; {_ASSUMED}",
        ),
        *(
            Fabric(
                f"ipu-pod{devices}",
                Link(2e-6, 160e9),
                most=devices,
                overlaps=(),
                strategies=("ddp",),
                source=_PODS,
            )
            for devices in (16, 64)
        ),
    )
}
"""What is published, by name. The rate of the links between racks of IPU-POD64 could
not be confirmed, so no larger IPU system is here."""
USUAL = "dgx-h100"
"""Where nothing was given and nothing measured."""

"""Every callable that a dotted path can reach, and what the rule says of it.

Run as a program: the modules of whole packages are imported, which is not for the
process of the tests. Prints one JSON object a package.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import inspect
import io
import json
import pkgutil
import sys
import warnings
from importlib import import_module

SKIPPED = ("__main__", "conftest", ".tests.", ".testing.", "setup", "_pytesttester")


def registries():
    from devrun import registry
    from devrun.data.build import SAMPLERS
    from devrun.data.datasets.huggingface import PROCESSORS

    found = [r for r in vars(registry).values() if isinstance(r, registry.Registry)]
    return [r for r in [*found, PROCESSORS, SAMPLERS] if r.expected() is not object]


def modules_of(package, whole):
    """The modules of `package` that import here; those not loaded yet if `whole`."""
    failed = []
    names = {n for n in list(sys.modules) if n.split(".")[0] == package}
    if whole:
        top = import_module(package)
        for info in pkgutil.walk_packages(
            getattr(top, "__path__", []), f"{package}.", onerror=failed.append
        ):
            if not any(part in info.name for part in SKIPPED):
                names.add(info.name)
    modules = []
    for name in sorted(names):
        try:
            modules.append(import_module(name))
        except BaseException as error:  # noqa: BLE001 - whatever a module does
            failed.append(f"{name}: {type(error).__name__}")
    return modules, failed


def paths_of(modules):
    """(path, what is there): names in modules, in their classes and in modules used."""
    for module in modules:
        for name in dir(module):
            value = get(module, name)
            path = f"{module.__name__}.{name}"
            yield path, value
            if inspect.isclass(value) and value.__module__ == module.__name__:
                for inner in vars(value):
                    yield f"{path}.{inner}", get(value, inner)
            elif inspect.ismodule(value):
                top = value.__name__.split(".")[0]
                if top != module.__name__.split(".")[0]:  # os, functools, numpy, ...
                    for inner in dir(value):
                        yield f"{path}.{inner}", get(value, inner)


def get(owner, name):
    try:
        return getattr(owner, name)
    except BaseException:  # noqa: BLE001 - properties and lazy names
        return None


def scan(package, whole):
    from devrun import trust
    from devrun.errors import DevrunError

    modules, failed = modules_of(package, whole)
    seen, accepted, callables = {}, {}, 0
    every = registries()
    for path, value in paths_of(modules):
        if not callable(value) or not all(p.isidentifier() for p in path.split(".")):
            continue
        callables += 1
        try:
            found = trust.import_path(path)
        except DevrunError:
            continue
        for registry in every:
            known = (id(found.target), registry.name)
            if known not in seen:
                try:
                    trust.accepted(found, registry.expected(), registry.name)
                    seen[known] = True
                except DevrunError:
                    seen[known] = False
            if seen[known]:
                accepted.setdefault(found.target, (path, set()))[1].add(registry.name)
    return {
        "package": package,
        "modules": len(modules),
        "failed": failed,
        "callables": callables,
        "accepted": [row(t, p, sorted(k)) for t, (p, k) in accepted.items()],
    }


def row(target, path, kinds):
    bases = [f"{b.__module__}.{b.__qualname__}" for b in getattr(target, "__mro__", ())]
    return {
        "path": path,
        "kinds": kinds,
        "class": inspect.isclass(target),
        "home": f"{target.__module__}.{target.__qualname__}",
        "bases": bases,
        "listed": listed(target),
    }


def listed(target):
    """Whether the packages list the function as one that makes a model."""
    name, top = getattr(target, "__name__", ""), target.__module__.split(".")[0]
    models = sys.modules.get(f"{top}.models")
    if top == "timm":
        return name in models.list_models() + models.list_modules()
    if top == "torchvision":
        every = models.list_models()
        return any(models.get_model_builder(each) is target for each in every)
    return False


def let_torchvision_load():
    """Where it is, but not its operators, as beside a torch it was not built for."""
    import torch

    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor a, Tensor b, float c) -> Tensor")
        KEPT.append(library)


KEPT = []
"""What would take its names along when it is freed."""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("packages", nargs="+")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    let_torchvision_load()
    for package in args.packages:
        with contextlib.redirect_stdout(io.StringIO()):
            found = scan(package, args.whole)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

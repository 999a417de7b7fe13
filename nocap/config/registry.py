"""What there is to choose: a group's options are the files of its folder, nocap's own and those from outside.

A group is a folder of `nocap/options`, its interface the folder's `__init__`. Every dataclass of a file that extends the interface and has
a `kind` of its own is an option, which the `kind` of a yaml names.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from types import ModuleType

from nocap import outside
from nocap.config.option import Option
from nocap.config.paths import conf_dir
from nocap.config.trainer import Trainer
from nocap.options import __path__ as _SHELF

PACKAGE = "nocap.options"


@cache
def groups() -> tuple[str, ...]:
    """The names of the groups, which are those of Hydra's folders."""
    return tuple(module.name for module in pkgutil.iter_modules(_SHELF) if module.ispkg)


def yamls(group: str) -> list[str]:
    """The names of a group's yamls, or of the experiments: what Hydra can choose."""
    places = [folder / outside.place(group) for folder in (conf_dir(), *outside.folders())]
    return sorted(path.relative_to(place).with_suffix("").as_posix() for place in places for path in place.rglob("*.yaml"))


@cache
def interface(group: str) -> type[Option]:
    """The class that every option of the group extends: the one that the group's `__init__` defines directly on `Option`."""
    module = importlib.import_module(f"{PACKAGE}.{group}")
    (found,) = [cls for cls in _classes(module) if cls.__bases__ == (Option,)]
    return found


def options(group: str) -> dict[str, type[Option]]:
    """Kind → option, nocap's own first.

    Errors:
        ValueError: a file from outside cannot be imported, holds no option, or one whose kind is taken.
    """
    return options_of(group, outside.state())


@cache
def options_of(group: str, state: str) -> dict[str, type[Option]]:
    found: dict[str, type[Option]] = {}
    path = importlib.import_module(f"{PACKAGE}.{group}").__path__
    for module in pkgutil.iter_modules(path):
        for cls in _of(importlib.import_module(f"{PACKAGE}.{group}.{module.name}"), group):
            assert _kind(cls) not in found, f"{cls} must have a kind of its own"
            found[_kind(cls)] = cls
    for file in outside.files():
        if file.group == group:
            own = list(_of(file.load(), group))
            if not own:
                raise ValueError(f"{file.path} must define an option: a dataclass that extends {interface(group).__name__}")
            for cls in own:
                _check(cls, file, found)
                found[_kind(cls)] = cls
    return found


def keys_that_count(what: str) -> list[str]:
    """`group.key` of every key that is declared to count for `what`, of all options and the trainer."""
    from nocap.config.run import Run

    found: list[str] = []
    for f in fields(Run):
        kinds = [*options(f.name).values()] if f.name in groups() else [Trainer] if f.name == "trainer" else []
        keys = dict.fromkeys(key.name for kind in kinds for key in fields(kind) if f.metadata.get(what) or key.metadata.get(what))
        found += [f"{f.name}.{key}" for key in keys]
    return found


def _check(cls: type[Option], file: outside.File, others: dict[str, type[Option]]) -> None:
    if "__dataclass_fields__" not in vars(cls):
        raise ValueError(f"{file.path}: {cls.__name__} must be decorated as a dataclass: its keys would not be seen")
    base = next(parent for parent in cls.__mro__ if parent.__bases__ == (Option,))
    for name, method in vars(base).items():
        if inspect.isfunction(method) and not name.startswith("_") and (own := inspect.getattr_static(cls, name)) is not method:
            _check_signature(file, f"{cls.__name__}.{name}", own, method)
    taken = others.get(_kind(cls))
    if not _kind(cls) or taken is not None:
        whose = f", which is {taken.__module__}'s" if taken is not None else ""
        raise ValueError(
            f"{file.path}: {cls.__name__} must have a kind of its own, as in kind: str = {file.name!r}, got {_kind(cls)!r}{whose}"
        )


def _check_signature(file: outside.File, name: str, own: object, base: Callable[..., object]) -> None:
    """A method must take what the interface's is called with."""
    if not inspect.isfunction(own):
        return
    asked = inspect.signature(base).parameters.values()
    positional = [p.name for p in asked if p.kind is p.POSITIONAL_OR_KEYWORD]
    named = {p.name: p.name for p in asked if p.kind is p.KEYWORD_ONLY}
    try:
        inspect.signature(own).bind(*positional, **named)
    except TypeError:
        wanted = ", ".join([*positional, *(["*"] if named else []), *named])
        raise ValueError(f"{file.path}: {name}{inspect.signature(own)} must take ({wanted})") from None


def _of(module: ModuleType, group: str) -> Iterator[type[Option]]:
    yield from (cls for cls in _classes(module) if issubclass(cls, interface(group)) and not cls.__name__.startswith("_"))


def _classes(module: ModuleType) -> Iterator[type[Option]]:
    """The options that the module itself defines, in its order."""
    for cls in vars(module).values():
        if inspect.isclass(cls) and issubclass(cls, Option) and cls.__module__ == module.__name__:
            yield cls


def _kind(cls: type[Option]) -> str:
    default = cls.__dataclass_fields__["kind"].default
    return default if isinstance(default, str) else ""

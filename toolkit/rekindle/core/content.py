"""Digests of content, for finding stored things again by content rather than by a name, a path or a repr."""

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from dis import get_instructions
from enum import Enum
from functools import cache, cached_property, partial
from importlib import import_module, metadata
from importlib.util import find_spec, resolve_name
from itertools import chain
from pathlib import Path, PurePath
from site import getsitepackages, getusersitepackages
from sysconfig import get_paths
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any, Final

import numpy as np

SHORT: Final = 12
"""Digits of a digest shown to users."""


class Indigestible(TypeError):
    """Error for a value with unreadable content, like an open file."""


def content_digest(value: Any) -> str:
    """Return the SHA-256 of a value's content, as 64 hexadecimal digits, the same in every process.

    Arrays count with all numbers. Functions count with code, constants, defaults, closures, attributes, and the globals
    and imported modules in use; functions of installed packages count with the version of the package. Lists equal
    tuples, sets are unordered, and mappings are ordered.

    Raises:
        Indigestible: the content of the value, or of a part, is unreadable.
    """
    return _Digester().digest(value)


def short_digest(value: Any) -> str:
    """Return the first digits of `content_digest`, for users to tell values apart; "?" if there is none."""
    try:
        return content_digest(value)[:SHORT]
    except Indigestible:
        return "?"


class _Digester:
    """Digester of one value; functions and containers in the value may refer to each other."""

    def __init__(self) -> None:
        self._around: list[int] = []
        self._memory: dict[int, tuple[Any, str]] = {}  # of functions and classes, which refer to each other often

    def digest(self, value: Any) -> str:
        """Return the digest of a value."""
        if id(value) in self._memory:
            return self._memory[id(value)][1]
        if id(value) in self._around:
            return f"within {len(self._around) - self._around.index(id(value))}"
        whole = hashlib.sha256()
        self._around.append(id(value))
        try:
            for part in self._parts(value):
                whole.update(b"%d " % len(part))
                whole.update(part)
        except RecursionError:
            raise Indigestible("the value is nested too deeply") from None
        finally:
            self._around.pop()
        digest = whole.hexdigest()
        if isinstance(value, FunctionType | type):
            self._memory[id(value)] = value, digest
        return digest

    def _parts(self, value: Any) -> Iterator[bytes]:
        """Yield the kind and the content of a value as bytes."""
        match value:
            case None | bool() | int() | float() | complex() | str() | Enum() | slice() | range():
                yield from (type(value).__qualname__.encode(), repr(value).encode())
            case _ if type(value).__module__ in _REPRESENTED:
                yield from (type(value).__qualname__.encode(), repr(value).encode())
            case bytes() | bytearray() | memoryview():
                yield from (b"bytes", bytes(value))
            case PurePath():
                yield from (b"path", str(value).encode())
            case np.dtype():
                yield from (b"dtype", value.str.encode(), value.name.encode())
            case Mapping():
                yield b"mapping"
                yield from ((self.digest(key) + self.digest(each)).encode() for key, each in value.items())
            case Set():
                yield from (b"set", *sorted(self.digest(each).encode() for each in value))
            case list() | tuple() if all(type(each) in _PLAIN for each in value):
                yield from (b"plain", repr(list(value)).encode())
            case list() | tuple():
                yield from (b"sequence", *(self.digest(each).encode() for each in value))
            case np.ndarray() | np.generic():
                yield from self._array(np.asarray(value))
            case type() | ModuleType() | BuiltinFunctionType():
                yield from self._module_or_class(value)
            case CodeType():
                yield from self._code(value)
            case FunctionType():
                yield from self._function(value)
            case property():
                yield from (b"property", self.digest([value.fget, value.fset, value.fdel]).encode())
            case cached_property():
                yield from (b"property", self.digest(value.func).encode())
            case MemberDescriptorType() | GetSetDescriptorType():
                yield from (b"slot", value.__name__.encode())
            case MethodType():
                yield from (b"method", self.digest(value.__func__).encode(), self.digest(value.__self__).encode())
            case partial():
                yield b"partial"
                yield from (self.digest(each).encode() for each in (value.func, value.args, value.keywords))
            case _:
                yield from self._object(value)

    def _array(self, array: np.ndarray[Any, Any]) -> Iterator[bytes]:
        yield from (b"array", array.dtype.name.encode(), str(array.shape).encode())
        if array.dtype.hasobject:
            yield from (self.digest(each).encode() for each in array.ravel().tolist())
        else:
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data.tobytes()

    def _module_or_class(self, value: Any) -> Iterator[bytes]:
        """Yield a module, a class or a native function: by name if installed, and else by content."""
        yield from (type(value).__qualname__.encode(), getattr(value, "__qualname__", value.__name__).encode())
        if (version := _installed(value)) is not None:
            yield version.encode()
        elif isinstance(value, type):
            content = {name: each for name, each in vars(value).items() if not name.startswith(_OF_CLASSES)}
            yield from (self.digest(content).encode(), *(self.digest(base).encode() for base in value.__bases__))

    def _code(self, code: CodeType) -> Iterator[bytes]:
        yield from (b"code", code.co_code, str((code.co_names, code.co_varnames, code.co_flags)).encode())
        yield from (self.digest(each).encode() for each in code.co_consts)

    def _function(self, function: FunctionType) -> Iterator[bytes]:
        if (version := _installed(function)) is not None:
            yield from (b"function", function.__qualname__.encode(), version.encode())
            return
        cells = [_content_of(cell) for cell in function.__closure__ or ()]
        codes = list(_all_codes(function.__code__))
        names = sorted({name for code in codes for name in code.co_names})
        used = {name: function.__globals__[name] for name in names if name in function.__globals__}
        inner = {f"import {name}": _imported(name, function) for code in codes for name in _imports_in(code)}
        for name, module in [*used.items(), *inner.items()]:  # a helper module counts with what may be read of it
            if isinstance(module, ModuleType) and _installed(module) is None:
                used |= {f"{name}.{each}": vars(module)[each] for each in names if each in vars(module)}
        content = (function.__code__, function.__defaults__, function.__kwdefaults__ or {}, cells, used, inner)
        own = {name: each for name, each in vars(function).items() if name != "__wrapped__"}
        yield from (b"function", *(self.digest(each).encode() for each in (*content, own)))

    def _object(self, value: Any) -> Iterator[bytes]:
        """Yield an object of another class: attributes, numbers, or a wrapped function."""
        kind = type(value)
        if _installed(kind) is None:
            state = {name: getattr(value, name) for name in _attributes(value) if hasattr(value, name)}
            yield from (b"object", self.digest(kind).encode(), self.digest(state).encode())
        elif hasattr(value, "__array__"):
            try:
                yield from self._array(np.asarray(value))
            except (TypeError, ValueError) as error:
                raise Indigestible(f"the numbers of {value!r:.80} cannot be read: {error}") from error
        elif is_dataclass(value):
            state = {each.name: getattr(value, each.name) for each in fields(value)}
            yield from (b"dataclass", kind.__qualname__.encode(), self.digest(state).encode())
        elif callable(getattr(value, "__wrapped__", None)):  # as jax.jit makes
            yield from (b"wrapper", kind.__qualname__.encode(), self.digest(value.__wrapped__).encode())
        else:
            raise Indigestible(f"the content of {value!r:.80} cannot be read")


_REPRESENTED: Final = ("datetime", "decimal", "fractions", "re", "uuid")
"""Modules with objects fully described by their repr."""
_PLAIN: Final = (NoneType, bool, int, float, str)
_OF_CLASSES: Final = (
    *("__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__", "__annot"),
    *("__dataclass_", "__orig_bases__", "__parameters__", "__abstractmethods__", "_abc_impl"),
)
"""Beginnings of attributes of classes without an effect on what they compute."""
_OWN: Final = str(Path(__file__).parents[1])
_ROOTS: Final = tuple(
    {
        *(get_paths()[each] for each in ("stdlib", "platstdlib", "purelib", "platlib")),
        *getsitepackages(),
        getusersitepackages(),
        _OWN,
        "<frozen",
    }
)
"""Beginnings of the files of installed modules."""


def _installed(value: Any) -> str | None:
    """Return the module and the version of an installed module, class or function; None for the user's own."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or "builtins"
    top = name.partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    if isinstance(value, FunctionType):  # a decorator may give it another module
        file = value.__code__.co_filename
    elif top in sys.stdlib_module_names:
        file = "<frozen"
    if name == "__main__" or not file.startswith(_ROOTS):
        return None
    version = sys.version_info[:2] if top in sys.stdlib_module_names else _version(top)
    return f"{name} {version}"


@cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(package), "__version__", ""))


def _all_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of the functions in it."""
    yield code
    yield from chain.from_iterable(_all_codes(each) for each in code.co_consts if isinstance(each, CodeType))


def _imports_in(code: CodeType) -> Iterator[str]:
    """Yield the names of the modules that a code imports, with leading dots if they are relative."""
    loaded: list[Any] = []
    for step in get_instructions(code):
        if step.opname == "IMPORT_NAME":
            yield "." * loaded[-2] + str(step.argval)  # the level of the import, and the names taken from it
        elif step.opname.startswith("LOAD_"):
            loaded.append(step.argval)


def _imported(name: str, function: FunctionType) -> Any:
    """Return a module that a function imports, or the version of an installed one; None for one that is not there.

    Raises:
        Indigestible: the module cannot be imported.
    """
    try:
        name = resolve_name(name, function.__globals__.get("__package__"))
        spec = sys.modules[name].__spec__ if name in sys.modules else find_spec(name)
        if spec is None:
            return sys.modules.get(name)
        if (spec.origin or "").startswith(_ROOTS) or name.partition(".")[0] in sys.stdlib_module_names:
            return f"{name} {_version(name.partition('.')[0])}"
        return import_module(name)
    except ModuleNotFoundError:
        return None
    except Exception as error:
        raise Indigestible(f"{function.__qualname__} imports {name}, which fails: {error}") from error


def _content_of(cell: Any) -> Any:
    """Return the content of a closure's cell; a fixed text for an empty one."""
    try:
        return cell.cell_contents
    except ValueError:
        return "empty cell"


def _attributes(value: Any) -> Iterator[str]:
    """Yield the names of an object's own attributes."""
    yield from getattr(value, "__dict__", ())
    for kind in type(value).__mro__:
        slots: str | Sequence[str] = vars(kind).get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else slots
        yield from (name for name in names if name not in ("__dict__", "__weakref__"))

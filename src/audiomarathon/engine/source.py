"""Hash the source code of third-party methods, tasks and models. The hashes are part of a run's identity."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import linecache
import sys
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from audiomarathon.object_reference import texts_of

_KNOWN = {"audiomarathon", "builtins", *sys.stdlib_module_names} - {"__main__"}
_INSTALLED = {"site-packages", "dist-packages"}


def source_hash(thing: object, without: type | None = None) -> str | None:
    """Return a hash of the source code of an object, a class or a function; None if all of it belongs to this project.

    The hash covers the files of the object's classes, and modules that these files import from the same package or from
    outside `site-packages`. Other installed packages are left out. In a script, the hash covers only the definition
    and the names that it uses, since a script also contains the call that runs it.

    Parameters
    ----------
    without
        Leave out subclasses of this class, and files that only they import.
    """
    home = {_package(part) for part in _definitions(thing)[:1]}
    sources: dict[str, str] = {}
    seen: dict[int, object] = {}  # by id; it keeps the objects alive, so that no other object can get the same id
    todo = [thing]
    while todo:
        target = todo.pop()
        if id(target) in seen:
            continue
        seen[id(target)] = target
        if without and (isinstance(target, without) or (isinstance(target, type) and issubclass(target, without))):
            continue
        for part in _definitions(target):
            name = part.__name__ if isinstance(part, ModuleType) else str(part.__module__)
            module = sys.modules.get(name)
            file, texts = getattr(module, "__file__", None), texts_of(name)
            installed = _INSTALLED.intersection(Path(file or "").parts) and _package(part) not in home
            if _package(part) in _KNOWN or installed or name in sources:
                continue
            if texts:  # a file that was loaded by its path: hash the text that was run
                sources |= {Path(str(each.__file__)).stem: texts[each].hex() for each in texts if each.__name__ == name}
                sources |= {each.__name__: texts[each].hex() for each in texts if each.__name__ != name}
                todo += [value for each in texts for value in vars(each).values() if _is_definition(value, beside=name)]
                continue
            if file is None or name == "__main__":
                if not isinstance(part, ModuleType):
                    sources[f"{name}:{part.__qualname__}"] = _in_script(part, file)
            else:
                sources[name] = Path(file).read_bytes().hex()
            todo += [value for value in vars(module).values() if _is_definition(value, beside=name)] if module else []
        todo += _held(target)
    return hashlib.sha256(repr(sorted(sources.items())).encode()).hexdigest()[:16] if sources else None


def _definitions(target: object) -> list[Any]:
    """Return the code behind an object, as a list: the function or module itself, else its class and base classes."""
    if isinstance(target, functools.partial):
        return _definitions(target.func)
    if isinstance(target, MethodType):
        return _definitions(target.__func__)
    if isinstance(target, FunctionType):
        return [inspect.unwrap(target)]
    return (
        [target]
        if isinstance(target, ModuleType)
        else list((target if isinstance(target, type) else type(target)).__mro__)
    )


def _package(part: Any) -> str:
    return (part.__name__ if isinstance(part, ModuleType) else str(part.__module__)).partition(".")[0]


def _is_definition(value: object, *, beside: str) -> bool:
    """Tell whether a value is a module, or a class or function that the module `beside` imported from elsewhere."""
    return isinstance(value, ModuleType | type | FunctionType) and getattr(value, "__module__", None) != beside


def _held(target: object) -> list[object]:
    """Return, as a list, the objects inside an object: its fields' values, such as the press inside a wrapper."""
    if isinstance(target, functools.partial):
        return [target.func, *target.args, *target.keywords.values()]
    if isinstance(target, MethodType):
        return [target.__self__]
    if isinstance(target, list | tuple):
        return list(target)
    if isinstance(target, ModuleType | type | FunctionType):
        return []
    return list((target if isinstance(target, dict) else getattr(target, "__dict__", {})).values())


def _in_script(part: Any, file: str | None) -> str:
    """Return the source of a definition in a script or notebook; without source (in a console), its bytecode."""
    members = [part] if isinstance(part, FunctionType) else list(vars(part).values())
    codes = [inspect.unwrap(function).__code__ for function in members if isinstance(function, FunctionType)]
    for place in [file] if file else [code.co_filename for code in codes]:
        if text := _reached("".join(linecache.getlines(place)), part.__qualname__.partition(".")[0]):
            return text
    return repr([_compiled(code) for code in codes])


def _reached(script: str, name: str) -> str:
    """Return, as one text, the statements of a script that define `name`, and all definitions that these statements
    need.
    """
    bound: dict[str, list[ast.stmt]] = {}
    for statement in ast.parse(script).body:
        stored = (n for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        defined = isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for each in [statement.name] if defined else [n.id for n in stored]:  # type: ignore[attr-defined]
            bound.setdefault(each, []).append(statement)
    used, todo = {}, [name]
    while todo:
        for statement in bound.pop(todo.pop(), []):
            used[statement.lineno] = ast.get_source_segment(script, statement) or ""
            todo += [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return "\n".join(text for _line, text in sorted(used.items()))


def _compiled(code: CodeType) -> object:
    consts = [_compiled(const) if isinstance(const, CodeType) else const for const in code.co_consts]
    return code.co_code, code.co_names, consts

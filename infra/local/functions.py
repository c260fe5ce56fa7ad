"""The template's functions, loaded into this process."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from infra.local.gateway import Endpoint
from infra.local.invoking import InProcess
from infra.local.template import Function, Template

LAYER = Path(__file__).resolve().parents[2] / "layers" / "core"


def load_handler(function: Function) -> Callable[[Any, Any], Any]:
    """The handler of a function, from its own file under a module name of its own.

    Every function's module is called app.py: under that name each would replace the one before. The
    environment of the functions must be set before the first is loaded.
    """
    module_name, _, attribute = function.handler.rpartition(".")
    path = function.code / f"{module_name.replace('.', '/')}.py"
    name = f"tallymark_functions.{function.logical_id}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    handler: Callable[[Any, Any], Any] = getattr(module, attribute)
    return handler


def load_functions(template: Template) -> dict[str, InProcess]:
    """Every function whose code is there, by logical id.

    A function of the template without code is left out: what needs it says so where it is called.
    """
    if str(LAYER) not in sys.path and importlib.util.find_spec("tallymark") is None:
        sys.path.append(str(LAYER))
    return {
        name: in_process(template, function) for name, function in template.functions.items() if _has_code(function)
    }


def _has_code(function: Function) -> bool:
    return (function.code / f"{function.handler.rpartition('.')[0]}.py").exists()


def in_process(template: Template, function: Function) -> InProcess:
    """One function, callable in this process."""
    arn = template.scope.arn("AWS::Lambda::Function", function.physical_id) or function.physical_id
    return InProcess(load_handler(function), function.physical_id, arn, function.timeout_seconds, function.memory_mb)


def endpoints(functions: Mapping[str, InProcess], names: Iterable[str]) -> dict[str, Endpoint]:
    """What the gateway calls, for the functions that routes lead to. Raises KeyError for one without code."""
    return {name: Endpoint(functions[name].handler, functions[name].context) for name in set(names)}

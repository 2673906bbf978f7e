"""The graph optimizers of ONNX Runtime: which ones ran, and a session without some of them.

ONNX Runtime lists its optimizers in the log of a session only, which a child process writes. The
small rewriting rules run inside one optimizer, and their names are in the library itself.
"""

import functools
import json
import re
import tempfile
from collections.abc import Collection, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from ortmeter.child import Child
from ortmeter.errors import ModelError
from ortmeter.runtime.loading import ModelLike, is_path, load_model
from ortmeter.runtime.providers import resolve_provider
from ortmeter.runtime.sessions import make_session
from ortmeter.runtime.settings import libraries

_DISABLED = "optimization.disable_specified_optimizers"
_RULES = re.compile(r"Level\d+_RuleBasedTransformer")
_RULE = re.compile(
    rb"\0((?:Eliminate|Fuse)[A-Za-z]+|[A-Z][A-Za-z_]+(?:Elimination|Fusion|Rewrite))(?=\0)"
)
_LOGGED = re.compile(
    r"Graph transformer step \d+ of \d+ for level (\d+) started"
    r"|GraphTransformer (\w+) modified: ([01]) with"
)
_LEVELS = ("none", "basic", "extended", "layout")
_VERBOSE = 0


@dataclass(frozen=True)
class Optimizer:
    """An optimizer that ran on a model, its level, and whether it changed the graph."""

    name: str
    level: str
    changed: bool

    @property
    def has_rules(self) -> bool:
        """Whether it runs the small rules, see :func:`rewriting_rules`."""
        return _RULES.fullmatch(self.name) is not None


def optimizers_of(
    model: ModelLike, *, refused: bool = False, **session: Any
) -> tuple[Optimizer, ...]:
    """List the optimizers that ONNX Runtime runs on a model, in order.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`.
    refused : bool
        List those that ran before ONNX Runtime refused the model, if it does.
    **session
        As for :func:`~ortmeter.runtime.sessions.make_session`.

    Returns
    -------
    tuple of Optimizer
        One per name, even if it runs several times or at two levels: the first level where it
        changes the graph, or where it runs.

    Raises
    ------
    OrtMeterError
        ONNX Runtime refuses the model, or its process died.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Z = Identity(X)  Y = Abs(Z) }'''
    >>> [found.name for found in optimizers_of(text, provider="cpu") if found.changed]
    ['Level1_RuleBasedTransformer']
    """
    options = {**session, "provider": str(resolve_provider(session.get("provider", "auto")))}
    options["session_options"] = {
        **(session.get("session_options") or {}),
        "log_severity_level": _VERBOSE,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        if is_path(model):
            path = Path(model).absolute()
        else:
            onnx.save(load_model(model), path)
        with Child(name="the session that logs its optimizers") as child:
            options = {"path": str(path), "options": json.dumps(options, default=str)}
            child.ask(_create, **options, refused=refused)
            return _read_log(child.errors())


def _create(path: str, options: str, *, refused: bool) -> None:
    """Create a session, for its log."""
    with suppress(ModelError) if refused else nullcontext():
        make_session(path, **json.loads(options))


def _read_log(log: str) -> tuple[Optimizer, ...]:
    level, found = 0, dict[str, Optimizer]()
    for started, name, changed in _LOGGED.findall(log):
        if started:
            level = int(started)
            continue
        known = found.get(name)
        if level and (known is None or (changed == "1" and not known.changed)):
            found[name] = Optimizer(name, _LEVELS[min(level, len(_LEVELS) - 1)], changed == "1")
    return tuple(found.values())


@functools.cache
def rewriting_rules() -> tuple[str, ...]:
    """Names that the installed library has for its small rules; some are of other optimizers."""
    return tuple(sorted({name.decode() for data in libraries() for name in _RULE.findall(data)}))


def without(session: Mapping[str, Any], disabled: Collection[str]) -> dict[str, Any]:
    """Write the settings of a session without these optimizers, added to those it is without.

    ONNX Runtime ignores a name that it does not know.
    """
    config = dict(session.get("session_config") or {})
    names = [*filter(None, str(config.pop(_DISABLED, "")).split(";")), *disabled]
    added = {_DISABLED: ";".join(dict.fromkeys(names))} if names else {}
    return {**session, "session_config": {**config, **added}}

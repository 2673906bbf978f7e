"""Backend of torch.compile that runs graphs on ONNX Runtime.

``torch.compile(model, backend="ortmeter")``, or with an object that records the compiled graphs::

    backend = OrtBackend("default+onnxruntime")
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        compiled(x)
    for graph in [*backend.graphs, *backend.fallbacks]:
        print(graph)

A fallback is a graph that runs on torch, with the reason. ``graph.refusals`` says why a rule did
not apply to a match of its pattern. ``ortmeter.max_diff(model(x), compiled(x))`` compares the
results. See also :ref:`what each rule brings on a CPU <l-backend-rules>`.
"""

import lazy_loader

from ortmeter.optional import import_optional

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """Import a name of ``__init__.pyi`` when it is first used."""
    if name in __all__:
        for module in ("torch", "onnx_ir", "onnxscript"):
            import_optional(module, "torch")
        import_optional("onnxruntime", "cpu", "gpu")
    return _load(name)

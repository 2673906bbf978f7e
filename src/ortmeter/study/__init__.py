"""What a page is: parameters, what it measures, shows and concludes, here and from records."""

import lazy_loader  # type: ignore[import-untyped]

from ortmeter.evidence import Estimate, Finding, Speedups

# The arguments of a page are read before anything heavy is imported.
_NAMES = {
    "args": ["Param"],
    "rendering": ["show", "table", "to_frame"],
    "study": ["Study"],
    "writer": ["enumerate_items"],
}
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_NAMES)
__all__ += [kind.__name__ for kind in (Estimate, Finding, Speedups)]

"""Drawings of models and plots of measurements; a command that draws one plot imports no other."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

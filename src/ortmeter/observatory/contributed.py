"""Operators of ONNX Runtime that ONNX lacks, by their definitions, in float64."""

from collections.abc import Callable, Mapping
from typing import Any

DOMAIN = "com.microsoft"

CONTRIBUTED: Mapping[str, Callable[..., Any]] = {}

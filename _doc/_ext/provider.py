"""The execution provider of the build: checked before anything runs, shown on every page."""

import os

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ExtensionError

from ortmeter.errors import OrtMeterError
from ortmeter.machine.environment import Environment, environment
from ortmeter.runtime.providers import Provider, resolve_provider


def chosen_provider() -> Provider:
    """Provider that runs the pages, from the variable ``ORTMETER_PROVIDER`` (default ``auto``).

    Raises
    ------
    ExtensionError
        The provider asked for is not known or does not work on this machine. A page on CUDA never
        shows the numbers of a CPU: the build stops.
    """
    try:
        return resolve_provider(os.environ.get("ORTMETER_PROVIDER", "auto"))
    except OrtMeterError as error:
        raise ExtensionError(f"ORTMETER_PROVIDER: {error}", modname="ortmeter") from error


def built_on(provider: Provider, machine: Environment) -> str:
    """Sentence of the footer: where the numbers of the site come from."""
    versions = [
        f"{name} {machine.packages[name].partition(' ')[0]}"
        for name in ("onnxruntime", "onnxruntime-gpu", "onnx", "numpy", "torch")
        if name in machine.packages
    ]
    return f"Measured on {machine.hardware}, provider {provider.label}: {', '.join(versions)}."


def announce(_app: Sphinx, config: Config) -> None:
    """Check the provider and put the sentence of the footer in the context of the templates."""
    provider = chosen_provider()
    config.html_context["built_on"] = (
        built_on(provider, environment())
        if config.sphinx_gallery_conf["plot_gallery"]
        else "Built without running the pages."
    )

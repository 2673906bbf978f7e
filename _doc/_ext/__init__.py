"""What `conf.py` adds to Sphinx and sphinx-gallery.

The steps of a build, in the order of their priorities; sphinx-gallery runs the pages at 500.
`_ext.api` is an extension of its own, which comes after them.
"""

from typing import Any

from sphinx.application import Sphinx

from _ext import (
    answers,
    assets,
    bundle,
    cards,
    commands,
    executed,
    hosting,
    machines,
    mathml,
    provider,
    search_words,
    staleness,
    wheel,
)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_config_value("ortmeter_root", "", "", types=(str,))
    app.add_config_value("ortmeter_scripts", [], "html", types=(list,))
    mathml.register(app)
    cards.register(app)
    machines.register(app)
    commands.register(app)
    app.add_transform(search_words.AddWords)
    app.add_directive("ortmeter-install", wheel.InstallDirective)
    app.connect("config-inited", provider.announce)
    app.connect("config-inited", assets.publish_assets)
    app.connect("builder-inited", wheel.publish_wheel, priority=200)
    app.connect("builder-inited", staleness.forget_results, priority=300)
    app.connect("builder-inited", bundle.finish_downloads, priority=700)
    app.connect("doctree-read", answers.add_answers)
    app.connect("doctree-read", executed.run_blocks)
    app.connect("doctree-resolved", hosting.link_colab)
    app.connect("html-page-context", answers.add_description)
    app.connect("html-page-context", assets.add_scripts)
    app.connect("build-finished", hosting.prepare_hosting, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Inputs of a model: drawn at random from what its graph declares, or read from files."""

from ortmeter.runtime.feeds.generate import random_feeds, shared_feeds
from ortmeter.runtime.feeds.read import read_feeds

__all__ = ["random_feeds", "read_feeds", "shared_feeds"]

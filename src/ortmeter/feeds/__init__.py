"""Inputs of a model: drawn at random from what its graph declares, or read from files."""

from ortmeter.feeds.generate import random_feeds, shared_feeds
from ortmeter.feeds.read import read_feeds

__all__ = ["random_feeds", "read_feeds", "shared_feeds"]

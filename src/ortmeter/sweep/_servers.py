"""Servers of dask that open no port but their own."""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
from distributed import Client, Scheduler, SpecCluster, Worker

from ortmeter.sweep.machine import Machine

__all__ = ["SweepScheduler", "SweepWorker", "local_client", "quiet"]

#: Dask samples its threads on the cores of what is timed, and chooses threads and memory for it.
_SETTINGS = {
    "distributed.worker.profile.enabled": False,
    "distributed.nanny.pre-spawn-environ": {},
}


class _WithoutHttp:
    """Dask opens an HTTP port on all interfaces, with or without a dashboard."""

    http_server: Any = None

    def start_http_server(self, *_args: Any, **_kwargs: Any) -> None:
        """Open nothing."""


class SweepScheduler(_WithoutHttp, Scheduler):
    """Scheduler without HTTP server."""


class SweepWorker(_WithoutHttp, Worker):
    """Worker without HTTP server."""


@contextmanager
def quiet() -> Iterator[None]:
    """Settings of the servers, while they run."""
    with dask.config.set(_SETTINGS):
        yield


@contextmanager
def local_client(machine: Machine) -> Iterator[Client]:
    """Start a scheduler and a worker in this process, without any port.

    Parameters
    ----------
    machine : Machine
        This machine.
    """
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder, quiet():
        worker = {
            "protocol": "inproc",
            "nthreads": 1,
            "resources": machine.resources,
            "memory_limit": 0,
            "local_directory": folder,
        }
        cluster = SpecCluster(
            scheduler={"cls": SweepScheduler, "options": {"protocol": "inproc"}},
            workers={0: {"cls": SweepWorker, "options": worker}},
            silence_logs=logging.ERROR,
        )
        with cluster, Client(cluster) as client:
            yield client

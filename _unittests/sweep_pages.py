"""Pages for the tests of sweeps, that start in a fraction of a second, and machines to run them."""

import contextlib
import json
import os
import subprocess
from pathlib import Path

from distributed import Client
from processes import launched, wait_for_start

import ortmeter
from ortmeter.runtime.providers import Provider
from ortmeter.study.records import record

# The page writes a record that was made beforehand: importing pandas would take longer.
PAGE = """
import json, os, signal, sys, time
from pathlib import Path
from ortmeter.study.args import Param, get_parsed_args
args = get_parsed_args(
    "plot_fast",
    number=Param(0, minimum=0),
    color=Param("red", choices={{"red": 1, "blue": 2}}),
    threads=(1,),
    provider="cpu",
    record=False,
)
with open({log!r}, "a") as log:
    log.write(f"{{args.number}} {{os.getpid()}} {{os.getppid()}}\\n")
fields = json.loads(Path({template!r}).read_text())
fields["configuration"] = {{name: args.label(name) for name, _ in args if name != "record"}}
{body}
results = Path(os.environ["ORTMETER_RESULTS"], "machine")
results.mkdir(parents=True)
(results / "plot_fast.json").write_text(json.dumps(fields))
"""

NUMBERS = [str(i) for i in range(12)]


class FastPage:
    """A page whose runs are logged; *body* is what it does before it records."""

    def __init__(self, folder: Path, body: str = "pass"):
        args = ortmeter.get_parsed_args("plot_fast", args=[], number=0)
        template = folder / "template.json"
        planted = record("plot_fast", args, Provider.parse("cpu"), {"x": 1})
        template.write_bytes(planted.to_json())
        self.folder, self.log = folder, folder / "log.txt"
        self.path = folder / "plot_fast.py"
        self.path.write_text(
            PAGE.format(log=str(self.log), template=str(template), body=body), encoding="utf-8"
        )

    @property
    def runs(self):
        """Number, process and parent of each run that began."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [tuple(map(int, line.split())) for line in lines]

    @property
    def numbers(self):
        return sorted(str(number) for number, _, _ in self.runs)


def files_of(output):
    """Names of the records of a sweep."""
    return sorted(file.name for file in Path(output).glob("*/plot_*--*.json"))


@contextlib.contextmanager
def cluster(folder, *workers, lock=None, **variables):
    """Start a scheduler and workers of dask that believe to be on machines of their own.

    They are on one machine when they share the file of its lock.
    """
    variables = {**os.environ, "TMPDIR": str(folder), **variables}
    own = ("--host", "127.0.0.1", "--no-dashboard")
    with contextlib.ExitStack() as servers:

        def start(*arguments, **more):
            options = {"env": {**variables, **more}, "cwd": folder, "stderr": subprocess.DEVNULL}
            return servers.enter_context(launched("-m", "dask", *arguments, *own, **options))

        file = folder / "scheduler.json"
        processes = [start("scheduler", "--port", "0", "--scheduler-file", file)]
        wait_for_start(processes[0], file.exists)
        address = json.loads(file.read_text())["address"]
        for name in workers:
            own_lock = {"ORTMETER_MACHINE_LOCK": str(lock or folder / f"{name}.lock")}
            options = ("--name", name, "--nthreads", "1", "--no-nanny")
            processes.append(start("worker", address, *options, **own_lock))
        if workers:
            with Client(address) as client:
                client.wait_for_workers(len(workers))
        yield address, processes

"""Pages for the tests of sweeps, that start in a fraction of a second, and machines to run them."""

import contextlib
import json
import os
import subprocess
from pathlib import Path

from processes import launched, wait_for_start

import ortmeter
from ortmeter.runtime.providers import Provider
from ortmeter.study.records import record
from ortmeter.sweep.worker import Attempt

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


class FastPage:
    """A page whose runs are logged; *body* is what it does before it records."""

    def __init__(self, folder: Path, body: str = "pass"):
        args = ortmeter.get_parsed_args("plot_fast", args=[], number=0)
        self.log, self.template = folder / "log.txt", folder / "template.json"
        planted = record("plot_fast", args, Provider.parse("cpu"), {"x": 1})
        self.template.write_bytes(planted.to_json())
        self.path, self.changes = folder / "plot_fast.py", {}
        text = PAGE.format(log=str(self.log), template=str(self.template), body=body)
        self.path.write_text(text, encoding="utf-8")

    def run_job(self, job):
        """Stand for a process, at once: number 5 dies, the others have the record asked for."""
        options = dict(text.removeprefix("--").split("=") for text in job.arguments)
        with self.log.open("a") as log:
            log.write(f"{options['number']} 0 0\n")
        if options["number"] == "5":
            return Attempt("machine", 0.1, error="killed by SIGSEGV")
        fields = json.loads(self.template.read_text())
        fields["configuration"] |= options
        return Attempt("machine", 0.1, json.dumps({**fields, **self.changes}).encode())

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
def cluster(folder, *workers, **variables):
    """Start a scheduler and workers of dask; give its address and its process."""
    from distributed import Client

    lock = {"TMPDIR": str(folder), "ORTMETER_MACHINE_LOCK": str(folder / "machine.lock")}
    options = {"env": {**os.environ, **lock, **variables}, "cwd": folder}
    own = ("--host", "127.0.0.1", "--no-dashboard")
    with contextlib.ExitStack() as servers:

        def start(*arguments):
            command = ("-m", "dask", *arguments, *own)
            return servers.enter_context(launched(*command, stderr=subprocess.DEVNULL, **options))

        file = folder / "scheduler.json"
        scheduler = start("scheduler", "--port", "0", "--scheduler-file", file)
        wait_for_start(scheduler, file.exists)
        address = json.loads(file.read_text())["address"]
        for name in workers:
            start("worker", address, "--name", name, "--nthreads", "1", "--no-nanny")
        with Client(address) as client:
            client.wait_for_workers(len(workers))
        yield address, scheduler

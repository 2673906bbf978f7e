"""Pages for the tests of sweeps, that start in a fraction of a second, and machines to run them."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

from processes import PATIENCE_S

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


class Server:
    """``ortmeter scheduler`` or ``ortmeter worker`` in a process group of its own."""

    def __init__(self, *arguments, **variables):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ortmeter", *map(str, arguments)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **variables},
        )
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.match(r"(?:scheduler|worker) at (\S+)", line):
                self.address = found[1]
                break
        else:
            raise AssertionError("".join(self.lines))
        # A pipe that nobody reads ends by blocking the one who writes.
        self._drain = threading.Thread(target=lambda: self.lines.extend(self.process.stderr))
        self._drain.start()

    def close(self):
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._drain.join()
        self.process.stderr.close()


@contextlib.contextmanager
def cluster(folder, *workers, options=(), **variables):
    """Start a scheduler and workers that believe to be on machines of their own."""
    variables["TMPDIR"] = str(folder)  # a server that is killed leaves something
    servers = [Server("scheduler", "--port", 0, *options, **variables)]
    address = servers[0].address
    try:
        for name in workers:
            command = ("worker", address, "--name", name, *options)
            lock = str(folder / f"{name}.lock")
            servers.append(Server(*command, ORTMETER_MACHINE_LOCK=lock, TMPDIR=str(folder)))
        yield address, servers
    finally:
        for server in reversed(servers):
            server.close()

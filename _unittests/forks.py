"""Children that start with what they import: they are forked from a process that imported it.

What a fresh process imports, and what it takes from where it starts, has its own tests.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from ortmeter.child import child_command

#: What children import before they work.
IMPORTED = ("onnxruntime", "pandas", "torch", "ortmeter.timing.measuring", "ortmeter.tuning.guard")
IMPORTED += ("ortmeter.timing.candidates", "ortmeter.workloads.startup")
_SUBREAPER = 36  # of prctl: those whose parent ends are ours
_LOCK = threading.Lock()


class ForkedProcess(subprocess.Popen):
    """A process whose command is one of :mod:`ortmeter.child`."""

    def _execute_child(self, args, *others):
        if args[:3] != [sys.executable, "-I", "-c"]:  # another Python
            super()._execute_child(args, *others)
            return
        pipes, env = others[9:15], others[5]
        asked = json.dumps({"command": args, "cwd": str(Path.cwd()), "env": dict(env)}).encode()
        with _LOCK:
            (server, _), prctl = start_server(), ctypes.CDLL(None).prctl
            prctl(_SUBREAPER, 1, 0, 0, 0)
            socket.send_fds(server, [len(asked).to_bytes(8)], [pipes[0], pipes[3], pipes[5]])
            server.sendall(asked)
            self.pid = int.from_bytes(server.recv(8))
            prctl(_SUBREAPER, 0, 0, 0, 0)
        self._child_created = True
        self._close_pipe_fds(*pipes)


@functools.cache
def start_server():
    """Start the process that forks; it ends with this one."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = child_command("forks", str(theirs.fileno()))
        return ours, subprocess.Popen(command, pass_fds=[theirs.fileno()])


def main(descriptor):
    """Fork a child for each command, until the tests end."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # the children go through their own objects only
    with socket.socket(fileno=int(descriptor)) as server:
        while True:
            size, streams, *_ = socket.recv_fds(server, 8, 3)
            if not size:
                return
            left, text = int.from_bytes(size), b""
            while len(text) < left:
                text += server.recv(left - len(text))
            if not (pid := _fork_orphan()):
                break
            for stream in streams:
                os.close(stream)
            server.sendall(pid)
    _run(streams, **json.loads(text))


def _fork_orphan():
    """Fork twice: return the second process to the first one, and nothing to the second."""
    reading, writing = os.pipe()
    if middle := os.fork():
        pid = os.read(reading, 8)
        os.waitpid(middle, 0)
    elif pid := os.fork():
        os.write(writing, pid.to_bytes(8))
        os._exit(0)
    os.close(reading)
    os.close(writing)
    return pid


def _run(streams, command, cwd, env):
    """Do what the command does, in this process."""
    for descriptor, stream in enumerate(streams):
        os.dup2(stream, descriptor)
        os.close(stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    importlib.invalidate_caches()
    module, _, count, *rest = command[5:]
    paths, arguments = rest[: int(count)], rest[int(count) :]
    sys.path += [path for path in paths if path not in sys.path]
    sys.argv[:] = [module, *arguments]
    importlib.import_module(module).main(*arguments)
    # The end of an interpreter that imported so much takes longer than most work.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)

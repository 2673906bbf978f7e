"""Describe the machine, the versions and the policies behind a number."""

import dataclasses
import functools
import html
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortmeter.child import output_of
from ortmeter.facts import Fact, read_facts
from ortmeter.optional import onnxruntime
from ortmeter.runtime.cpu import cpu_info, processor, usable_cores
from ortmeter.runtime.providers import described, probe_providers

__all__ = ["environment"]

_PACKAGES = ("onnx", "numpy", "torch", "ortmeter")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class _Variables(Fact, frozen=True):
    names: tuple[str, ...]


class _Generation(Fact, frozen=True):
    name: str
    family: str
    models: tuple[str, ...]
    instructions: tuple[str, ...]  # that a virtual machine may hide


@functools.cache
def _generations() -> tuple[_Generation, ...]:
    return read_facts(__package__, "processors.toml", _Generation)


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver describes it; the memory may be unknown."""

    name: str
    memory_mib: int | None
    driver: str

    def __str__(self) -> str:
        memory = f"{self.memory_mib / 1024:.0f} GiB, " if self.memory_mib else ""
        return f"{self.name} ({memory}driver {self.driver})"


@dataclass(frozen=True)
class Environment:
    """What a measurement depends on besides the model."""

    system: str
    cpu: str
    cores: int
    threads: Mapping[str, int]  # limits that were found, by their origin
    python: str
    packages: Mapping[str, str]
    providers: Mapping[str, str]
    gpus: tuple[Gpu, ...]
    precision: Mapping[str, str]  # of float32 products
    commit: str | None  # None when the package is not run from its own checkout
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)  # that choose kernels
    processor: Mapping[str, str] = dataclasses.field(default_factory=dict)  # empty: not known

    def __str__(self) -> str:
        versions = (f"{name} {version}" for name, version in self.packages.items())
        machine = [f"{self.cpu} ({self._counted})", *map(str, self.gpus)]
        return ", ".join([*machine, self.system, f"Python {self.python}", *versions])

    @property
    def _counted(self) -> str:
        return f"{self.cores} core{'s' * (self.cores != 1)}"

    @property
    def hardware(self) -> str:
        """What runs the model, by the names that people use: *AMD EPYC (Turin), 2 cores*."""
        cpu = " ".join(re.sub(r"\((R|TM)\)|\bProcessor\b|\bCPU\b|@.*", " ", self.cpu).split())
        return self._described(f"{cpu} ({self._named_generation or 'generation unknown'})")

    def _described(self, cpu: str) -> str:
        return ", ".join([*(gpu.name for gpu in self.gpus), cpu, self._counted])

    @property
    def _named_generation(self) -> str:
        """Name of the generation, with what is hidden of it; its numbers if it has no name.

        A virtual machine may give the numbers of a generation that lacks instructions it has.
        """
        shown = {*self.processor.get("instructions", "").split(", ")}
        shown &= {name for known in _generations() for name in known.instructions}
        for known in _generations():
            numbers = {"family": known.family, "model": self.generation.get("model")}
            is_one = self.generation.items() >= numbers.items() and numbers["model"] in known.models
            if is_one and shown <= {*known.instructions}:
                hidden = [name for name in known.instructions if name not in shown]
                return f"{known.name}, {' and '.join(hidden)} disabled" if hidden else known.name
        return _generation_text(self.generation)

    @property
    def generation(self) -> dict[str, str]:
        """Family, model and stepping of the processor, empty when they are not known."""
        names = ("family", "model", "stepping")
        return {name: self.processor[name] for name in names if name in self.processor}

    @property
    def identity(self) -> str:
        """What two machines share when they are alike: all that is known of the processor."""
        cpu = f"{self.cpu} ({_generation_text(self.generation) or 'generation unknown'})"
        return "; ".join([self._described(cpu), *self.processor.values()])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON accepts; a processor that is not known is left out."""
        fields = dataclasses.asdict(self)
        return fields if self.processor else {k: v for k, v in fields.items() if k != "processor"}

    def to_rows(self) -> list[tuple[str, str]]:
        """Return the fields as (name, text), for tables."""
        return [
            ("CPU", f"{self.cpu}, {self._counted}"),
            ("Processor", _join_pairs(self.processor) or "generation unknown"),
            ("GPU", "; ".join(map(str, self.gpus)) or "none"),
            ("System", self.system),
            ("Threads", _join_pairs(self.threads) or "no limit set in the environment"),
            ("Python", self.python),
            ("Packages", _join_pairs(self.packages)),
            ("Providers", _join_pairs(self.providers)),
            ("Precision", _join_pairs(self.precision)),
            ("Variables", _join_pairs(self.variables) or "none"),
            ("Commit", self.commit or "not a checkout"),
        ]

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(text)}</td></tr>'
            for name, text in self.to_rows()
        )
        return f'<table class="ortmeter-environment"><tbody>{rows}</tbody></table>'


def environment() -> Environment:
    """Describe the machine that runs this process.

    Returns
    -------
    Environment
        Attributes ``system``, ``cpu``, ``cores``, ``threads``, ``python``, ``packages``,
        ``providers``, ``gpus``, ``precision`` of float32 products, ``commit`` and environment
        ``variables`` that choose kernels. torch is described only if it is already imported.

    Examples
    --------
    >>> environment().cores >= 1
    True
    """
    return Environment(
        system=f"{_system_name()} {platform.machine()}",
        cpu=_cpu_model(),
        cores=usable_cores(),
        threads=_thread_settings(),
        python=platform.python_version(),
        packages=_package_versions(),
        providers={
            name: f"not usable ({reason})" if reason else "usable"
            for name, reason in probe_providers().items()
        }
        | {name: f"usable: {what}" for name, what in described.items()},
        gpus=_gpus(),
        precision=_precision_policy(),
        commit=_git_commit(),
        variables=_known_variables(),
        processor=processor(),
    )


def _cpu_model() -> str:
    if model := cpu_info().get("model name"):
        return model
    if sys.platform == "darwin":
        name = output_of("sysctl", "-n", "machdep.cpu.brand_string") or ""
        return name.strip() or platform.processor()
    return platform.processor() or platform.machine()


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()}"


def _known_variables() -> dict[str, str]:
    known = read_facts(__package__, "variables.toml", _Variables)
    return {name: os.environ[name] for fact in known for name in fact.names if name in os.environ}


def _thread_settings() -> dict[str, int]:
    set_by_user = {name: os.environ.get(name, "") for name in _THREAD_VARIABLES}
    threads = {name: int(text) for name, text in set_by_user.items() if text.isdecimal()}
    if torch := sys.modules.get("torch"):
        threads["torch"] = torch.get_num_threads()
    return threads


def _package_versions() -> dict[str, str]:
    versions = {}
    wheel = importlib.util.find_spec("onnxruntime")
    if wheel and wheel.origin:  # not a folder that an uninstallation left
        # Of two wheels that are installed, the one that is imported.
        versions[onnxruntime.package_name] = onnxruntime.__version__ + _onnxruntime_build()
    plugins = (f"onnxruntime-ep-{place.partition(':')[0]}" for place in described)
    for name in (*_PACKAGES, *plugins):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _onnxruntime_build() -> str:
    pairs = (item.strip().partition("=") for item in onnxruntime.get_build_info().split(","))
    commit = {name.rpartition(" ")[2]: text for name, _, text in pairs}.get("git-commit-id")
    cuda = getattr(onnxruntime, "cuda_version", None)
    parts = [f"commit {commit}" if commit else "", f"CUDA {cuda}" if cuda else ""]
    return f" ({', '.join(filter(None, parts))})" if any(parts) else ""


def _gpus() -> tuple[Gpu, ...]:
    listing = output_of(
        "nvidia-smi",
        "--query-gpu=name,memory.total,driver_version",
        "--format=csv,noheader,nounits",
    )
    rows = (line.split(", ") for line in (listing or "").splitlines())
    return tuple(
        Gpu(name, int(memory) if memory.isdecimal() else None, driver)
        for name, memory, driver in rows
    )


def _precision_policy() -> dict[str, str]:
    policy = {"onnxruntime": "TF32 off unless a session asks for it"}
    if torch := sys.modules.get("torch"):
        # TF32 is off for products and on for convolutions, unless somebody changes it.
        policy["torch"] = (
            f"float32 products in {torch.get_float32_matmul_precision()!r} precision, "
            f"convolutions on CUDA in {torch.backends.cudnn.conv.fp32_precision!r}"
        )
    return policy


def _git_commit() -> str | None:
    package = Path(__file__).parents[1]
    git = ("git", "-C", str(package))
    found = output_of(*git, "rev-parse", "--show-toplevel", "--short=12", "HEAD") or ""
    # Installed in an environment inside somebody else's checkout, the commit would be theirs.
    root, _, commit = found.strip().rpartition("\n")
    if not root or Path(root) / "src" / "ortmeter" != package:
        return None
    changes = output_of(*git, "status", "--porcelain", "--untracked-files=no")
    return commit + ("+changes" if changes else "")


def _generation_text(generation: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {text}" for name, text in generation.items())


def _join_pairs(pairs: Mapping[str, object]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in pairs.items())

"""Facts about a release of another project: TOML files of the packages, each fact with its date."""

import datetime as dt
import importlib.resources
from typing import TypeVar

import msgspec

from ortmeter.errors import OrtMeterError


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a release does, when that was established, and the issue that tells it."""

    established: dt.date
    release: str
    issue: str = ""


AnyFact = TypeVar("AnyFact", bound=Fact)


def read_facts(package: str, name: str, kind: type[AnyFact]) -> tuple[AnyFact, ...]:
    """Read the tables ``[[fact]]`` of a file of a package, and check them."""
    content = importlib.resources.files(package).joinpath(name).read_bytes()
    try:
        return msgspec.toml.decode(content, type=dict[str, tuple[kind, ...]])["fact"]  # type: ignore[valid-type]
    except (msgspec.DecodeError, KeyError) as cause:
        raise OrtMeterError(f"{name} of {package}: {cause}. Accepted: tables [[fact]]") from cause

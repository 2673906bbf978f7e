"""Run a worker of sweeps on this machine until interrupted."""

from argparse import ArgumentParser, Namespace

from ortmeter.cli.options import add_host, add_tls
from ortmeter.cli.terminal import tell
from ortmeter.optional import import_optional
from ortmeter.sweep.engine import check_address, check_host, read_tls


def register(parser: ArgumentParser) -> None:
    parser.add_argument("scheduler", metavar="tcp://HOST:PORT", help="address of the scheduler")
    add_host(parser)
    parser.add_argument("--name", help="name of the worker (its address)")
    add_tls(parser)


def run(options: Namespace) -> None:
    tls = read_tls(options.tls_ca, options.tls_cert, options.tls_key)
    check_address(options.scheduler, tls)
    check_host(options.host, tls, insecure=options.insecure)
    import_optional("distributed", "sweep")
    from ortmeter.sweep.cluster import serve_worker

    serve_worker(
        lambda address: tell(f"worker at {address}"),
        options.scheduler,
        host=options.host,
        name=options.name,
        security=tls,
    )

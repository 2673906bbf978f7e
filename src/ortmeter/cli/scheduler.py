"""Run the scheduler of sweeps until interrupted."""

from argparse import ArgumentParser, Namespace

from ortmeter.cli.options import add_host, add_tls, number
from ortmeter.cli.terminal import tell
from ortmeter.optional import import_optional
from ortmeter.sweep.engine import MAX_PORT, check_host, read_tls


def register(parser: ArgumentParser) -> None:
    add_host(parser)
    parser.add_argument(
        "--port", type=number(0, MAX_PORT), default=8786, help="port, 0 for any free one (8786)"
    )
    add_tls(parser)


def run(options: Namespace) -> None:
    tls = read_tls(options.tls_ca, options.tls_cert, options.tls_key)
    check_host(options.host, tls, insecure=options.insecure)
    import_optional("distributed", "sweep")
    from ortmeter.sweep.cluster import serve_scheduler

    serve_scheduler(
        lambda address: tell(f"scheduler at {address}"),
        host=options.host,
        port=options.port,
        security=tls,
    )

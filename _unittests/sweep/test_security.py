import pytest

from ortmeter.errors import InvalidArgumentError
from ortmeter.sweep import read_tls
from ortmeter.sweep.security import check_address


@pytest.fixture
def files(tmp_path):
    files = [tmp_path / name for name in ("ca", "cert", "key")]
    for file in files:
        file.write_text("")
    return files


def test_tls_needs_all_three_files(files):
    with pytest.raises(InvalidArgumentError, match="--tls-ca, --tls-key is missing"):
        read_tls(None, files[1], "")
    files[2].unlink()
    with pytest.raises(InvalidArgumentError, match="key cannot be read"):
        read_tls(*files)


def test_dask_refuses_what_is_not_encrypted(files):
    security = read_tls(*files)
    assert security.require_encryption
    for side in ("client", "scheduler", "worker"):
        config = security.get_tls_config_for_role(side)
        assert [config["ca_file"], config["cert"], config["key"]] == list(map(str, files))


@pytest.mark.parametrize("address", ["tcp://a:1", "tcp://192.168.0.1:8786", "tcp://[::1]:8786"])
def test_addresses_without_tls(address):
    check_address(address, None)


@pytest.mark.parametrize(
    "address",
    [
        *("a:1", "tcp://a", "tcp://:1", "tls://a:1", "tcp://a:b", ""),
        *("tcp://a:99999", "tcp://a:0", "tcp://a:65536", "tcp://a:-1", "tcp://a:\uff18"),
        "tcp://a:" + "9" * 5000,
    ],
)
def test_other_addresses_are_refused(address):
    with pytest.raises(InvalidArgumentError, match="expected tcp://host:port without TLS files"):
        check_address(address, None)


def test_tls_is_in_the_address(files):
    tls = read_tls(*files)
    check_address("tls://a:1", tls)
    with pytest.raises(InvalidArgumentError, match="expected tls://host:port with --tls-ca"):
        check_address("tcp://a:1", tls)

"""Connections to a server over TLS."""

import shutil
import subprocess

import pytest
from conftest import BANK

import lockwork

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not in PATH")


def certificate(folder, name):
    """A certificate for a name that signs itself, and its key."""
    folder.mkdir(exist_ok=True)
    pair = folder / "certificate.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=server"]
    made += ["-addext", f"subjectAltName={name}", "-out", pair[0], "-keyout", pair[1]]
    subprocess.run(made, check=True, capture_output=True)
    return pair


@pytest.fixture
def start_bank(start_server, tmp_path):
    """Servers with certificates for a name, and the certificates."""

    def start(name="IP:127.0.0.1"):
        own, key = certificate(tmp_path / name.replace(":", "-"), name)
        script = tmp_path / "bank.sql"
        script.write_text(BANK)
        server = start_server("--init", script, "--tls-certificate", own, "--tls-key", key)
        return server.address, own

    return start


def left(*words, **more):
    with lockwork.connect(*words, **more) as database:
        return database.call("transfer", 1, 2, 1).left


def test_certificates_are_verified_as_asked(start_bank, tmp_path):
    address, own = start_bank()
    stranger, _ = certificate(tmp_path / "stranger", "IP:127.0.0.1")
    before = left(address, sslmode="disable")
    assert left(address) == before - 1
    assert left(address, sslmode="require") == before - 2
    assert left(address, sslrootcert=own) == before - 3
    assert left(address, sslmode="verify-full", sslrootcert=str(own)) == before - 4
    assert left(f"postgres://ann@{address}/bank?sslmode=verify-ca&sslrootcert={own}") == before - 5
    # What is said beside a URL is louder.
    assert left(f"postgres://ann@{address}/bank?sslrootcert={stranger}", sslrootcert=own) == before - 6
    with pytest.raises(lockwork.ConnectError, match="signed by nobody whom") as caught:
        left(address, sslrootcert=stranger)
    assert "sslrootcert=FILE" in caught.value.hint and not caught.value.is_retryable
    with pytest.raises(lockwork.ConnectError, match="this system trusts"):
        left(address, sslmode="verify-full")


def test_a_certificate_is_for_a_name(start_bank):
    address, own = start_bank("DNS:elsewhere.example")
    with pytest.raises(lockwork.ConnectError, match="for elsewhere.example, and not for '127.0.0.1'") as caught:
        left(address, sslrootcert=own)
    assert "verify-ca" in caught.value.hint
    left(address, sslmode="verify-ca", sslrootcert=own)


def test_a_server_without_tls_is_told(start_server, tmp_path):
    address = start_server().address
    lockwork.connect(address).close()
    for mode in ["require", "verify-full"]:
        with pytest.raises(lockwork.ConnectError) as caught:
            lockwork.connect(address, sslmode=mode, sslrootcert=certificate(tmp_path, "IP:127.0.0.1")[0])
        assert "the server has no TLS" in caught.value.message and "--tls-certificate" in caught.value.hint


@pytest.mark.parametrize(
    ("words", "why"),
    [({"sslmode": "allow"}, "sslmode is 'allow'"), ({"sslrootcert": "/nowhere.pem"}, "/nowhere.pem: No such file")],
)
def test_what_cannot_be_is_refused(start_server, words, why):
    with pytest.raises(lockwork.DataError, match=why):
        lockwork.connect(start_server().address, **words)


def test_a_password_of_a_url_is_not_shown(start_server):
    address = start_server().address
    with lockwork.connect(f"postgres://ann:se%40cret@{address}/bank?connect_timeout=5") as database:
        assert "cret" not in repr(database) and address in repr(database)
    with pytest.raises(lockwork.Error) as caught:
        lockwork.connect(f"postgres://ann:secret@{address}/bank?nonsense=5")
    assert "nonsense" in str(caught.value) and "secret" not in str(caught.value)

"""Certificates: an authority of this installation's own, and what it signs for the hosts of the proxy."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import certifi
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from airflow_provider_ocidist.emulator import private_files

AUTHORITY_DAYS = 3650
HOST_DAYS = 365
MAX_HOSTS = 100
"""Most hosts whose certificates are kept; a client of OCI asks for a dozen."""
KEY_USES = ("digital_signature", "key_cert_sign", "crl_sign")
OTHER_KEY_USES = (
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "encipher_only",
    "decipher_only",
)


@dataclass(frozen=True, kw_only=True)
class Authority:
    """Signs for any host. Its key is made once for each state folder, and stays there."""

    folder: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    _contexts: dict[str, ssl.SSLContext] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, folder: Path) -> Authority:
        """Read what is in the folder, or make it."""
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / "ca.pem"
        if not path.exists():
            fresh = ec.generate_private_key(ec.SECP256R1())
            private_files.write(
                path, _pem(fresh) + _authority(fresh).public_bytes(serialization.Encoding.PEM)
            )
        content = path.read_bytes()
        key = serialization.load_pem_private_key(content, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        authority = cls(folder=folder, certificate=x509.load_pem_x509_certificate(content), key=key)
        public = authority.certificate.public_bytes(serialization.Encoding.PEM)
        private_files.write(authority.ca_file, public)
        private_files.write(authority.bundle_file, Path(certifi.where()).read_bytes() + b"\n" + public)
        return authority

    @property
    def ca_file(self) -> Path:
        """Trusts this authority alone: a client that bypasses the proxy fails rather than reach the real OCI."""
        return self.folder / "ca.crt"

    @property
    def bundle_file(self) -> Path:
        """Trusts the public authorities as well, for a proxy that lets other hosts through."""
        return self.folder / "ca-bundle.crt"

    def context(self, host: str) -> ssl.SSLContext:
        """Return the server side of TLS for a host; its certificate is made when it is first asked for."""
        context = self._contexts.get(host)
        if context is None:
            # Anybody on this machine may name hosts without end.
            if len(self._contexts) >= MAX_HOSTS:
                del self._contexts[next(iter(self._contexts))]
            context = self._contexts[host] = self._new_context(host)
        return context

    def _new_context(self, host: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        content = _pem(key) + self._certificate(host, key).public_bytes(serialization.Encoding.PEM)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # The standard library reads certificates from files only.
        with tempfile.NamedTemporaryFile(dir=self.folder) as file:
            file.write(content)
            file.flush()
            context.load_cert_chain(file.name)
        context.set_alpn_protocols(["http/1.1"])
        return context

    def _certificate(self, host: str, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
        builder = _builder(host, key, issuer=self.certificate.subject, days=HOST_DAYS)
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        return (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([_alternative(host)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(issuer_key, critical=False)
            .sign(self.key, hashes.SHA256())
        )


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = "ocidist emulator: this installation only"
    uses = {**dict.fromkeys(KEY_USES, True), **dict.fromkeys(OTHER_KEY_USES, False)}
    builder = _builder(name, key, issuer=_name(name), days=AUTHORITY_DAYS)
    return (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**uses), critical=True)
        .sign(key, hashes.SHA256())
    )


def _builder(
    name: str, key: ec.EllipticCurvePrivateKey, *, issuer: x509.Name, days: int
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.timezone.utc)
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(text: str) -> x509.Name:
    # The field holds 64 characters at most; clients look at the alternative name anyway.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )

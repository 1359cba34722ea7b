"""The certificate of the one compute instance, and the authority that vouches for it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from airflow_provider_ocidist.emulator.errors import not_authenticated

AUTHORITY_DAYS = 3650
INSTANCE_HOURS = 24
"""Hours that an instance certificate is valid. The service changes it several times a day; here each start makes a new
one."""
PREFIXES = ("opc-certtype", "opc-tenant", "opc-compartment", "opc-instance")


@dataclass(frozen=True, kw_only=True)
class Instance:
    """The holder that an instance certificate names."""

    id: str
    tenancy_id: str
    compartment_id: str


@dataclass(frozen=True, kw_only=True)
class InstanceAuthority:
    """Issues instance certificates and recognises its own."""

    certificate: x509.Certificate
    key: rsa.RSAPrivateKey = field(repr=False)

    def issue(
        self, instance: Instance, key: rsa.RSAPublicKey, *, hours: float = INSTANCE_HOURS
    ) -> x509.Certificate:
        units = ("instance", instance.tenancy_id, instance.compartment_id, instance.id)
        subject = [
            x509.NameAttribute(NameOID.COMMON_NAME, instance.id[-64:]),
            *(_unit(f"{prefix}:{value}") for prefix, value in zip(PREFIXES, units, strict=True)),
        ]
        valid_for = dt.timedelta(hours=hours)
        builder = _builder(x509.Name(subject), self.certificate.subject, key, valid_for)
        basic = x509.BasicConstraints(ca=False, path_length=None)
        return builder.add_extension(basic, critical=True).sign(self.key, SHA256())

    def recognise(self, certificate: x509.Certificate) -> Instance:
        """Return whose certificate it is. Raises 401 unless it was issued here and is valid now."""
        try:
            certificate.verify_directly_issued_by(self.certificate)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise not_authenticated("the certificate was not issued by this emulator") from error
        now = dt.datetime.now(dt.timezone.utc)
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise not_authenticated(f"the certificate expired at {certificate.not_valid_after_utc:%c}")
        units = dict(_units(certificate))
        if not set(PREFIXES) <= set(units):
            raise not_authenticated("the certificate's subject names no instance")
        return Instance(
            id=units["opc-instance"],
            tenancy_id=units["opc-tenant"],
            compartment_id=units["opc-compartment"],
        )


def make_authority(key: rsa.RSAPrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ocidist emulator: instances")])
    builder = _builder(name, name, key.public_key(), dt.timedelta(days=AUTHORITY_DAYS))
    basic = x509.BasicConstraints(ca=True, path_length=0)
    return builder.add_extension(basic, critical=True).sign(key, SHA256())


def certificate_pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _builder(
    subject: x509.Name, issuer: x509.Name, key: rsa.RSAPublicKey, valid_for: dt.timedelta
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + valid_for)
    )


def _unit(text: str) -> x509.NameAttribute[str]:
    return x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, text)


def _units(certificate: x509.Certificate) -> list[tuple[str, str]]:
    names = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    return [(prefix, value) for prefix, _, value in (str(each.value).partition(":") for each in names)]

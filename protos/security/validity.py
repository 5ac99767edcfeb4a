"""Until when a certificate is valid, found out as a peer would: by a handshake, in memory.

The standard library reads a certificate's dates only of a peer that it has checked. So both ends are played
here, and the other end trusts the certificate itself: whether an authority vouches for it is not asked.
"""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from algebra.errors import ConfigurationError

_FLIGHTS = 3
"""Turns that a handshake takes at most; TLS 1.2 takes the most."""


def valid_until(certificate: Path, key: Path, *, server: bool) -> datetime.datetime:
    """When a server's, or a client's, certificate ends; ConfigurationError if no peer would take it now."""
    try:
        return _valid_until(certificate, key, server)
    except ssl.SSLCertVerificationError as error:
        raise ConfigurationError(f"{certificate}: {error.verify_message}") from None
    except (ssl.SSLError, OSError, ValueError):
        raise ConfigurationError(f"{certificate} and {key} serve no connection by TLS") from None


def _valid_until(certificate: Path, key: Path, server: bool) -> datetime.datetime:
    holder = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    holder.check_hostname, holder.verify_mode = False, ssl.CERT_NONE
    holder.load_cert_chain(certificate, key, password=lambda: b"")
    peer = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if server else ssl.PROTOCOL_TLS_SERVER)
    peer.check_hostname, peer.verify_mode = False, ssl.CERT_REQUIRED
    peer.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    peer.load_verify_locations(certificate)
    if not server:
        # A server needs a certificate of its own; here the same one will do, for nobody looks at it.
        peer.load_cert_chain(certificate, key, password=lambda: b"")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        holder.wrap_bio(there, back, server_side=server),
        peer.wrap_bio(back, there, server_side=not server),
    ]
    for _ in range(_FLIGHTS):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = ends[1].getpeercert()
    assert found is not None
    return datetime.datetime.fromtimestamp(ssl.cert_time_to_seconds(str(found["notAfter"])), datetime.UTC)

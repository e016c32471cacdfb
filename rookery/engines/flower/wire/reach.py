"""Whether a SuperLink can be reached, and is the one that was meant."""

import http.client
import ssl
import time
import urllib.error
import urllib.request
from typing import Any


class NotAdmitted(ConnectionError):
    """A SuperLink does not let a node (or the server) in, or is not the one that was meant."""


def wait_until_reachable(address: str, certificates: bytes | None, patience: float = 60.0) -> None:
    """Waits until a SuperLink answers at HOST:PORT, with TLS if there is a root certificate.

    Raises:
        NotAdmitted: it is another one than the certificate says, or one speaks TLS and the other does not.
    """
    context = None if certificates is None else ssl.create_default_context(cadata=certificates.decode())
    url = f"{'http' if certificates is None else 'https'}://{address}/health"
    end, cut_off = time.monotonic() + patience, 0
    while True:
        problem: Any = None
        try:
            with urllib.request.urlopen(url, timeout=5, context=context):
                return
        except urllib.error.HTTPError:
            return  # somebody answers
        except urllib.error.URLError as error:
            problem = error.reason
        except (http.client.HTTPException, OSError) as error:
            problem = error
        if isinstance(problem, ssl.SSLCertVerificationError):
            raise NotAdmitted(f"the certificate of {address} is not trusted: {problem.verify_message}")
        if isinstance(problem, ssl.SSLError):
            raise NotAdmitted(f"{address} does not speak TLS as asked for: {problem.reason or problem}")
        cut_off += isinstance(problem, http.client.HTTPException | ConnectionResetError)
        if cut_off >= 3 and certificates is None:
            raise NotAdmitted(f"{address} does not speak plain text: give the root certificate of its TLS")
        if time.monotonic() > end:
            raise NotAdmitted(f"nobody answers at {address} after {patience:g} s: {problem}")
        time.sleep(0.2)

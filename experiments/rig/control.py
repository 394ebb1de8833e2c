"""What a daemon tells on its control socket, which is HTTP.

Owns a connection for as long as an answer takes. Never changes anything. Invariant: whatever keeps the answer away is
`Stopped`, with what was asked for.
"""

import http.client
import json
import socket

from .process import Stopped


class Connection(http.client.HTTPConnection):
    """HTTP on a unix socket."""

    def __init__(self, path, seconds):
        super().__init__("localhost", timeout=seconds)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def get(control, path, seconds=60):
    """What the daemon at the socket `control` answers to GET `path`."""
    connection = Connection(control, seconds)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException) as e:
        raise Stopped(f"undercroft does not answer {path}: {e}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise Stopped(f"undercroft answers {path} with {answer.status}: {text.decode(errors='replace').strip()}")
    return json.loads(text)

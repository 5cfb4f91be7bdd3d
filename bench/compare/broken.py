"""A sidecar with a broken network: the command itself, but all that it sends to a provider goes to another port.

    python -m bench.compare.broken PORT run --policies ...

Its policy stays that of its fleet, as it would where a cable is bad: an upstream of its own would make its operations
strangers to the others.
"""

from __future__ import annotations

import socket
import sys

from paywitness.cli.main import main
from paywitness.upstream import dial

if __name__ == "__main__":
    elsewhere = (socket.AF_INET, ("127.0.0.1", int(sys.argv[1])))
    setattr(dial, "_literal", lambda origin: elsewhere)  # noqa: B010  # what it dials, in place of the provider's address
    main(sys.argv[2:])

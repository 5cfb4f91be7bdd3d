"""What is kept finite towards a provider: connections, waiting calls, the age of a connection, a response's size."""

from __future__ import annotations

from paywitness.core.record import record


@record
class UpstreamLimits:
    """What is kept finite."""

    connections_per_origin: int = 256
    waiting_per_origin: int = 1024
    idle_s: float = 4.0  # below the 5 s of common servers: whoever closes first must be us
    age_s: float = 300.0  # so that a change of DNS is noticed
    calls_per_connection: int = 1000  # nginx closes after 1000
    response_bytes_max: int = 4 * 1024 * 1024

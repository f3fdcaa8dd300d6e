"""Room for the data of requests, and the words for what is not let in."""

from __future__ import annotations

from dataclasses import dataclass

from ortune.protocol.status import Refused, Status

NOT_READY = "Server not ready"
FULL = "Exceeds maximum queue size"
LATE = "Request timeout expired"


@dataclass(eq=False, slots=True)
class Room:
    """Memory for the data of requests that are not answered yet.

    Attributes:
        most: Bytes.
        held: Of them.
    """

    most: int
    held: int = 0

    def take(self, size: int) -> None:
        """Hold so many bytes.

        Raises:
            Refused: There is no room for them beside others.
        """
        if self.held and self.held + size > self.most:
            raise Refused(FULL, Status.UNAVAILABLE)
        self.held += size

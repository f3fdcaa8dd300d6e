"""Clients that hang or go away: their requests are given up."""

from __future__ import annotations

import asyncio

from ortune.server.http.exchange import Exchange

PATIENCE_S = 0.1
"""Seconds before a client is looked after: most are answered by then, and looking costs more."""
PERIOD_S = 10.0
"""Seconds that a body may take, or so much of it as `RATE` says."""
RATE = 1 << 14
"""Bytes a second that a client sends at least, where its body takes longer."""


class ClientWatch:
    """Cancels the task that answers a request when nobody will get its answer.

    A body has to come, and go on coming, in time. Once it is here, its client has to stay.
    """

    def __init__(self, exchange: Exchange) -> None:
        loop = asyncio.get_running_loop()
        self._exchange, self._answering = exchange, asyncio.current_task()
        self._timer = loop.call_later(PATIENCE_S, self._begin)
        self._looking: asyncio.Task[None] | None = None

    def end(self) -> None:
        """Look no more."""
        self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()

    def _begin(self) -> None:
        self._looking = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        exchange = self._exchange
        while exchange.pending:
            before = exchange.received
            await asyncio.sleep(PERIOD_S)
            if exchange.pending and exchange.received < before + RATE * PERIOD_S:
                exchange.late = True
                break
        else:
            while (await exchange.receive())["type"] != "http.disconnect":
                pass
            exchange.gone = True
        if self._answering is not None:
            self._answering.cancel()

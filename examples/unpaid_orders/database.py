"""Where orders are kept."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from examples.unpaid_orders.order import Base
from examples.unpaid_orders.settings import ShopSettings


class Database:
    """A bounded pool of connections: what a parked request must not hold one of."""

    def __init__(self, settings: ShopSettings) -> None:
        """Connect to nothing yet."""
        self.pool_size = settings.connections
        self._engine = create_async_engine(
            f"sqlite+aiosqlite:///{settings.database}",
            poolclass=AsyncAdaptedQueuePool,
            pool_size=settings.connections,
            max_overflow=0,
            pool_timeout=settings.connection_timeout,
        )
        # Values stay readable once the session, and with it the connection, is given back.
        self.session: async_sessionmaker[AsyncSession] = async_sessionmaker(
            self._engine, expire_on_commit=False
        )

    @property
    def in_use(self) -> int:
        """How many connections are lent out at this moment."""
        pool = self._engine.pool
        assert isinstance(pool, AsyncAdaptedQueuePool)
        return pool.checkedout()

    async def create_tables(self) -> None:
        """Make what is not there yet."""
        async with self._engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()

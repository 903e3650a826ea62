"""The database of the shop."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from examples.unpaid_orders.order import Base
from examples.unpaid_orders.settings import ShopSettings


class Database:
    """A pool of a fixed number of connections, none of which a parked request may hold."""

    def __init__(self, settings: ShopSettings) -> None:
        """Create the pool without connecting."""
        self.pool_size = settings.connections
        self.url = f"sqlite+aiosqlite:///{settings.database}"
        self._engine = create_async_engine(
            self.url,
            poolclass=AsyncAdaptedQueuePool,
            pool_size=settings.connections,
            max_overflow=0,
            pool_timeout=settings.connection_timeout,
            connect_args={"timeout": settings.connection_timeout},
        )
        # Values stay readable after the session and its connection are returned.
        self.session: async_sessionmaker[AsyncSession] = async_sessionmaker(
            self._engine, expire_on_commit=False
        )

    @property
    def in_use(self) -> int:
        """The number of connections that are in use."""
        pool = self._engine.pool
        assert isinstance(pool, AsyncAdaptedQueuePool)
        return pool.checkedout()

    async def create_tables(self) -> None:
        """Create missing tables."""
        async with self._engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()

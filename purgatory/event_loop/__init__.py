"""Operations on an asyncio event loop: expiration, parking with futures, work in slices.

Here: what needs a running loop, apart from coroutines that users call (`purgatory.purgatory`). Not
here: operations and keys (`operations`), what fired (`signals`).
"""

"""Operations on an asyncio event loop: expiration, parking with futures, work in slices.

Here: code that needs a running loop. Not here: coroutines that users call (`purgatory.purgatory`),
operations and keys (`operations`), signals (`signals`).
"""

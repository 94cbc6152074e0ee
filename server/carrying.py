"""A caller's connection and the server's behind the gate, joined by a filter."""

from collections.abc import Awaitable, Callable

from hansa.splice import CHUNK, Stream, carry_on
from server.requestfilter import Moves, RequestFilter


async def carry(
    ends: tuple[Stream, Stream],
    sieve: RequestFilter,
    welcome: Callable[[], object],
    note: Callable[[str], None],
    idle: float,
    limit: Callable[[], Awaitable[bool]] | None = None,
) -> None:
    """Carries what passes, until an end closes or both are silent for `idle` seconds.

    Args:
        ends: the caller's and the server's; both are closed.
        sieve: what passes.
        welcome: raises if the caller is not let in any more; called each time that something comes.
        note: gets a line when something is refused.
        idle: seconds.
        limit: when it returns, the connection is over.
    """
    caller, server = ends

    async def make(moves: Moves) -> bool:
        await server.send(moves.to_server)
        await caller.send(moves.to_caller)
        if moves.refused:
            note(moves.refused)
        return not moves.over

    async def up() -> bool:
        data = await caller.reader.read(CHUNK)
        welcome()
        return await make(sieve.from_caller(data))

    async def down() -> bool:
        data = await server.reader.read(CHUNK)
        welcome()
        return await make(sieve.from_server(data))

    await carry_on([up, down, *([limit] if limit else [])], [caller, server], idle)

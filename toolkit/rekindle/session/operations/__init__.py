"""Operations on the engine of a session, each awaitable or blocking: weights, cache, adapters, inspections."""

from collections.abc import Callable
from typing import Any, Self, TypeAlias

Owner: TypeAlias = tuple[tuple[bytes, ...], Callable[[str], bool]]

class Schema:
    def __new__(cls, messages: tuple[tuple[bool, tuple[tuple[int, ...], ...]], ...], /) -> Self: ...
    def scan(self, data: bytes, /) -> int | None: ...

class Filter:
    def __new__(
        cls,
        schema: Schema,
        owners: tuple[Owner, Owner, Owner],
        stack: bytes,
        max_body: int,
        max_stack: int,
        max_value: int,
        body: int,
        scalars_only: bool,
        seed: int,
        /,
    ) -> Self: ...
    def run(self, data: bytes, /) -> tuple[bytes, dict[str, int], int] | None: ...

class Reader:
    def __new__(cls, schema: Schema, layouts: tuple[tuple[Any, ...], ...], /) -> Self: ...
    def read(self, data: bytes, /) -> Any: ...

from collections.abc import Callable

_Field = tuple[int, int, int, int, bool, bool, bool, int, int]
_Owner = tuple[tuple[bytes, ...], Callable[[str], bool]]

class Schema:
    def __new__(cls, messages: tuple[tuple[bool, tuple[_Field, ...]], ...], /) -> Schema: ...
    def scan(self, data: bytes, /) -> int | None: ...

class Filter:
    def __new__(
        cls,
        schema: Schema,
        owners: tuple[_Owner, _Owner, _Owner],
        stack: bytes,
        max_body: int,
        max_stack: int,
        max_value: int,
        body: int,
        scalars_only: bool,
        seed: int,
        /,
    ) -> Filter: ...
    def run(self, data: bytes, /) -> tuple[bytes, dict[str, int], int] | None: ...

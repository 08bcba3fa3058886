"""Values with a unit, as a person writes them: durations, sizes, ratios, rates, endpoints, secrets.

Each type is made from what the document says (`Duration("1m30s")`) and raises ValueError with a message that shows a
right form. All are immutable and compare by value, so that two equal settings are equal.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final, Self
from urllib.parse import urlsplit

_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h|d)")
_BYTES: Final = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "ki": 2**10, "kib": 2**10, "mi": 2**20, "mib": 2**20, "gi": 2**30, "gib": 2**30, "ti": 2**40, "tib": 2**40,
}  # fmt: skip
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)")
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*(ms|s|m|h|d)")


class Duration(float):
    """Seconds. Written as the Collector's durations are: `200ms`, `1m30s`, `1.5h`; only 0 needs no unit."""

    __slots__ = ()
    form: ClassVar[str] = "a duration such as 200ms, 5s or 1m30s"

    def __new__(cls, value: str | float) -> Self:
        """Read text, or take seconds.

        Raises:
            ValueError: the text is not a duration, or the duration is negative.
        """
        if not isinstance(value, str):
            seconds = float(value)
        elif value.strip() in {"0", ""}:
            seconds = _zero(value, "a duration such as 200ms, 5s or 1m30s")
        else:
            seconds = _sum_of_parts(value.strip())
        if seconds < 0:
            raise ValueError(f"{value!r} is negative; write a duration such as 5s")
        return super().__new__(cls, seconds)

    def __str__(self) -> str:
        """The shortest usual spelling: `1m30s`, `200ms`."""
        seconds = float(self)
        if seconds == 0:
            return "0s"
        if seconds < 1:
            return f"{seconds * 1000:g}ms"
        text = ""
        for unit, size in (("h", 3600), ("m", 60)):
            whole = int(seconds // size)
            if whole:
                text += f"{whole}{unit}"
                seconds -= whole * size
        return text + (f"{seconds:g}s" if seconds or not text else "")

    def __repr__(self) -> str:
        return f"Duration({str(self)!r})"


def _zero(value: str, right: str) -> float:
    if not value.strip():
        raise ValueError(f"empty; write {right}")
    return 0.0


def _sum_of_parts(text: str) -> float:
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration; write for example 200ms, 5s or 1m30s")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


class Size(int):
    """Bytes. `64MiB`, `512k` (decimal), or a plain number of bytes."""

    __slots__ = ()
    form: ClassVar[str] = "a size such as 64MiB, 512KiB or a number of bytes"

    def __new__(cls, value: str | int) -> Self:
        """Read text, or take bytes.

        Raises:
            ValueError: the text is not a size.
        """
        if isinstance(value, str):
            match = _SIZE.fullmatch(value.strip())
            factor = _BYTES.get(match[2].lower()) if match else None
            if match is None or factor is None:
                raise ValueError(f"{value!r} is not a size; write for example 64MiB, 512KiB or a number of bytes")
            value = int(float(match[1]) * factor)
        if value < 0:
            raise ValueError(f"{value} is negative; write a size such as 64MiB")
        return super().__new__(cls, value)

    def __str__(self) -> str:
        for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
            if self >= factor and self % (factor // 16) == 0:
                return f"{int(self) / factor:g}{unit}"
        return f"{int(self)}"

    def __repr__(self) -> str:
        return f"Size({str(self)!r})"


class Ratio(float):
    """A share between 0 and 1. `0.25` or `25%`."""

    __slots__ = ()
    form: ClassVar[str] = "a ratio such as 0.25 or 25%"
    takes_numbers: ClassVar[bool] = True

    def __new__(cls, value: str | float) -> Self:
        """Read text or a number.

        Raises:
            ValueError: not a number, or outside 0 to 1.
        """
        try:
            if isinstance(value, str) and value.strip().endswith("%"):
                number = float(value.strip()[:-1]) / 100
            else:
                number = float(value)
        except ValueError:
            raise ValueError(f"{value!r} is not a ratio; write for example 0.25 or 25%") from None
        if not 0 <= number <= 1:
            raise ValueError(f"{value} is outside 0 to 1; write for example 0.25 or 25%")
        return super().__new__(cls, number)

    def __str__(self) -> str:
        return f"{float(self):g}"


class Rate(float):
    """A number per second. `100/m`, `5/s`, `1000/h`."""

    __slots__ = ()
    form: ClassVar[str] = "a rate such as 100/m, 5/s or 1000/h"

    def __new__(cls, value: str | float) -> Self:
        """Read text, or take a number per second.

        Raises:
            ValueError: the text is not a rate, or the rate is not above 0.
        """
        if isinstance(value, str):
            match = _RATE.fullmatch(value.strip())
            if match is None:
                raise ValueError(f"{value!r} is not a rate; write for example 100/m, 5/s or 1000/h")
            value = float(match[1]) / _SECONDS[match[2]]
        if value <= 0:
            raise ValueError("a rate must be above 0; to refuse everything, leave the component out")
        return super().__new__(cls, value)

    def __str__(self) -> str:
        """In the largest usual unit that gives a whole number: `100/m`."""
        for unit in ("s", "m", "h"):
            number = float(self) * _SECONDS[unit]
            if abs(number - round(number)) < 1e-9 * max(1.0, number):
                return f"{round(number)}/{unit}"
        return f"{float(self):g}/s"

    def __repr__(self) -> str:
        return f"Rate({str(self)!r})"


class Endpoint(str):
    """Where a component listens: `host:port`, `:port` (localhost) or `unix:///path`.

    Two endpoints that mean the same address are equal: components that name the same one share its listener.
    """

    __slots__ = ("host", "path", "port")
    form: ClassVar[str] = "an address such as localhost:4318, 0.0.0.0:4318 or unix:///run/sidecar/otlp.sock"
    host: str
    port: int
    path: str | None

    def __new__(cls, value: str) -> Self:
        """Read text.

        Raises:
            ValueError: no port, a port outside 0 to 65535, or an empty path.
        """
        host, port, path = _split_endpoint(value.strip())
        self = super().__new__(
            cls, f"unix://{path}" if path else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        )
        self.host, self.port, self.path = host, port, path
        return self

    def __getnewargs__(self) -> tuple[str]:
        return (str(self),)


def _split_endpoint(text: str) -> tuple[str, int, str | None]:
    right = "write for example localhost:4318, 0.0.0.0:4318 or unix:///run/sidecar/otlp.sock"
    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        if not path:
            raise ValueError(f"{text!r} has no path; {right}")
        return "", 0, path
    if "://" in text:
        raise ValueError(f"{text!r} is a URL, and a listener takes host:port; {right}")
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isascii() or not port.isdigit():
        raise ValueError(f"{text!r} has no port; {right}")
    if int(port) > 65535:
        raise ValueError(f"port {port} is above 65535; {right}")
    return host or "localhost", int(port), None


class Url(str):
    """Where a component sends over HTTP: `http://host:port/path` or `https://…`. Without a trailing slash."""

    __slots__ = ()
    form: ClassVar[str] = "a URL such as http://localhost:4318 or https://host/path"

    def __new__(cls, value: str) -> Self:
        """Read text.

        Raises:
            ValueError: not an http or https URL with a host.
        """
        text = value.strip().rstrip("/")
        try:
            parts = urlsplit(text)
            usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
            _ = parts.port
        except ValueError:
            usable = False
        if not usable:
            raise ValueError(f"{value!r} is not a URL; write for example http://localhost:4318 or https://host/path")
        return super().__new__(cls, text)


class Secret:
    """A text that must not be seen. Its repr and every dump show `[REDACTED]`; `reveal()` gives it to the wire."""

    __slots__ = ("_text",)
    form: ClassVar[str] = "a text"

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself. Call it where it goes onto the wire and nowhere else."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "[REDACTED]" if self._text else "''"

    __str__ = __repr__

    def __reduce__(self) -> Any:
        raise TypeError("a secret can't be serialized")

"""Values with a unit, as a person writes them: durations, sizes, ratios, rates, endpoints, secrets.

Each type is made from what the document says (`Duration("1m30s")`) and raises ValueError with a message that shows a
right form. All are immutable and compare by value, so that two equal settings are equal.

A plugin may have types of its own: a class that is made from text, raises ValueError, and has a `str` that reads as the
same value. Optional class attributes are `form` (what a value looks like, in words), `pattern` (the same as a regular
expression, for the JSON Schema) and `takes_numbers` (whether a number need not be quoted).
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, ClassVar, Final, Self
from urllib.parse import urlsplit

_SECONDS: Final = {
    "ns": Decimal("1e-9"), "us": Decimal("1e-6"), "µs": Decimal("1e-6"), "ms": Decimal("1e-3"),
    "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600), "d": Decimal(86400),
}  # fmt: skip
_NUMBER: Final = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_PART: Final = re.compile(rf"({_NUMBER})(ns|us|µs|ms|s|m|h|d)")
_BYTES: Final = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "ki": 2**10, "kib": 2**10, "mi": 2**20, "mib": 2**20, "gi": 2**30, "gib": 2**30, "ti": 2**40, "tib": 2**40,
}  # fmt: skip
_SIZE: Final = re.compile(rf"({_NUMBER})\s*([a-zA-Z]*)")
_RATE: Final = re.compile(rf"({_NUMBER})\s*/\s*(ms|s|m|h|d)")

# What 64 bits hold, as in the Collector: nanoseconds, and bytes.
_LONGEST: Final = 2**63 / 1e9
_LARGEST: Final = 2**63


def _short(number: float) -> str:
    return f"{number:.6f}".rstrip("0").rstrip(".")


class Duration(float):
    """Seconds. Written as the Collector's durations are: `200ms`, `1m30s`, `1.5h`; only 0 needs no unit."""

    __slots__ = ()
    form: ClassVar[str] = "a duration such as 200ms, 5s or 1m30s"
    pattern: ClassVar[str] = rf"^(0|({_NUMBER}(ns|us|µs|ms|s|m|h|d))+)$"

    def __new__(cls, value: str | float) -> Self:
        """Read text, or take seconds.

        Raises:
            ValueError: the text is not a duration, or the duration is negative or longer than 292 years.
        """
        seconds = cls._read(value.strip()) if isinstance(value, str) else float(value)
        if not 0 <= seconds < _LONGEST:
            raise ValueError(f"{value!r} is not {cls.form}: it must be from 0 to 292 years")
        return super().__new__(cls, seconds)

    @classmethod
    def _read(cls, text: str) -> float:
        if text == "0":
            return 0.0
        parts = _PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            advice = f": a bare number needs a unit, for example {text}s" if text.isdecimal() else ""
            raise ValueError(f"{text!r} is not {cls.form}{advice}")
        return float(sum(Decimal(number) * _SECONDS[unit] for number, unit in parts))

    def __str__(self) -> str:
        """The shortest usual spelling that reads as exactly this duration: `1m30s`, `200ms`."""
        seconds = float(self)
        if seconds < 1:
            text = f"{_short(seconds * 1000)}ms" if seconds else "0s"
        else:
            minutes, rest = divmod(seconds, 60)
            hours, minutes = divmod(int(minutes), 60)
            parts = ((f"{hours}h", hours), (f"{minutes}m", minutes), (f"{_short(rest)}s", rest))
            text = "".join(part for part, number in parts if number)
        return text if Duration._read(text) == seconds else f"{Decimal(repr(seconds)):f}s"

    def __repr__(self) -> str:
        return f"Duration({str(self)!r})"


class Size(int):
    """Bytes. `64MiB`, `512k` (decimal), or a plain number of bytes."""

    __slots__ = ()
    form: ClassVar[str] = "a size such as 64MiB, 512KiB or a number of bytes"
    pattern: ClassVar[str] = rf"^{_NUMBER}\s*([kKmMgGtT][iI]?)?[bB]?$"

    def __new__(cls, value: str | int) -> Self:
        """Read text, or take bytes.

        Raises:
            ValueError: the text is not a size, or the size is negative or over 8 EiB.
        """
        size = cls._read(value.strip()) if isinstance(value, str) else value
        if not 0 <= size < _LARGEST:
            raise ValueError(f"{value!r} is not {cls.form}: it must be from 0 to 8 EiB")
        return super().__new__(cls, size)

    @classmethod
    def _read(cls, text: str) -> int:
        match = _SIZE.fullmatch(text)
        factor = _BYTES.get(match[2].lower()) if match else None
        if match is None or factor is None:
            raise ValueError(f"{text!r} is not {cls.form}")
        return int(Decimal(match[1]) * factor)

    def __str__(self) -> str:
        """The shortest usual spelling that reads as exactly this size: `64MiB`, `1.5GiB`."""
        for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
            text = f"{_short(int(self) / factor)}{unit}"
            if self >= factor and Size._read(text) == int(self):
                return text
        return f"{int(self)}"

    def __repr__(self) -> str:
        return f"Size({str(self)!r})"


class Ratio(float):
    """A share between 0 and 1. `0.25` or `25%`."""

    __slots__ = ()
    form: ClassVar[str] = "a ratio such as 0.25 or 25%"
    pattern: ClassVar[str] = rf"^{_NUMBER}%?$"
    takes_numbers: ClassVar[bool] = True

    def __new__(cls, value: str | float) -> Self:
        """Read text or a number.

        Raises:
            ValueError: not a number, or outside 0 to 1.
        """
        try:
            text = value.strip() if isinstance(value, str) else ""
            number = float(text[:-1]) / 100 if text.endswith("%") else float(value)
        except ValueError:
            raise ValueError(f"{value!r} is not {cls.form}") from None
        if not 0 <= number <= 1:
            raise ValueError(f"{value!r} is not {cls.form}: it must be from 0 to 1")
        return super().__new__(cls, number)

    def __str__(self) -> str:
        return f"{float(self)!r}"

    def __repr__(self) -> str:
        return f"Ratio({float(self)!r})"


class Rate(float):
    """A number per second. `100/m`, `5/s`, `1000/h`."""

    __slots__ = ()
    form: ClassVar[str] = "a rate such as 100/m, 5/s or 1000/h"
    pattern: ClassVar[str] = rf"^{_NUMBER}\s*/\s*(ms|s|m|h|d)$"

    def __new__(cls, value: str | float) -> Self:
        """Read text, or take a number per second.

        Raises:
            ValueError: the text is not a rate, or the rate is not above 0.
        """
        per_second = cls._read(value.strip()) if isinstance(value, str) else value
        if not 0 < per_second < _LARGEST:
            raise ValueError(f"{value!r} is not {cls.form}: it must be above 0; to refuse everything, leave it out")
        return super().__new__(cls, per_second)

    @classmethod
    def _read(cls, text: str) -> float:
        match = _RATE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not {cls.form}")
        return float(Decimal(match[1]) / _SECONDS[match[2]])

    def __str__(self) -> str:
        """In the largest usual unit that reads as exactly this rate: `100/m`."""
        for unit in ("s", "m", "h", "d"):
            text = f"{round(float(self) * float(_SECONDS[unit]))}/{unit}"
            if Rate._read(text) == float(self):
                return text
        return f"{Decimal(repr(float(self))):f}/s"

    def __repr__(self) -> str:
        return f"Rate({str(self)!r})"


class Endpoint(str):
    """Where a component listens: `host:port`, `:port` (localhost), `unix:///path` or, as the Collector has it, `/path`.

    Two endpoints that mean the same address are equal: components that name the same one share its listener.
    """

    __slots__ = ("host", "path", "port")
    pattern: ClassVar[str] = r"^(unix:.+|/.+|[^\s/@]*:[0-9]{1,5})$"
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
    right = f"write {Endpoint.form}"
    if text.startswith("/"):
        return "", 0, text
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
    if re.search(r"[\s/@]", host):
        raise ValueError(f"{text!r} has no usable host; {right}")
    if len(port) > 5 or int(port) > 65535:
        raise ValueError(f"port {port} is above 65535; {right}")
    return host.lower() or "localhost", int(port), None


class Url(str):
    """Where a component sends over HTTP: `http://host:port/path` or `https://…`. Without a trailing slash."""

    __slots__ = ()
    pattern: ClassVar[str] = r"^https?://\S+$"
    form: ClassVar[str] = "a URL such as http://localhost:4318 or https://host/path"

    def __new__(cls, value: str) -> Self:
        """Read text.

        Raises:
            ValueError: not an http or https URL with a host.
        """
        text = value.strip().rstrip("/")
        try:
            parts = urlsplit(text)
            usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and not re.search(r"\s", text)
            _ = parts.port
        except ValueError:
            usable = False
        if not usable:
            raise ValueError(f"{without_password(value)!r} is not {cls.form}")
        return super().__new__(cls, text)


def without_password(url: str) -> str:
    """A URL that may be seen: what stands before the host as user and password is left out."""
    return re.sub(r"//[^/@]*@", "//[REDACTED]@", url)


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

"""What OTLP and its transports ask of a server, as a list of numbered items; tests carry the numbers.

| items | of what | tests |
|---|---|---|
| 1 to 15 | success, empty requests, partial success | `test_otlp_success.py` |
| 16 to 29 | content types, methods, paths | `test_otlp_content.py` |
| 30 to 41 | bad data | `test_otlp_bad_data.py` |
| 42 to 61 | the JSON mapping | `test_otlp_json.py`; 46 in `test_otlp_profiles.py` |
| 62 to 75 | compression and sizes | `test_otlp_compression.py` |
| 76 to 83 | overload, refusals, the end | `test_otlp_throttling.py` |
| 84 to 96 | gRPC | `test_otlp_grpc.py` |
| 97 to 107 | HTTP, browsers, TLS, Unix sockets | `test_otlp_http.py` |
| 108 to 112 | profiles | `test_otlp_profiles.py`; 112 in `test_otlp_json.py` |

Two items are about clients: 14 is held to a real one, and of 82 the server's part is tested. Where a real client's side
matters beyond that, see `tests/e2e/test_clients_*.py`.
"""

import re
from collections import defaultdict
from pathlib import Path

ITEMS = range(1, 113)
FOLDER = Path(__file__).parent


def files_by_item():
    """The files in which an item has a test."""
    found = defaultdict(set)
    for file in FOLDER.glob("test_otlp_*.py"):
        for numbers in re.findall(r"^(?:async )?def test((?:_\d{3})+)_", file.read_text(), re.MULTILINE):
            for number in re.findall(r"\d{3}", numbers):
                found[int(number)].add(file.name)
    return found


def test_every_item_has_a_test():
    """And no test has a number that stands for nothing."""
    assert sorted(files_by_item()) == list(ITEMS)


def test_the_list_above_tells_where():
    """Each file that the table names exists, and holds a test of each item that it is named for."""
    found = files_by_item()
    rows = re.findall(r"^\| (\d+) to (\d+) \|.*\| (.*) \|$", __doc__, re.MULTILINE)
    for first, last, files in rows:
        named = set(re.findall(r"`(test_\w+\.py)`", files))
        for item in range(int(first), int(last) + 1):
            assert found[item] & named, f"item {item}: {sorted(found[item])}, not {sorted(named)}"
    assert [item for first, last, _ in rows for item in range(int(first), int(last) + 1)] == list(ITEMS)

"""One queue as a SQLite file: order, checksums, dead letters, damage."""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
from contextlib import closing

import pytest
from support.otlp import bodies, logs, metrics, traces

from sidecar import BatchContext, Identity, Signal
from sidecar.errors import StorageError
from sidecar.storage import QueueFile


@pytest.fixture
def path(tmp_path):
    """Where the file is."""
    return tmp_path / "exporter.queue"


def store(file: QueueFile, *batches) -> list[int]:
    """Append with severity 9."""
    return file.change([(batch, 9) for batch in batches])


def test_what_is_stored_is_there_after_opening_again(path):
    """Bytes, order, counts and context survive."""
    context = BatchContext(
        identity=Identity("provider", "p1", "tok:1", "acct"),
        peer="10.0.0.1",
        metadata={"x-team": "a"},
        transport="grpc",
    )
    with closing(QueueFile(path)) as file:
        store(file, logs(2, context=context), traces(1), metrics(3))
    with closing(QueueFile(path)) as file:
        rows = file.rows(after=0, limit=10)
        assert [(Signal.LOGS, 2), (Signal.TRACES, 1), (Signal.METRICS, 3)] == [(row.signal, row.items) for row in rows]
        first = file.read(rows[0].id)
        assert first.encode() == logs(2).encode()
        assert first.context == context
        assert file.totals()[:2] == (3, 6)


def test_ids_are_never_used_again(path):
    """The order stays right although the newest row was deleted before a restart."""
    with closing(QueueFile(path)) as file:
        ids = store(file, logs(1), logs(1))
        file.change([], gone=ids)
    with closing(QueueFile(path)) as file:
        assert store(file, logs(1))[0] > ids[-1]


def test_attempts_are_counted(path):
    """A failed attempt is noted in the row."""
    with closing(QueueFile(path)) as file:
        (id_,) = store(file, logs(1))
        file.change([], tried=[id_])
        assert [1] == [row.attempts for row in file.rows(0, 10)]


def test_a_row_that_does_not_match_its_checksum_is_set_aside(path):
    """One flipped byte costs that request alone, and it can be looked at."""
    with closing(QueueFile(path)) as file:
        bad, good = store(file, logs(1, body="bad"), logs(1, body="good"))
    with closing(sqlite3.connect(path)) as raw:
        (data,) = raw.execute("SELECT data FROM batches WHERE id = ?", (bad,)).fetchone()
        raw.execute("UPDATE batches SET data = ? WHERE id = ?", (data[:-1] + bytes([data[-1] ^ 1]), bad))
        raw.commit()
    with closing(QueueFile(path)) as file:
        assert file.read(bad) is None
        assert bodies(file.read(good)) == ["good 0"]
        assert [("corrupt", 1)] == [(letter.reason, letter.items) for letter in file.dead_letters()]


def test_dead_letters_can_be_looked_at_and_sent_again(path):
    """What was set aside goes back to the end of the queue."""
    with closing(QueueFile(path)) as file:
        first, _ = store(file, logs(1, body="first"), logs(1, body="second"))
        file.bury([first], "rejected", "the intake said no")
        (letter,) = file.dead_letters()
        assert (letter.reason, letter.message) == ("rejected", "the intake said no")
        assert bodies(file.dead_letter(letter.id)) == ["first 0"]
        assert file.replay() == 1
        assert file.dead_letters() == []
        texts = [bodies(file.read(row.id))[0] for row in file.rows(0, 10)]
        assert texts == ["second 0", "first 0"]


def test_purging_says_how_many(path):
    """Deleting everything of one kind leaves the other."""
    with closing(QueueFile(path)) as file:
        ids = store(file, logs(1), logs(1), logs(1))
        file.bury(ids[:1], "rejected", "")
        assert file.purge("dead_letters") == 1
        assert file.totals()[0] == 2


def test_a_damaged_file_is_moved_aside_and_what_can_be_read_goes_on(path):
    """Broken pages never stop the sidecar; the other requests are kept, in order."""
    with closing(QueueFile(path)) as file:
        store(file, *[logs(20, body=f"n{number}") for number in range(50)])
        before = {body for row in file.rows(0, 100) for body in bodies(file.read(row.id))}
        file.sync()
    raw = bytearray(path.read_bytes())
    page = 4096
    raw[6 * page : 8 * page] = b"\xff" * (2 * page)
    raw[100:200] = b"\xff" * 100  # the schema's page
    path.write_bytes(raw)
    words: list[str] = []
    with closing(QueueFile(path, on_damage=words.append)) as file:
        assert re.search(r"moved to \S+damaged-\d+, and \d+ requests in it go on", words[0])
        after = {body for row in file.rows(0, 100) for body in bodies(file.read(row.id))}
        assert after < before
        assert len(after) > len(before) / 2
        store(file, logs(1))


def texts_in(file: QueueFile) -> list[str]:
    """The bodies of everything that waits and can be read, in order."""
    found = [file.read(row.id) for row in file.rows(0, 1000)]
    return [text for batch in found if batch is not None for text in bodies(batch)]


def test_damage_while_running_costs_only_what_is_on_its_page(path):
    """The file is replaced under the running queue; ids stay, so that everybody who knows one still finds it."""
    words: list[str] = []
    with closing(QueueFile(path, on_damage=words.append)) as file:
        ids = store(file, *[logs(20, body=f"n{number}") for number in range(50)])
        file.sync()
        raw = bytearray(path.read_bytes())
        raw[6 * 4096 : 7 * 4096] = b"\xff" * 4096
        path.write_bytes(raw)
        file._connection.close()  # and with it what it has cached
        file._connection = sqlite3.connect(path, isolation_level=None)
        kept = [id_ for id_ in ids if file.read(id_) is not None]
        assert 40 <= len(kept) < 50
        assert len(words) <= 1
        assert store(file, logs(1))[0] > ids[-1]


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_byte_in_the_log_costs_one_request_and_not_all_behind_it(path, tmp_path, seed):
    """SQLite alone would forget every commit from the damaged one on, without a word."""
    with closing(QueueFile(path)) as file:
        for number in range(40):
            store(file, logs(30, body=f"n{number}"))
        crashed = tmp_path / "crashed.queue"
        for suffix in ("", "-wal"):
            shutil.copyfile(path.with_name(path.name + suffix), crashed.with_name(crashed.name + suffix))
    log = crashed.with_name(crashed.name + "-wal")
    raw = bytearray(log.read_bytes())
    position = random.Random(seed).randrange(len(raw) * 9 // 10)
    raw[position] ^= 1 << seed % 8
    log.write_bytes(raw)
    words: list[str] = []
    with closing(QueueFile(crashed, on_damage=words.append)) as file:
        texts = texts_in(file)
    assert words
    assert len(texts) >= 39 * 30 - 8 * 30, (position % 4120, words)
    assert list(tmp_path.glob("*.damaged-*"))


@pytest.mark.parametrize("offset", [3, 7, 8, 16, 20])
def test_a_page_image_never_lands_on_the_wrong_page(path, tmp_path, offset):
    """A flipped bit in a frame's page number, its salt or its checksum costs nothing: the image is put where it was."""
    with closing(QueueFile(path)) as file:
        for number in range(10):
            store(file, logs(30, body=f"n{number}"))
        crashed = tmp_path / "crashed.queue"
        for suffix in ("", "-wal"):
            shutil.copyfile(path.with_name(path.name + suffix), crashed.with_name(crashed.name + suffix))
    log = crashed.with_name(crashed.name + "-wal")
    for frame in range(6):
        raw = bytearray(log.read_bytes())
        raw[32 + frame * 4120 + offset] ^= 1
        damaged = tmp_path / f"frame{frame}.queue"
        shutil.copyfile(crashed, damaged)
        damaged.with_name(damaged.name + "-wal").write_bytes(raw)
        with closing(QueueFile(damaged)) as file:
            assert len(texts_in(file)) == 300, frame


def test_a_write_that_a_crash_tore_is_not_mended(path, tmp_path):
    """What was not committed stays uncommitted: half a page is worse than none."""
    with closing(QueueFile(path)) as file:
        for number in range(5):
            store(file, logs(30, body=f"n{number}"))
        crashed = tmp_path / "crashed.queue"
        for suffix in ("", "-wal"):
            shutil.copyfile(path.with_name(path.name + suffix), crashed.with_name(crashed.name + suffix))
    log = crashed.with_name(crashed.name + "-wal")
    raw = bytearray(log.read_bytes())
    raw[-2000:] = bytes(2000)
    log.write_bytes(raw)
    with closing(QueueFile(crashed)) as file:
        assert file.totals()[0] == 4
        assert len(texts_in(file)) == 4 * 30


def test_a_file_of_garbage_is_moved_aside(path):
    """What is no database at all does not stop the sidecar either."""
    path.write_bytes(b"not a database" * 1000)
    words: list[str] = []
    with closing(QueueFile(path, on_damage=words.append)) as file:
        assert "0 requests in it go on" in words[0]
        assert file.totals() == (0, 0, 0)


def test_a_file_of_a_newer_sidecar_is_refused(path):
    """Its rows may mean something else: the message says what to do."""
    QueueFile(path).close()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA user_version = 99")
    with pytest.raises(StorageError, match="newer sidecar"):
        QueueFile(path)


def test_a_full_disk_refuses_and_leaves_what_is_there(path):
    """Nothing of a failed change is kept, and the file is as good as before."""
    with closing(QueueFile(path)) as file:
        store(file, logs(1))
        file._connection.execute("PRAGMA max_page_count = 12")
        with pytest.raises(StorageError, match="full"):
            store(file, *[logs(50) for _ in range(100)])
        count = file.totals()[0]
        assert len(file.rows(0, 1000)) == count
        file._connection.execute("PRAGMA max_page_count = 100000")
        store(file, logs(1))
        assert file.totals()[0] == count + 1

"""Takes values out of the queries of database spans, as an Agent does for what passes it.

The same statement is the same resource with and without an Agent, as far as that can be, since Datadog's pages are by
resource. Where a text can be read in two ways, or not at all, nothing of it is left.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, takewhile
from typing import Any, Final, NamedTuple

from exporters.datadog.span_rules import SQL_SYSTEMS, cut_resource
from exporters.datadog.spans import Span
from exporters.datadog.traces import Group

NON_PARSABLE: Final = "Non-parsable SQL query"
# As much as Datadog keeps of a tag. What comes later is not read, so that a bulk insert doesn't hold up the process.
MAX_TEXT: Final = 25_000
# Statements that programs repeat are short; with these bounds the cache holds 6 MB of ASCII at most.
_MAX_CACHED_TEXT: Final = 2_000
_CACHED_TEXTS: Final = 1024

_OTHER_SQL_SYSTEMS: Final = frozenset(
    {
        "actian.ingres", "athena", "aws.redshift", "bigquery", "cassandra", "databricks", "duckdb", "firebirdsql",
        "gcp.spanner", "hana", "hive", "ibm.db2", "ibm.informix", "ibm.netezza", "impala", "netezza", "postgres",
        "presto", "sap.hana", "sap.maxdb", "singlestoredb", "snowflake", "spanner", "spark", "sqlserver", "tidb",
        "trino",
    }
)  # fmt: skip
# Those in which "text" is a text, and names are in other quotes or none.
_DOUBLE_QUOTED_TEXT: Final = frozenset(
    {"bigquery", "databricks", "gcp.spanner", "hive", "impala", "mariadb", "mysql", "singlestoredb", "spanner", "spark",
     "tidb"}
)  # fmt: skip


def obfuscate(groups: Iterable[Group]) -> None:
    """Obfuscate resource and queries of the database spans of groups, in place."""
    for group in groups:
        for chunk in group.chunks.values():
            for span in chunk.spans:
                rule = _OF_TYPE.get(span.type)
                if rule is None and ("db.system" in span.meta or "db.system.name" in span.meta):
                    rule = _OF_SYSTEM.get(_system(span.meta))
                if rule is not None:
                    _obfuscate(span, rule)


def obfuscate_statistics(payload: Mapping[str, Any]) -> None:
    """Obfuscate the resources in a tracer's own ClientStatsPayload, in place."""
    for bucket in _maps(payload.get("Stats")):
        for entry in _maps(bucket.get("Stats")):
            rule = _OF_TYPE.get(str(entry.get("Type")))
            if rule is not None:
                entry["Resource"] = rule.resource(str(entry.get("Resource") or ""), str(entry.get("DBType")))


def _maps(value: Any) -> Iterator[dict[str, Any]]:
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else iter(())


def _system(meta: Mapping[str, str]) -> str:
    return (meta.get("db.system") or meta.get("db.system.name") or meta.get("db.type") or "").lower()


def _obfuscate(span: Span, rule: _Rule) -> None:
    meta = span.meta
    system = _system(meta)
    queries = {name: meta[name] for name in (*rule.queries, *_QUERIES) if name in meta}
    # A query that was cut to be a resource may end within a value: it is cut afterwards instead.
    whole = next((query for query in queries.values() if cut_resource(query) == span.resource), span.resource)
    span.resource = cut_resource(rule.resource(whole, system))
    for name, query in queries.items():
        meta[name] = rule.query(query, system)


def sql(text: str, system: str = "") -> str:
    """A statement with `?` for its values, without comments and aliases, in one spacing.

    `NON_PARSABLE` where a quote or a comment has no end.

    Args:
        text: in any dialect.
        system: the database's name by OpenTelemetry's conventions, as far as it is known.
    """
    # Where names are in backticks, as in MySQL, double quotes are for texts.
    has_texts = system in _DOUBLE_QUOTED_TEXT or "`" in text
    return (_cached_sql if len(text) <= _MAX_CACHED_TEXT else _sql)(text, has_texts=has_texts)


def _sql(text: str, *, has_texts: bool) -> str:
    if text in {"", NON_PARSABLE}:
        return text
    readings = {_read_sql(_TOKENS, text, has_texts=has_texts)}
    if "\\" in text:
        # It escapes a quote in some dialects only. Read by the wrong rule, values are taken for words; but such a
        # reading comes to a backslash between words or to a quote without end, unless a comment hides those.
        readings.add(_read_sql(_TOKENS_WITH_ESCAPES, text, has_texts=has_texts))
        readings.discard(None)
    return (readings.pop() if len(readings) == 1 else None) or NON_PARSABLE


_cached_sql: Final = functools.lru_cache(maxsize=_CACHED_TEXTS)(_sql)

# Each alternative keeps what it has read, and what has no end is `bad` and ends the reading: no character is looked at
# more than a few times, whatever the text.
_GRAMMAR: Final = r"""
    (?P<blank> \s++ | --[^\n]*+ | \#(?! > | -\s*+['$:?%] )[^\n]*+ | /\*(?>.*?\*/) )
  | (?P<literal>
        (?: [bBeEnNxXrR] | [uU]& | _\w++ )?+ SINGLE
      | [nN]?+[qQ]'(?> \[.*?\]' | \{.*?\}' | \(.*?\)' | <.*?>' | (?P<mark>[^\s\[{(<']).*?(?P=mark)' )
      | \$(?P<tag>(?:[^\W\d]\w*+)?+)\$(?>.*?\$(?P=tag)\$)
      | \.?\d(?: [\w.] | (?<=[eE])[+-](?=\d) )*+
      | \$\w++(?!\$) | :\w++ | %(?:\(\w++\))?+[sdfbt]\b | \?
    )
  | (?P<quoted> DOUBLE )
  | (?P<name> `[^`]*+` | \[[^\W\d][\w\ ]*+\] )
  | (?P<bad> [nN]?+[qQ]' | /\* | \*/(?!\*) | ['"`\\$] )
  | (?P<word> (?: [^\W\d][\w$]*+ (?:\.[\w$]++)*+ | @++[\w$.]++ ) (?:\.\*)?+ )
  | (?P<operator> ->>?+ | \#[>-]>?+ | [<>=!|&~^]++ )
  | (?P<other> :: | := | \.\.\. | . )
"""
_PLAIN_NAME: Final = re.compile(r"[^\W\d][\w$]*+")
_VALUE: Final = "?"
_VALUES: Final = frozenset({"NULL", "TRUE", "FALSE"})
# Double quotes after these are for texts, whatever the dialect.
_BEFORE_TEXT: Final = frozenset({"operator", "LIKE", "ILIKE", "RLIKE", "REGEXP", "SAVEPOINT"})
_BEFORE_LIST: Final = frozenset({"IN", "VALUES", "VALUE"})
_IN_LIST: Final = frozenset({_VALUE, ",", "(", ")"})


def _tokens(single: str, double: str) -> re.Pattern[str]:
    return re.compile(_GRAMMAR.replace("SINGLE", single).replace("DOUBLE", double), re.VERBOSE | re.DOTALL)


_TOKENS: Final = _tokens(r"'[^']*+(?:''[^']*+)*+'", r'"[^"]*+(?:""[^"]*+)*+"')
_TOKENS_WITH_ESCAPES: Final = _tokens(r"'[^'\\]*+(?:(?:''|\\.)[^'\\]*+)*+'", r'"[^"\\]*+(?:(?:""|\\.)[^"\\]*+)*+"')


def _read_sql(tokens: re.Pattern[str], text: str, *, has_texts: bool) -> str | None:
    """The statement by one rule for escapes; None where it can't be read by that."""
    shown: list[str] = []
    last = ""
    in_list = False
    matches: Iterable[re.Match[str]] = tokens.finditer(text)
    if len(text) > MAX_TEXT:
        matches = takewhile(lambda match: match.start() < MAX_TEXT, matches)
    for match in matches:
        kind, token = match.lastgroup, match[0]
        if kind == "blank":
            continue
        if kind == "bad":
            return None
        before, last = last, token
        if kind == "word":
            last = token.upper()
            # Programs make up a savepoint's name for each transaction.
            if last in _VALUES or before == "SAVEPOINT":
                token = last = _VALUE
        elif kind == "literal":
            token = last = _VALUE
        elif kind == "quoted":
            is_text = (
                has_texts or in_list or before in _BEFORE_TEXT or not _PLAIN_NAME.fullmatch(token, 1, len(token) - 1)
            )
            token, last = (_VALUE, _VALUE) if is_text else (token[1:-1], kind)
        elif kind == "name":
            token, last = token[1:-1] if token[0] == "`" else f"[ {token[1:-1]} ]", kind
        elif kind == "operator":
            last = kind
        in_list = last in _IN_LIST and (in_list or (last == "(" and before in _BEFORE_LIST))
        # An Agent leaves out aliases: AS, and whatever follows it.
        if "AS" not in (before, last) and last != ";":
            shown.append(token)
    if len(text) > MAX_TEXT:
        shown.append("...")
    return _grouped(" ".join(shown).replace(" ,", ","))


_SIGN: Final = re.compile(r"(?<=[=<>(,]) [-+](?= \?)")
_VALUES_IN_ROW: Final = re.compile(r"\?(?:,| \?)++")
_ROWS: Final = re.compile(r"\( \? \)(?:,? \( \? \))++")


def _grouped(statement: str) -> str:
    """With one `?` for values in a row, one `( ? )` for lists of them, and negative numbers as values."""
    return _ROWS.sub("( ? )", _VALUES_IN_ROW.sub("?", _SIGN.sub("", statement)))


_MAX_RESOURCE_COMMANDS: Final = 3
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z_.-]{0,31}")
_OF_MODULE: Final = re.compile(r"(?:BF|CF|CMS|FT|JSON|TDIGEST|TOPK|TS)\.[A-Z]{1,16}")
_CONTAINERS: Final = frozenset(
    {
        "ACL", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DEBUG", "FUNCTION", "LATENCY", "MEMORY", "MODULE", "OBJECT",
        "PUBSUB", "SCRIPT", "SLOWLOG", "XGROUP", "XINFO",
    }
)  # fmt: skip
_COMMANDS: Final = _CONTAINERS | frozenset(
    {
        "APPEND", "ASKING", "AUTH", "BGREWRITEAOF", "BGSAVE", "BITCOUNT", "BITFIELD", "BITFIELD_RO", "BITOP",
        "BITPOS", "BLMOVE", "BLMPOP", "BLPOP", "BRPOP", "BRPOPLPUSH", "BZMPOP", "BZPOPMAX", "BZPOPMIN", "COPY",
        "DBSIZE", "DECR", "DECRBY", "DEL", "DISCARD", "DUMP", "ECHO", "EVAL", "EVALSHA", "EVALSHA_RO", "EVAL_RO",
        "EXEC", "EXISTS", "EXPIRE", "EXPIREAT", "EXPIRETIME", "FAILOVER", "FCALL", "FCALL_RO", "FLUSHALL", "FLUSHDB",
        "GEOADD", "GEODIST", "GEOHASH", "GEOPOS", "GEORADIUS", "GEORADIUSBYMEMBER", "GEORADIUSBYMEMBER_RO",
        "GEORADIUS_RO", "GEOSEARCH", "GEOSEARCHSTORE", "GET", "GETBIT", "GETDEL", "GETEX", "GETRANGE", "GETSET",
        "HDEL", "HELLO", "HEXISTS", "HEXPIRE", "HEXPIREAT", "HEXPIRETIME", "HGET", "HGETALL", "HGETDEL", "HGETEX",
        "HINCRBY", "HINCRBYFLOAT", "HKEYS", "HLEN", "HMGET", "HMSET", "HPERSIST", "HPEXPIRE", "HPEXPIREAT",
        "HPEXPIRETIME", "HPTTL", "HRANDFIELD", "HSCAN", "HSET", "HSETEX", "HSETNX", "HSTRLEN", "HTTL", "HVALS",
        "INCR", "INCRBY", "INCRBYFLOAT", "INFO", "KEYS", "LASTSAVE", "LCS", "LINDEX", "LINSERT", "LLEN", "LMOVE",
        "LMPOP", "LOLWUT", "LPOP", "LPOS", "LPUSH", "LPUSHX", "LRANGE", "LREM", "LSET", "LTRIM", "MGET", "MIGRATE",
        "MONITOR", "MOVE", "MSET", "MSETNX", "MULTI", "PERSIST", "PEXPIRE", "PEXPIREAT", "PEXPIRETIME", "PFADD",
        "PFCOUNT", "PFDEBUG", "PFMERGE", "PFSELFTEST", "PING", "PSETEX", "PSUBSCRIBE", "PSYNC", "PTTL", "PUBLISH",
        "PUNSUBSCRIBE", "QUIT", "RANDOMKEY", "READONLY", "READWRITE", "RENAME", "RENAMENX", "REPLCONF", "REPLICAOF",
        "RESET", "RESTORE", "ROLE", "RPOP", "RPOPLPUSH", "RPUSH", "RPUSHX", "SADD", "SAVE", "SCAN", "SCARD", "SDIFF",
        "SDIFFSTORE", "SELECT", "SET", "SETBIT", "SETEX", "SETNX", "SETRANGE", "SHUTDOWN", "SINTER", "SINTERCARD",
        "SINTERSTORE", "SISMEMBER", "SLAVEOF", "SMEMBERS", "SMISMEMBER", "SMOVE", "SORT", "SORT_RO", "SPOP",
        "SPUBLISH", "SRANDMEMBER", "SREM", "SSCAN", "SSUBSCRIBE", "STRLEN", "SUBSCRIBE", "SUBSTR", "SUNION",
        "SUNIONSTORE", "SUNSUBSCRIBE", "SWAPDB", "SYNC", "TIME", "TOUCH", "TTL", "TYPE", "UNLINK", "UNSUBSCRIBE",
        "UNWATCH", "WAIT", "WAITAOF", "WATCH", "XACK", "XADD", "XAUTOCLAIM", "XCLAIM", "XDEL", "XLEN", "XPENDING",
        "XRANGE", "XREAD", "XREADGROUP", "XREVRANGE", "XSETID", "XTRIM", "ZADD", "ZCARD", "ZCOUNT", "ZDIFF",
        "ZDIFFSTORE", "ZINCRBY", "ZINTER", "ZINTERCARD", "ZINTERSTORE", "ZLEXCOUNT", "ZMPOP", "ZMSCORE", "ZPOPMAX",
        "ZPOPMIN", "ZRANDMEMBER", "ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE", "ZRANGESTORE", "ZRANK", "ZREM",
        "ZREMRANGEBYLEX", "ZREMRANGEBYRANK", "ZREMRANGEBYSCORE", "ZREVRANGE", "ZREVRANGEBYLEX", "ZREVRANGEBYSCORE",
        "ZREVRANK", "ZSCAN", "ZSCORE", "ZUNION", "ZUNIONSTORE",
    }
)  # fmt: skip


def redis_resource(text: str, _system: str = "") -> str:
    """The names of the first three commands, one a line in the text, and `...` for those that may follow."""
    names = [name for name, _ in islice(_redis(text), _MAX_RESOURCE_COMMANDS)]
    return " ".join([*names, "..."] if len(names) == _MAX_RESOURCE_COMMANDS else names)


def redis_commands(text: str, _system: str = "") -> str:
    """Every command, one a line, with one `?` for its arguments."""
    return "\n".join(f"{name} ?" if has_arguments else name for name, has_arguments in _redis(text))


def _redis(text: str) -> Iterator[tuple[str, bool]]:
    """The name of each command, and whether it has arguments.

    A line may be a part of a value. Therefore only the first one may begin with any word, and only there the second
    word may belong to the name; other lines are commands if Redis has such.
    """
    is_first = True
    for line in text[:MAX_TEXT].split("\n"):
        words = line.split(None, 2)
        if not words:
            continue
        name = words.pop(0).upper()
        if is_first:
            is_first = False
            name = name if _WORD.fullmatch(name) else "?"
            if name in _CONTAINERS and words and _WORD.fullmatch(words[0]):
                name = f"{name} {words.pop(0).upper()}"
        elif name not in _COMMANDS and not _OF_MODULE.fullmatch(name):
            continue
        yield name, bool(words)


def memcached_command(text: str, _system: str = "") -> str:
    """The command's name, with one `?` for its keys and values."""
    words = text.split(None, 1)
    if not words:
        return ""
    name = words[0] if _WORD.fullmatch(words[0]) else "?"
    return f"{name} ?" if len(words) > 1 else name


class _Rule(NamedTuple):
    """What becomes of the spans of one kind of database.

    Attributes:
        resource: the obfuscated resource, by what it was and by the database's name.
        query: the same for what is in attributes.
        queries: the attributes that hold queries of that kind alone.
    """

    resource: Callable[[str, str], str]
    query: Callable[[str, str], str]
    queries: tuple[str, ...]


_QUERIES: Final = ("db.statement", "db.query.text")
_SQL: Final = _Rule(sql, sql, ("sql.query",))
_REDIS: Final = _Rule(redis_resource, redis_commands, ("redis.raw_command", "valkey.raw_command"))
_MEMCACHED: Final = _Rule(memcached_command, memcached_command, ("memcached.command", "memcached.query"))
_OF_TYPE: Final = {"sql": _SQL, "cassandra": _SQL, "redis": _REDIS, "valkey": _REDIS, "memcached": _MEMCACHED}
_OF_SYSTEM: Final = {**dict.fromkeys(SQL_SYSTEMS | _OTHER_SQL_SYSTEMS, _SQL), **_OF_TYPE}

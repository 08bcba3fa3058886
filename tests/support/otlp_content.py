"""Values of attributes and bodies as Python data."""

from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

CONTENT = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5) | st.binary(max_size=5)
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["component", "prompt", "app", "app.x", "x", ""]), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


def any_value(content):
    """An AnyValue from Python data."""
    value = AnyValue()
    if isinstance(content, bool):
        value.bool_value = content
    elif isinstance(content, dict):
        value.kvlist_value.SetInParent()
        for key, inner in content.items():
            value.kvlist_value.values.add(key=key, value=any_value(inner))
    elif isinstance(content, list):
        value.array_value.SetInParent()
        value.array_value.values.extend(map(any_value, content))
    elif content is not None:
        kinds = {str: "string_value", int: "int_value", float: "double_value", bytes: "bytes_value"}
        setattr(value, kinds[type(content)], content)
    return value


def content_of(value):
    """Python data from an AnyValue."""
    kind = value.WhichOneof("value")
    if kind == "kvlist_value":
        return {pair.key: content_of(pair.value) for pair in value.kvlist_value.values}
    if kind == "array_value":
        return [content_of(element) for element in value.array_value.values]
    return getattr(value, kind) if kind else None

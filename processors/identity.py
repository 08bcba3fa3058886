"""Says on what was received who has sent it, as authentication knows it rather than as the sender claims."""

from __future__ import annotations

from typing import Any

from sidecar import Batch, Context, Processor, SettingError, Settings


class IdentitySettings(Settings):
    """Under which resource attributes the parts of the caller's identity are written; null writes none.

    Attributes:
        machine_id: the machine that the caller's credential is linked to.
        account_id: the account that it belongs to.
        name: the caller's name, as logs and rate-limit keys show it.
        kind: how the caller is known: `provider`, `api_key`, `bearer`, `basic`, `jwt`, `mtls`.
    """

    machine_id: str | None = "host.id"
    account_id: str | None = "account.id"
    name: str | None = None
    kind: str | None = None

    def __post_init__(self) -> None:
        keys = [key for key in (self.machine_id, self.account_id, self.name, self.kind) if key is not None]
        if not all(keys) or len(keys) != len(set(keys)):
            raise SettingError("write a different attribute key for each part, or null for those that are not wanted")


class IdentityProcessor(Processor[IdentitySettings]):
    """Writes what is known of the caller onto every resource of its batches, whatever stands there.

    What strangers send, and what is not known of a caller, stays as it was sent.
    """

    def __init__(self, settings: IdentitySettings, context: Context) -> None:
        super().__init__(settings, context)
        parts = {part: getattr(settings, part) for part in settings.__struct_fields__}
        self._keys = {part: key for part, key in parts.items() if key is not None}

    def process(self, batch: Batch) -> Batch:
        """The batch with the caller on its resources."""
        identity = batch.context.identity
        if identity is None:
            return batch
        known = {key: value for part, key in self._keys.items() if (value := getattr(identity, part))}
        strange = [one.resource for one in batch.resources() if not _says(one.resource.attributes, known)]
        if strange:
            batch.edit()
            for resource in strange:
                _write(resource.attributes, known)
        return batch


def _says(attributes: Any, known: dict[str, str]) -> bool:
    """Whether this, and nothing else, stands there."""
    said = [(one.key, one.value.string_value) for one in attributes if one.key in known]
    return len(said) == len(known) and dict(said) == known


def _write(attributes: Any, known: dict[str, str]) -> None:
    """Set attributes; where a key stands several times, each time, since who reads it may take any."""
    missing = dict(known)
    for one in attributes:
        if one.key in known:
            one.value.string_value = known[one.key]
            missing.pop(one.key, None)
    for key, value in missing.items():
        attributes.add(key=key).value.string_value = value

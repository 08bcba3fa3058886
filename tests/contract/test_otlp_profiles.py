"""OTLP conformance, items 46 and 108 to 111: profiles, which are in development and not taken."""

import grpc
import pytest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest
from support.otlp_receiver import JSON, PROTOBUF, running, status_of

EXPORT = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"


def profiles():
    """A request of one profile, in the schema of 1.10 and later."""
    request = ExportProfilesServiceRequest()
    profile = request.resource_profiles.add().scope_profiles.add().profiles.add(profile_id=bytes(range(16)))
    profile.sample_type.type_strindex = 1
    profile.samples.add(stack_index=1, values=[1, 2, 3])
    request.dictionary.string_table.extend(["", "cpu"])
    return request.SerializeToString()


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
async def test_108_111_profiles_over_http_are_404(content_type):
    """Not retryable, with a Status that says so in the request's encoding."""
    async with running() as server:
        answer = await server.post(profiles(), content_type, path="/v1development/profiles")
        assert (answer.status, answer.headers["content-type"]) == (404, content_type)
        assert status_of(answer)[0] == 5
        assert not server.sink.batches


@pytest.mark.parametrize("profile_id", ["000102030405060708090a0b0c0d0e0f", "AAECAwQFBgcICQoLDA0ODw=="])
async def test_046_a_profiles_id_is_not_looked_at(profile_id):
    """The specification says base64, the Collector hex; here the answer is the same for both."""
    body = b'{"resourceProfiles":[{"scopeProfiles":[{"profiles":[{"profileId":"%s"}]}]}]}' % profile_id.encode()
    async with running() as server:
        answer = await server.post(body, JSON, path="/v1development/profiles")
        assert (answer.status, status_of(answer)[0]) == (404, 5)


async def test_111_profiles_over_grpc_are_unimplemented():
    """Not retryable either."""
    async with running() as server:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await server.channel.unary_unary(EXPORT)(profiles())
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/logs", "/v1/metrics"])
async def test_109_110_profiles_on_another_signals_path_are_noticed(path):
    """Their fields have other wire types, which decode as unknown ones: never a silent success with data in it."""
    async with running() as server:
        answer = await server.post(profiles(), path=path)
        assert answer.status in {200, 400}
        assert len(server.sink) == 0

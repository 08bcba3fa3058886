"""Certificates for tests of TLS, made on the spot."""

import ssl

import grpc
import pytest


class Authority:
    """A certificate authority, a server's certificate for `localhost`, and a client's."""

    def __init__(self, folder):
        trustme = pytest.importorskip("trustme")
        authority = trustme.CA()
        self._server = authority.issue_cert("localhost")
        client = authority.issue_cert("client@example.com", common_name="client-1")
        self.ca = authority.cert_pem.bytes()
        self.ca_file = folder / "ca.pem"
        self.client_cert_file = folder / "client.pem"
        self.client_key_file = folder / "client.key"
        authority.cert_pem.write_to_path(self.ca_file)
        client.cert_chain_pems[0].write_to_path(self.client_cert_file)
        client.private_key_pem.write_to_path(self.client_key_file)
        self.server_cert_file = folder / "server.pem"
        self.server_key_file = folder / "server.key"
        self._server.cert_chain_pems[0].write_to_path(self.server_cert_file)
        self._server.private_key_pem.write_to_path(self.server_key_file)

    def grpc_credentials(self, *, ask_clients=False):
        """What a gRPC server needs."""
        chain = b"".join(pem.bytes() for pem in self._server.cert_chain_pems)
        return grpc.ssl_server_credentials(
            [(self._server.private_key_pem.bytes(), chain)],
            root_certificates=self.ca if ask_clients else None,
            require_client_auth=ask_clients,
        )

    def ssl_context(self, *, ask_clients=False):
        """What an HTTP server needs."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.configure_cert(context)
        if ask_clients:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.ca_file)
        return context

    def client_context(self, *, with_certificate=False):
        """What an HTTP client needs."""
        context = ssl.create_default_context(cadata=self.ca.decode())
        if with_certificate:
            context.load_cert_chain(self.client_cert_file, self.client_key_file)
        return context

    def client_credentials(self, *, with_certificate=False):
        """What a gRPC client needs."""
        if not with_certificate:
            return grpc.ssl_channel_credentials(self.ca)
        return grpc.ssl_channel_credentials(
            self.ca, self.client_key_file.read_bytes(), self.client_cert_file.read_bytes()
        )

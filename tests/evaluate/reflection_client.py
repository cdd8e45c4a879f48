"""A gRPC client that knows nothing of our protocol but what the daemon's reflection service tells it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


class ReflectionClient:
    """Calls services by name with plain dictionaries."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.database = ProtoReflectionDescriptorDatabase(self.channel)
        self.pool = descriptor_pool.DescriptorPool(self.database)

    def services(self) -> list[str]:
        """Every service that the server names."""
        return sorted(self.database.get_services())

    def service(self, name: str) -> ServiceDescriptor:
        """A service as the server describes it."""
        return self.pool.FindServiceByName(name)

    def _method(self, name: str) -> MethodDescriptor:
        service, _, method = name.rpartition("/")
        return self.service(service).FindMethodByName(method)

    def _request(self, name: str, fields: dict[str, Any]) -> Any:
        return json_format.ParseDict(fields, message_factory.GetMessageClass(self._method(name).input_type)())

    def _callable(self, name: str, streaming: bool) -> Any:
        answer = message_factory.GetMessageClass(self._method(name).output_type)
        make = self.channel.unary_stream if streaming else self.channel.unary_unary
        return make(
            f"/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )

    def call(self, name: str, fields: dict[str, Any] | None = None, timeout: float = 20.0) -> dict[str, Any]:
        """One unary call, `package.Service/Method`."""
        answer = self._callable(name, False)(self._request(name, fields or {}), timeout=timeout)
        return as_dictionary(answer)

    def stream(self, name: str, fields: dict[str, Any] | None = None, timeout: float | None = None) -> grpc.Call:
        """One streaming call; iterate over it, cancel() it."""
        return self._callable(name, True)(self._request(name, fields or {}), timeout=timeout)

    def messages(self, name: str, fields: dict[str, Any], timeout: float) -> Iterator[dict[str, Any]]:
        """The stream as dictionaries, until the timeout."""
        try:
            for message in self.stream(name, fields, timeout):
                yield as_dictionary(message)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                raise

    def close(self) -> None:
        """Close the channel."""
        self.channel.close()


def as_dictionary(message: Any) -> dict[str, Any]:
    """The protobuf JSON mapping, defaults included, as neuraldbgctl prints it."""
    return json_format.MessageToDict(message, always_print_fields_with_no_presence=True)

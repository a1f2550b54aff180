"""A DRA driver towards the kubelet: two gRPC servers, each on a socket of its own.

    registration   a socket in the kubelet's plugins_registry. The kubelet finds it there, also after its own restart,
                   asks for the driver's name and its other socket, and says whether it has accepted both
    driver         NodePrepareResources before the first container of a Pod with a claim starts, and again after a
                   restart of the kubelet; NodeUnprepareResources when the last Pod that uses the claim has ended

Both calls name several claims, and each claim has its own answer. The text of `Refused` reaches the user as an event
on the Pod. Every start uses new names: the kubelet takes a known endpoint for a plugin that it has already.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import grpc
from grpc import aio

from aliquot.adapters.kubelet import dra_pb2 as wire
from aliquot.adapters.kubelet import pluginregistration_pb2 as registration
from aliquot.adapters.kubelet.channel import LARGEST_MESSAGE, KubeletError
from aliquot.adapters.kubelet.deviceplugin import Refused

log = logging.getLogger(__name__)

_SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_VERSION = "v1.DRAPlugin"  # how the kubelet names that service
_TYPE = "DRAPlugin"
_GRACE = 1.0  # seconds for calls that are running
_MOST_CLAIMS = 1024  # in one call; the kubelet sends those of one Pod
_LONGEST_PATH = 107  # bytes of a unix socket's path
_REGISTERED = "-reg.sock"

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """The claim that the kubelet means."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device of a prepared claim. Containers that use one of the requests get the CDI devices."""

    requests: tuple[str, ...]
    pool: str
    name: str
    cdi: tuple[str, ...]
    share_id: str | None = None


class ClaimHandler(Protocol):
    """Prepares claims. Both may raise Refused, and both are called again for what is done already."""

    async def prepare(self, claim: ClaimRef, together: Sequence[ClaimRef]) -> Sequence[PreparedDevice]:
        """`together`: all claims of the call, which are one Pod's."""
        ...

    async def unprepare(self, claim: ClaimRef) -> None: ...


class DraPlugin:
    """Serves the driver from `start` to `stop`. It cannot be started again. `kubelet` is its root directory."""

    def __init__(self, driver: str, kubelet: Path, handler: ClaimHandler, changed: Callable[[], None]) -> None:
        self.registered = False  # the kubelet has accepted us
        self.problem = ""  # why it has not, in its own words
        self._driver, self._handler, self._changed = driver, handler, changed
        run = secrets.token_hex(4)
        self._registry = kubelet / "plugins_registry"
        self._folder = kubelet / "plugins" / driver
        self._socket = self._folder / f"{run}.sock"
        self._registration = self._registry / f"{driver}-{run}{_REGISTERED}"
        self._servers: list[aio.Server] = []

    async def start(self) -> None:
        """Serve the driver, then register it. Raises KubeletError."""
        if len(str(self._registration).encode()) > _LONGEST_PATH:
            raise KubeletError(f"{self._registration}: the path of a socket has at most {_LONGEST_PATH} bytes")
        try:
            self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._registry.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._sweep()
            await self._serve(self._socket, _SERVICE, self._driver_methods())
            await self._serve(self._registration, "pluginregistration.Registration", self._registration_methods())
        except (RuntimeError, OSError) as error:
            await self.stop()
            raise KubeletError(f"cannot serve DRA driver {self._driver} in {self._folder}: {error}") from error

    def _sweep(self) -> None:
        """Remove the sockets of an earlier agent: first those by which the kubelet knows it."""
        for path in (*self._registry.glob(f"{self._driver}-*{_REGISTERED}"), *self._folder.glob("*.sock")):
            path.unlink(missing_ok=True)

    async def _serve(self, path: Path, service: str, methods: dict[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        server = aio.server(options=[("grpc.max_receive_message_length", LARGEST_MESSAGE)])
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        server.add_insecure_port(f"unix:{path}")
        path.chmod(0o600)  # the kubelet is root, whatever our umask is
        await server.start()
        self._servers.append(server)

    async def stop(self) -> None:
        """The kubelet forgets the driver; it deletes its slices half a minute later, unless the next agent comes."""
        self._registration.unlink(missing_ok=True)
        for server in reversed(self._servers):
            await server.stop(_GRACE)
        self._servers.clear()
        self._socket.unlink(missing_ok=True)
        self.registered = False

    # --- gRPC methods --------------------------------------------------------------------------------------------

    def _registration_methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        unary = grpc.unary_unary_rpc_method_handler
        return {
            "GetInfo": unary(
                self._info, registration.InfoRequest.FromString, registration.PluginInfo.SerializeToString
            ),
            "NotifyRegistrationStatus": unary(
                self._notified,
                registration.RegistrationStatus.FromString,
                registration.RegistrationStatusResponse.SerializeToString,
            ),
        }

    def _driver_methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        unary = grpc.unary_unary_rpc_method_handler
        return {
            "NodePrepareResources": unary(
                self._prepare,
                wire.NodePrepareResourcesRequest.FromString,
                wire.NodePrepareResourcesResponse.SerializeToString,
            ),
            "NodeUnprepareResources": unary(
                self._unprepare,
                wire.NodeUnprepareResourcesRequest.FromString,
                wire.NodeUnprepareResourcesResponse.SerializeToString,
            ),
        }

    async def _info(
        self, request: registration.InfoRequest, context: aio.ServicerContext[Any, Any]
    ) -> registration.PluginInfo:
        return registration.PluginInfo(
            type=_TYPE, name=self._driver, endpoint=str(self._socket), supported_versions=[_VERSION]
        )

    async def _notified(
        self, request: registration.RegistrationStatus, context: aio.ServicerContext[Any, Any]
    ) -> registration.RegistrationStatusResponse:
        self.registered, self.problem = request.plugin_registered, request.error
        if not request.plugin_registered:
            log.warning("dra_driver_not_registered", extra={"data": {"why": request.error}})
        self._changed()
        return registration.RegistrationStatusResponse()

    async def _prepare(
        self, request: wire.NodePrepareResourcesRequest, context: aio.ServicerContext[Any, Any]
    ) -> wire.NodePrepareResourcesResponse:
        claims = await _claims(request.claims, context)
        answers = {}
        for claim in claims:
            devices, error = await _answer(claim, self._handler.prepare(claim, claims))
            answers[claim.uid] = wire.NodePrepareResourceResponse(devices=map(_device, devices or ()), error=error)
        return wire.NodePrepareResourcesResponse(claims=answers)

    async def _unprepare(
        self, request: wire.NodeUnprepareResourcesRequest, context: aio.ServicerContext[Any, Any]
    ) -> wire.NodeUnprepareResourcesResponse:
        answers = {}
        for claim in await _claims(request.claims, context):
            _, error = await _answer(claim, self._handler.unprepare(claim))
            answers[claim.uid] = wire.NodeUnprepareResourceResponse(error=error)
        return wire.NodeUnprepareResourcesResponse(claims=answers)


async def _claims(claims: Sequence[wire.Claim], context: aio.ServicerContext[Any, Any]) -> list[ClaimRef]:
    """Each claim of the call once. Too many are refused: each is read from the API server, and written."""
    if len(claims) > _MOST_CLAIMS:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"more than {_MOST_CLAIMS} claims at once")
    return list(dict.fromkeys(ClaimRef(claim.namespace, claim.name, claim.uid) for claim in claims))


async def _answer(claim: ClaimRef, call: Awaitable[Answer]) -> tuple[Answer | None, str]:
    """What the call returns, and why it failed. An internal error is also logged with its traceback."""
    try:
        return await call, ""
    except Refused as error:
        return None, str(error)
    except Exception as error:
        data = {"claim": f"{claim.namespace}/{claim.name}"}
        log.error("kubelet_call_failed", extra={"data": data}, exc_info=error)
        return None, f"internal error: {type(error).__name__}: {error}"


def _device(device: PreparedDevice) -> wire.Device:
    return wire.Device(
        request_names=device.requests,
        pool_name=device.pool,
        device_name=device.name,
        cdi_device_ids=device.cdi,
        share_id=device.share_id,
    )

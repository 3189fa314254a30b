"""The configuration of Envoy: pyvoy's own, with limits, and with a TLS port before the plain one.

Owns what the native part of the server refuses before Python sees it: too many connections, headers that
never end, requests whose body never comes, buffers that grow. The TLS port only decrypts and forwards the
bytes to the plain port: pyvoy runs the application once for each listener, each in its own event loop, and
this one must run once. So a client on the TLS port counts twice among the connections, and appears with this
machine's own address.
"""

from __future__ import annotations

from typing import Any

from pyvoy import PyvoyServer

from tidemill.core.addresses import local_address
from tidemill.core.limits import KIB, MIB
from tidemill.server.body_budget import BODY_SECONDS_MAX

_TYPES = "type.googleapis.com/envoy"
_TLS_CLUSTER = "plain_port"
_NODE = "tidemill"
_HEADERS_SECONDS = 10
# A request must be whole, or its answer begun, by then. A little more than the application gives a body that
# has begun, because that reports errors in its own form.
_REQUEST_SECONDS = BODY_SECONDS_MAX + 5
_HANDSHAKE_SECONDS = 10
# A telemetry stream is silent for five minutes at a time; a client silent for longer has gone.
_STREAM_IDLE_SECONDS = 900
_STREAMS_PER_CONNECTION_MAX = 2_000
_STREAM_WINDOW_BYTES = 1 * MIB
_CONNECTION_WINDOW_BYTES = 16 * MIB
_CONNECTION_BUFFER_BYTES = 1 * MIB
_HEADER_KIB_MAX = 60


class BoundedServer(PyvoyServer):
    """pyvoy's server with limits, and TLS beside the plain port."""

    def __init__(
        self,
        application: str,
        *,
        address: str,
        port: int,
        connections_max: int,
        tls_port: int | None = None,
        secret: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(application, address=address, port=port, tls_port=tls_port, **options)
        assert tls_port is None or (secret is not None and port), (
            "the TLS port forwards to a known plain port"
        )
        self._place = (address, port)
        self._connections_max = connections_max
        self._tls = (tls_port, secret)

    def get_envoy_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_envoy_config()
        config["overload_manager"] = _connection_limit(self._connections_max)
        resources = config["static_resources"]
        (listener,) = resources["listeners"]
        listener["per_connection_buffer_limit_bytes"] = _CONNECTION_BUFFER_BYTES
        listener["filter_chains"][0]["filters"][-1]["typed_config"].update(_http_bounds())
        tls_port, secret = self._tls
        if tls_port is not None and secret is not None:
            address, port = self._place
            # Envoy wants a name before it takes a certificate that can be replaced.
            config["node"] = {"id": _NODE, "cluster": _NODE}
            resources["listeners"].append(_tls_listener(address, tls_port, secret))
            resources.setdefault("clusters", []).append(_cluster(local_address(address), port))
        return config


def _http_bounds() -> dict[str, Any]:
    return {
        "request_headers_timeout": f"{_HEADERS_SECONDS}s",
        "request_timeout": f"{_REQUEST_SECONDS:g}s",
        "stream_idle_timeout": f"{_STREAM_IDLE_SECONDS}s",
        "max_request_headers_kb": _HEADER_KIB_MAX,
        "http2_protocol_options": {
            "max_concurrent_streams": _STREAMS_PER_CONNECTION_MAX,
            "initial_stream_window_size": _STREAM_WINDOW_BYTES,
            "initial_connection_window_size": _CONNECTION_WINDOW_BYTES,
        },
    }


def _connection_limit(connections_max: int) -> dict[str, Any]:
    kind = f"{_TYPES}.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig"
    return {
        "resource_monitors": [
            {
                "name": "envoy.resource_monitors.global_downstream_max_connections",
                "typed_config": {"@type": kind, "max_active_downstream_connections": connections_max},
            }
        ]
    }


def _tls_listener(address: str, port: int, secret: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "listener_tls",
        "address": {"socket_address": {"address": address, "port_value": port}},
        "per_connection_buffer_limit_bytes": 64 * KIB,
        "filter_chains": [
            {
                "transport_socket_connect_timeout": f"{_HANDSHAKE_SECONDS}s",
                "transport_socket": {
                    "name": "envoy.transport_sockets.tls",
                    "typed_config": {
                        "@type": f"{_TYPES}.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                        "common_tls_context": {
                            "tls_certificate_sds_secret_configs": [secret],
                            "alpn_protocols": ["h2", "http/1.1"],
                        },
                    },
                },
                "filters": [
                    {
                        "name": "envoy.filters.network.tcp_proxy",
                        "typed_config": {
                            "@type": f"{_TYPES}.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                            "stat_prefix": "tls",
                            "cluster": _TLS_CLUSTER,
                        },
                    }
                ],
            }
        ],
    }


def _cluster(address: str, port: int) -> dict[str, Any]:
    endpoint = {"address": {"socket_address": {"address": address, "port_value": port}}}
    return {
        "name": _TLS_CLUSTER,
        "connect_timeout": "5s",
        "type": "STATIC" if address.replace(".", "").isdigit() or ":" in address else "STRICT_DNS",
        "per_connection_buffer_limit_bytes": 64 * KIB,
        "circuit_breakers": {"thresholds": [{"max_connections": 1 << 20, "max_pending_requests": 1 << 20}]},
        "load_assignment": {
            "cluster_name": _TLS_CLUSTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}],
        },
    }

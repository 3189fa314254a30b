"""The admin API's switches: hold and resume releases, or absorbing, for the whole broker."""

from __future__ import annotations

from fastapi import APIRouter

from tidemill.broker.broker import Broker
from tidemill.broker.control.holds import HoldsState
from tidemill.server.http.status_models import HoldsOut
from tidemill.server.security.caller import ADMIN, require_on


def hold_routes(broker: Broker) -> APIRouter:
    """Routes that hold and resume; they are for those who run the broker."""
    routes = APIRouter(prefix="/v1", tags=["levers"])

    @routes.post("/holds/{what}/hold", response_model=HoldsOut)
    def hold(what: str) -> HoldsOut:
        """Hold `releases` (nothing timed is put into its topic) or `absorbing` (the timer takes in no new
        entries), also over restarts. Sends, cancels and moves go on. Held already is no error."""
        require_on(ADMIN, None)
        return holds_out(broker.switches.hold(what))

    @routes.post("/holds/{what}/resume", response_model=HoldsOut)
    def resume(what: str) -> HoldsOut:
        """End a hold of `releases` or `absorbing`; what fell due meanwhile goes at once."""
        require_on(ADMIN, None)
        return holds_out(broker.switches.resume(what))

    return routes


def holds_out(state: HoldsState) -> HoldsOut:
    return HoldsOut(releases_since_ms=state.releases_since_ms, absorbing_since_ms=state.absorbing_since_ms)

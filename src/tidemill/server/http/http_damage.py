"""The admin API's list of messages whose bytes are damaged."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query

from tidemill.broker.broker import Broker
from tidemill.broker.query.damage_views import damage_views
from tidemill.server.http.damage_models import DamagedListOut, DamagedOut
from tidemill.server.http.http_models import LOOK_COUNT_MAX
from tidemill.server.security.caller import LOOK, may, require
from tidemill.store.damaged_messages import damage_counts


def damage_routes(broker: Broker) -> APIRouter:
    """The route that lists what is damaged."""
    routes = APIRouter(prefix="/v1", tags=["looks"])

    @routes.get("/damaged", response_model=DamagedListOut)
    def damaged(limit: Annotated[int, Query(ge=1, le=LOOK_COUNT_MAX)] = 100) -> DamagedListOut:
        """Messages whose bytes in the commit log are damaged, as far as that was found since the start."""
        require(LOOK)
        views = damage_views(broker.store, broker.id, limit, lambda topic: may(LOOK, topic=topic))
        rows = [DamagedOut(**asdict(view)) for view in views]
        return DamagedListOut(**asdict(damage_counts(broker.store)), damaged=rows)

    return routes

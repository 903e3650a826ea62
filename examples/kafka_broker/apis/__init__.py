"""The APIs of the broker, by key: each turns a request into a call, and results into a response.

One module for each kind, as they share their shapes: Kafka has a class for each.
"""

from __future__ import annotations

from examples.kafka_broker.apis import groups, offsets, records, topics
from examples.kafka_broker.apis.api import Api, Broker, Call

API_VERSIONS = 18


def api_versions(broker: Broker, call: Call) -> None:
    """Return the versions of every API."""
    call.respond({"api_keys": version_table()})


def version_table() -> list[dict[str, int]]:
    """Return the versions of every API, as ApiVersions has them."""
    return [
        {"api_key": key, "min_version": api.min_version, "max_version": api.max_version}
        for key, api in sorted(APIS.items())
    ]


# Up to the versions that name topics, not their ids.
APIS: dict[int, Api] = {
    0: Api(3, 9, records.produce),
    1: Api(4, 12, records.fetch),
    2: Api(1, 7, records.list_offsets),
    # librdkafka's version 9 has a tagged field that nobody knows, which kio refuses.
    3: Api(0, 8, topics.metadata),
    8: Api(2, 8, offsets.commit),
    9: Api(1, 8, offsets.fetch),
    10: Api(0, 4, groups.find_coordinator),
    11: Api(0, 9, groups.join),
    12: Api(0, 4, groups.heartbeat),
    13: Api(0, 5, groups.leave),
    14: Api(0, 5, groups.sync),
    15: Api(0, 5, groups.describe),
    16: Api(0, 5, groups.list_groups),
    API_VERSIONS: Api(0, 4, api_versions),
    19: Api(2, 7, topics.create),
    20: Api(1, 5, topics.delete),
    22: Api(0, 4, records.init_producer_id),
    42: Api(0, 2, groups.delete),
}

"""`mqadmin`: the few commands of RocketMQ's tool that scripts use to make topics and groups.

A shim: it takes RocketMQ's flags, does what they mean here, and says on stderr what means nothing here (a
name server, a cluster, queue permissions).

    mqadmin updateTopic -n ns:9876 -c DefaultCluster -t orders -r 8 -w 8 -a +message.type=DELAY
    mqadmin updateSubGroup -c DefaultCluster -g closers -r 16 -o true
    mqadmin topicList
    mqadmin consumerProgress -g closers
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tidemill.cli.connecting import connect
from tidemill.client.client import Client
from tidemill.core.errors import RequestError, TidemillError
from tidemill.core.model import TopicType

_IGNORED = {"namesrvAddr": "-n", "clusterName": "-c", "brokerAddr": "-b", "perm": "-p"}


def main() -> None:
    """Run the shim and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code."""
    try:
        given = _parser().parse_args(list(arguments))
    except SystemExit as stop:
        return int(stop.code or 0)
    ignored = [flag for name, flag in _IGNORED.items() if getattr(given, name, None)]
    if ignored:
        print(f"mqadmin: {', '.join(ignored)} means nothing to Tidemill and is ignored", file=sys.stderr)
    try:
        with connect(given.endpoint or os.environ.get("TIDEMILL_ENDPOINT")) as client:
            given.act(client, given)
    except TidemillError as error:
        print(f"mqadmin: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("mqadmin", description="RocketMQ's mqadmin for Tidemill, in part.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    update_topic = _command(commands, "updateTopic", _update_topic, "make a topic")
    update_topic.add_argument("-t", "--topic", required=True)
    update_topic.add_argument("-r", "--readQueueNums", type=int)
    update_topic.add_argument("-w", "--writeQueueNums", type=int)
    update_topic.add_argument("-p", "--perm")
    update_topic.add_argument("-o", "--order", default="false")
    update_topic.add_argument("-a", "--attributes", default="")
    update_group = _command(commands, "updateSubGroup", _update_group, "make or change a consumer group")
    update_group.add_argument("-g", "--groupName", required=True)
    update_group.add_argument("-r", "--retryMaxTimes", type=int)
    update_group.add_argument("-o", "--consumeMessageOrderly", default=None)
    for flag in ("-s", "-m", "-d", "-q", "-i", "-w", "-a", "-p"):
        update_group.add_argument(flag, help=argparse.SUPPRESS)
    _command(commands, "topicList", _topic_list, "list topics")
    progress = _command(commands, "consumerProgress", _progress, "show how far behind groups are")
    progress.add_argument("-g", "--groupName")
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, act: object, text: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text)
    command.set_defaults(act=act)
    command.add_argument("-n", "--namesrvAddr", help="ignored: there is no name server")
    command.add_argument("-c", "--clusterName", nargs="?", const="-", help="ignored")
    command.add_argument("-b", "--brokerAddr", help="ignored; see --endpoint")
    command.add_argument("--endpoint", help="where the broker is [127.0.0.1:8081]")
    return command


def _update_topic(client: Client, given: argparse.Namespace) -> None:
    queues = given.writeQueueNums or given.readQueueNums
    kind = _type_of(given.attributes, given.order)
    if kind is None:  # as in RocketMQ, a topic that is there stays what it is
        known = [topic.type for topic in client.topics() if topic.name == given.topic]
        kind = known[0] if known else TopicType.MIXED
    topic = client.create_topic(given.topic, kind, queues=queues)
    print(f"create topic to {client.endpoint} success.")
    print(
        f"TopicConfig [topicName={topic.name}, readQueueNums={topic.queues}, writeQueueNums={topic.queues}, "
        f"perm=RW-, attributes={{+message.type={topic.type.value.upper()}}}]"
    )


def _type_of(attributes: str, order: str) -> TopicType | None:
    """The type named by `+message.type=…`, or by `-o true`; None where none is."""
    for part in attributes.split(","):
        name, _, value = part.strip().lstrip("+").partition("=")
        if name == "message.type":
            try:
                return TopicType(value.strip().lower())
            except ValueError:
                known = ", ".join(kind.value.upper() for kind in TopicType)
                raise RequestError(f"message.type={value} is unknown; use one of {known}") from None
    return TopicType.FIFO if order.lower() == "true" else None


def _update_group(client: Client, given: argparse.Namespace) -> None:
    is_fifo = None if given.consumeMessageOrderly is None else given.consumeMessageOrderly.lower() == "true"
    # RocketMQ counts retries, Tidemill attempts: the first delivery is one of them.
    attempts = None if given.retryMaxTimes is None else max(1, given.retryMaxTimes + 1)
    group = client.set_group(given.groupName, max_attempts=attempts, is_fifo=is_fifo)
    print(f"create subscription group to {client.endpoint} success.")
    print(
        f"SubscriptionGroupConfig{{groupName={group.name}, retryMaxTimes={group.max_attempts - 1}, "
        f"consumeMessageOrderly={str(group.is_fifo).lower()}}}"
    )


def _topic_list(client: Client, given: argparse.Namespace) -> None:
    for topic in sorted(client.topics(), key=lambda topic: topic.name):
        print(topic.name)


def _progress(client: Client, given: argparse.Namespace) -> None:
    groups = [group for group in client.groups() if given.groupName in (None, group.name)]
    if given.groupName and not groups:
        raise RequestError(f"group {given.groupName!r} does not exist; make it with updateSubGroup")
    print(f"{'#Group':<40}  {'#Topic':<40}  {'#Diff':>12}  {'#Inflight':>12}")
    for group in groups:
        for topic, lag in sorted(group.lag.items()):
            unsettled = group.unsettled.get(topic, 0)
            print(f"{group.name:<40}  {topic:<40}  {lag:>12}  {unsettled:>12}")
    print(f"\nConsume Diff Total: {sum(sum(group.lag.values()) for group in groups)}")


if __name__ == "__main__":
    main()

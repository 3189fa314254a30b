"""`tidemill mqadmin`: the commands of RocketMQ's tool that scripts use most, with RocketMQ's flags.

A flag without a meaning here (a cluster, queue permissions) is accepted and reported on stderr. There is no
name server: an address given with `-n` is the broker's, unless its port is that of RocketMQ's name server;
then the command reports which broker it uses instead.

    tidemill mqadmin updateTopic -n ns:9876 -c DefaultCluster -t orders -r 8 -w 8 -a +message.type=DELAY
    tidemill mqadmin updateSubGroup -c DefaultCluster -g closers -r 16 -o true
    tidemill mqadmin topicList
    tidemill mqadmin consumerProgress -g closers
    tidemill mqadmin clusterList
    tidemill mqadmin statsAll -t orders

As in RocketMQ, the case of a command's name does not matter. A figure that Tidemill does not keep (messages
per second of a topic, of the last day) is shown as `-`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand

from tidemill.cli.connecting import connect
from tidemill.client.client import Client
from tidemill.core.answers import TopicInfo
from tidemill.core.errors import RequestError, TidemillError
from tidemill.core.model import TopicType

# RocketMQ's options without a meaning here: accepted, so that its scripts run, and reported as ignored.
_IGNORED = {
    "updateTopic": "-c,--clusterName -p,--perm -u,--unit -s,--hasUnitSub",
    "updateSubGroup": (
        "-c,--clusterName -s,--consumeEnable -m,--consumeFromMinEnable -d,--consumeBroadcastEnable "
        "-q,--retryQueueNums -p,--groupRetryPolicy -i,--brokerId -w,--whichBrokerWhenConsumeSlowly "
        "-a,--notifyConsumerIdsChanged --attributes"
    ),
    "topicList": "-c,--clusterModel",
    "consumerProgress": "-c,--cluster -s,--showClientIP",
    "clusterList": "-m,--moreStats -i,--interval -c,--clusterName",
    "statsAll": "",
}
_UNKNOWN = "-"
# Of a group's own topics, which RocketMQ's statsAll leaves out.
_GROUP_TOPICS = ("%RETRY%", "%DLQ%")
_CLUSTER_LINE = "{:<22}  {:<22}  {:<4}  {:<22} {:<16}  {:>16}  {:>16}  {:<22}  {:<11}  {:<12}  {:<8}  {:<10}"
_CLUSTER_HEAD = (
    *("#Cluster Name", "#Broker Name", "#BID", "#Addr", "#Version", "#InTPS(LOAD)", "#OutTPS(LOAD)"),
    *("#Timer(Progress)", "#PCWait(ms)", "#Hour", "#SPACE", "#ACTIVATED"),
)
_STATS_LINE = "{:<64}  {:<64} {:>12} {:>11} {:>11} {:>14} {:>14}"

_NAME_SERVER_PORT = ":9876"
_QUEUES = 8  # of a new topic, as RocketMQ's updateTopic makes it


class MqadminCommand(TyperCommand):
    """Leaves all arguments but a lone `--help` to RocketMQ's grammar."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args in (["--help"], ["-h"], ["help"]):
            return super().parse_args(ctx, ["--help"])
        ctx.args = args
        return []


COMMAND_CLASS = MqadminCommand


def mqadmin(context: typer.Context) -> int:
    """RocketMQ's mqadmin, the most used commands: create topics and groups, show progress.

    updateTopic, updateSubGroup, topicList, consumerProgress, clusterList and statsAll, with RocketMQ's flags;
    `tidemill mqadmin COMMAND -h` lists those of one.
    """
    try:
        given = _parser().parse_args(_normalized(context.args))
    except SystemExit as stop:
        return int(stop.code or 0)
    if given.ignored:
        verbs = ("mean", "are") if len(given.ignored) > 1 else ("means", "is")
        _say(f"{', '.join(given.ignored)} {verbs[0]} nothing to Tidemill and {verbs[1]} ignored")
    try:
        with connect(_endpoint(given)) as client:
            if _is_name_server(given.namesrvAddr) and not given.endpoint:
                _say(
                    f"-n {given.namesrvAddr} is a name server, and Tidemill has none: this goes to "
                    f"{client.endpoint}; name the broker with -n HOST:8081, --endpoint or TIDEMILL_ENDPOINT"
                )
            given.act(client, given)
    except TidemillError as error:  # exit code 1 for all of them, as scripts for RocketMQ expect
        _say(str(error))
        return 1
    return 0


def _say(text: str) -> None:
    print(f"tidemill: {' '.join(text.split())}", file=sys.stderr)


def _endpoint(given: argparse.Namespace) -> str | None:
    """The broker to use: of several addresses after `-n`, as RocketMQ accepts them, the first."""
    if given.endpoint:
        return str(given.endpoint)
    if given.namesrvAddr and not _is_name_server(given.namesrvAddr):
        return str(given.namesrvAddr).split(";")[0]
    return os.environ.get("TIDEMILL_ENDPOINT")


def _is_name_server(address: str | None) -> bool:
    return address is not None and address.split(";")[0].endswith(_NAME_SERVER_PORT)


def _normalized(arguments: Sequence[str]) -> list[str]:
    """The command's name in its proper case; `help updateTopic` is `updateTopic -h`."""
    words = [*arguments[1:2], "-h"] if arguments[:1] == ["help"] else list(arguments)
    names = {name.lower(): name for name in _IGNORED}
    return [*(names.get(name.lower(), name) for name in words[:1]), *words[1:]]


class _Parser(argparse.ArgumentParser):
    """A parser whose error is one line, like that of every other command."""

    def error(self, message: str) -> NoReturn:
        _say(f"{message}; see `{self.prog} -h`")
        raise SystemExit(2)


class _Ignore(argparse.Action):
    """Accepts an option and lists it as ignored."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        namespace.ignored = [*namespace.ignored, option]


def _parser() -> _Parser:
    parser = _Parser("tidemill mqadmin", description="RocketMQ's mqadmin for Tidemill, in part.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, act: Callable[[Client, argparse.Namespace], None], text: str) -> _Parser:
        made: _Parser = commands.add_parser(name, help=text)
        made.set_defaults(act=act, ignored=[])
        made.add_argument("--endpoint", help="where the broker is [127.0.0.1:8081]")
        made.add_argument("-n", "--namesrvAddr", help="the same, unless its port is a name server's (9876)")
        for flags in f"-b,--brokerAddr {_IGNORED[name]}".split():
            made.add_argument(*flags.split(","), action=_Ignore, nargs="?", dest="ignored", help="ignored")
        return made

    update_topic = command("updateTopic", _update_topic, "create a topic")
    update_topic.add_argument("-t", "--topic", required=True)
    update_topic.add_argument("-r", "--readQueueNums", type=int, help=f"queues of a new topic [{_QUEUES}]")
    update_topic.add_argument(
        "-w", "--writeQueueNums", type=int, help="the same; if they differ, this counts"
    )
    update_topic.add_argument("-o", "--order", default="false")
    update_topic.add_argument("-a", "--attributes", default="")
    update_group = command("updateSubGroup", _update_group, "create or change a consumer group")
    update_group.add_argument("-g", "--groupName", required=True)
    update_group.add_argument("-r", "--retryMaxTimes", type=int)
    update_group.add_argument("-o", "--consumeMessageOrderly", default=None)
    command("topicList", _topic_list, "list topics")
    progress = command("consumerProgress", _progress, "show how far behind groups are")
    progress.add_argument("-g", "--groupName")
    progress.add_argument("-t", "--topicName")
    command("clusterList", _cluster_list, "show the broker")
    stats = command("statsAll", _stats_all, "show how far behind each topic's groups are")
    stats.add_argument("-a", "--activeTopic", action="store_true", help="only topics that were sent to")
    stats.add_argument("-t", "--topic")
    return parser


def _update_topic(client: Client, given: argparse.Namespace) -> None:
    kind, queues = _type_of(given.attributes, given.order), _queues_of(given)
    known = next((topic for topic in client.topics.list() if topic.name == given.topic), None)
    if known is None:
        kind, queues = kind or TopicType.MIXED, _QUEUES if queues is None else queues
    else:  # as in RocketMQ, an existing topic keeps its type
        kind = kind or known.type
        if queues not in (None, known.queues):
            raise RequestError(
                f"topic {known.name!r} has {known.queues} queues, not {queues}, and their number stays: "
                "message groups would change queues and lose their order. Any number of consumers share "
                f"them, so omit -r and -w, or pass {known.queues}; for another number delete the topic "
                "and create it again"
            )
    topic = client.topics.create(given.topic, kind, queues=queues)
    print(f"create topic to {client.endpoint} success.")
    print(
        f"TopicConfig [topicName={topic.name}, readQueueNums={topic.queues}, writeQueueNums={topic.queues}, "
        f"perm=RW-, attributes={{+message.type={topic.type.value.upper()}}}]"
    )


def _queues_of(given: argparse.Namespace) -> int | None:
    """The requested number of queues; None if there is none."""
    read, write = given.readQueueNums, given.writeQueueNums
    if None not in (read, write) and read != write:
        _say(f"-r {read} and -w {write} differ; here a topic has one number of queues: {write}")
    queues: int | None = read if write is None else write
    return queues


def _type_of(attributes: str, order: str) -> TopicType | None:
    """The type named by `+message.type=…` or by `-o true`; None if there is none."""
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
    group = client.groups.set(given.groupName, max_attempts=attempts, is_fifo=is_fifo)
    print(f"create subscription group to {client.endpoint} success.")
    print(
        f"SubscriptionGroupConfig{{groupName={group.name}, retryMaxTimes={group.max_attempts - 1}, "
        f"consumeMessageOrderly={str(group.is_fifo).lower()}}}"
    )


def _topic_list(client: Client, given: argparse.Namespace) -> None:
    for topic in sorted(client.topics.list(), key=lambda topic: topic.name):
        print(topic.name)


def _progress(client: Client, given: argparse.Namespace) -> None:
    groups = [group for group in client.groups.list() if given.groupName in (None, group.name)]
    if given.groupName and not groups:
        raise RequestError(f"group {given.groupName!r} does not exist; create it with updateSubGroup")
    print(f"{'#Group':<40}  {'#Topic':<40}  {'#Diff':>12}  {'#Inflight':>12}")
    total = 0
    for group in groups:
        for topic, lag in sorted(group.lag.items()):
            if given.topicName not in (None, topic):
                continue
            unsettled = group.unsettled.get(topic, 0)
            print(f"{group.name:<40}  {topic:<40}  {lag:>12}  {unsettled:>12}")
            total += lag
    print(f"\nConsume Diff Total: {total}")


def _cluster_list(client: Client, given: argparse.Namespace) -> None:
    status = client.status()
    known = {
        "#Cluster Name": "tidemill",
        "#Broker Name": status.fields["broker"],
        "#BID": 0,
        "#Addr": client.endpoint,
        "#Timer(Progress)": f"{status.pending}(pending)",
        "#ACTIVATED": "true",
    }
    print(_CLUSTER_LINE.format(*_CLUSTER_HEAD))
    print(_CLUSTER_LINE.format(*(str(known.get(name, _UNKNOWN)) for name in _CLUSTER_HEAD)))


def _stats_all(client: Client, given: argparse.Namespace) -> None:
    head = "#Topic", "#Consumer Group", "#Accumulation", "#InTPS", "#OutTPS", "#InMsg24Hour", "#OutMsg24Hour"
    print(_STATS_LINE.format(*head))
    groups = client.groups.list()
    for topic in sorted(
        filter(partial(_is_wanted, given), client.topics.list()), key=lambda topic: topic.name
    ):
        readers = [(group.name, group.lag[topic.name]) for group in groups if topic.name in group.lag]
        for group, behind in sorted(readers):
            print(_STATS_LINE.format(topic.name, group, behind, *[_UNKNOWN] * 4))
        if not readers:
            print(_STATS_LINE.format(topic.name, "", 0, _UNKNOWN, "", _UNKNOWN, "NO_CONSUMER"))


def _is_wanted(given: argparse.Namespace, topic: TopicInfo) -> bool:
    is_own = topic.name.startswith(_GROUP_TOPICS)
    return not is_own and given.topic in (None, topic.name) and (topic.sent > 0 or not given.activeTopic)

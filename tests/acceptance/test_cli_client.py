"""The client commands of the command line against a real `tidemill serve`: names, outputs, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from importlib.metadata import version

import pytest

import tidemill
from acceptance.command_line import one_line_on_stderr
from acceptance.serving import Served
from tidemill.cli import connecting, main, receive


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("cli") / "data", "--clock", "simulated").start()
    yield served
    served.stop()


def _json(answer: tuple[int, str, str]):
    code, out, err = answer
    assert code == 0, err
    return json.loads(out)


def test_send_advance_receive(cli) -> None:
    receipt = _json(
        cli("send", "orders", "hello", "--delay", "90s", "--key", "k", "--prop", "a=b", "--tag", "t")
    )
    assert {"message_id", "handle", "deliver_at"} <= set(receipt)
    assert cli("receive", "orders", "--group", "g", "--wait", "1ms")[1] == ""
    assert cli("advance", "90s")[0] == 0
    message = _json(cli("receive", "orders", "--group", "g", "--count", "1", "--json"))
    assert message["message_id"] == receipt["message_id"]
    assert (message["key"], message["tag"], message["body"], message["attempt"]) == ("k", "t", "hello", 1)
    assert message["deliver_at_ms"] == message["released_at_ms"] == receipt["deliver_at_ms"]


def test_send_with_jitter(cli) -> None:
    now_ms = _json(cli("status", "--json"))["now_ms"]
    later = [
        _json(cli("send", "spread", "x", "--delay", "90s", "--jitter", "30s"))["deliver_at_ms"] - now_ms
        for _ in range(5)
    ]
    assert len(set(later)) > 1 and all(90_000 <= ms <= 120_000 for ms in later)
    for options, said in (
        (("--jitter", "30s"), "jitter 30000 ms needs a delay or a delivery time as well"),
        (("--level", "2", "--jitter", "30s"), "jitter 30000 ms is not possible on level 2"),
        (("--delay", "90s", "--jitter", "soon"), "'soon'"),
        (("--delay", "3650d", "--jitter", "2d"), "beyond the limit of 3650d"),
    ):
        code, out, err = cli("send", "spread", "x", *options)
        assert (code, out) == (2, "") and said in err


def test_without_ack_it_comes_again(cli) -> None:
    cli("send", "again", "x")
    first = _json(cli("receive", "again", "--group", "g", "--count", "1", "--no-ack", "--lease", "1s"))
    assert first["ack_token"]
    cli("advance", "1s")
    assert _json(cli("receive", "again", "--group", "g", "--count", "1"))["attempt"] == 2


def test_cancel_says_what_became_of_it(cli) -> None:
    handle = _json(cli("send", "c", "x", "--delay", "1h"))["handle"]
    assert cli("cancel", "c", handle) == (0, "cancelled\n", "")
    assert cli("cancel", "c", handle) == (1, "already-cancelled\n", "")
    soon = _json(cli("send", "c", "x", "--delay", "1s"))["handle"]
    cli("advance", "1s")
    assert cli("cancel", "c", soon)[:2] == (1, "released\n")
    for _ in range(3):
        cli("send", "c", "x", "--delay", "1h", "--key", "k")
    assert cli("cancel", "c", "--key", "k") == (0, "3\n", "")
    assert cli("cancel", "c", "--key", "k") == (1, "0\n", "")
    cli("send", "c", "x", "--delay", "1h")
    assert cli("cancel", "c", "--from", "now", "--to", "+2h")[:2] == (0, "1\n")


def test_with_a_request_id_a_script_may_ask_again(cli) -> None:
    handle = _json(cli("send", "q", "x", "--delay", "1h"))["handle"]
    for _ in range(2):
        assert cli("cancel", "q", handle, "--request-id", "payment-17") == (0, "cancelled\n", "")
    sent = _json(cli("send", "q", "x", "--delay", "1h", "--key", "k"))
    for _ in range(2):
        moved = _json(
            cli("reschedule", "q", sent["handle"], "--by", "10m", "--request-id", "later", "--json")
        )
        assert moved["deliver_at_ms"] == sent["deliver_at_ms"] + 600_000
        assert cli("reschedule", "q", "--key", "k", "--by", "1m", "--request-id", "more")[:2] == (0, "1\n")
    for _ in range(2):
        assert cli("cancel", "q", "--key", "k", "--request-id", "end") == (0, "1\n", "")
    code, _, said = cli("cancel", "q", "--key", "other", "--request-id", "end")
    assert code == 2
    assert "the request id 'end' was used within the last 1h for another request" in said


def test_reschedule_moves(cli) -> None:
    sent = _json(cli("send", "r", "x", "--delay", "1h", "--key", "k"))
    moved = _json(cli("reschedule", "r", sent["handle"], "--by", "10m", "--json"))
    assert moved["deliver_at_ms"] == sent["deliver_at_ms"] + 600_000
    assert cli("reschedule", "r", "--key", "k", "--delay", "5m")[:2] == (0, "1\n")
    assert cli("reschedule", "r", "--from", "now", "--to", "+1h", "--at", "+2h")[:2] == (0, "1\n")
    assert cli("cancel", "r", sent["handle"])[1] == "cancelled\n"
    assert cli("reschedule", "r", sent["handle"], "--delay", "1m")[:2] == (1, "already-cancelled\n")


def test_once_keeps_or_replaces(cli) -> None:
    first = _json(cli("send", "once", "1", "--delay", "1h", "--key", "k", "--once"))
    kept = _json(cli("send", "once", "2", "--once", "--key", "k", "--delay", "2h"))
    assert (kept["message_id"], kept["deliver_at_ms"]) == (first["message_id"], first["deliver_at_ms"])
    moved = _json(cli("send", "once", "3", "--delay", "3h", "--key", "k", "--once", "replace"))
    assert moved["message_id"] == first["message_id"]
    assert moved["deliver_at_ms"] == first["deliver_at_ms"] + 7_200_000


def test_looks(cli) -> None:
    cli("send", "looks", "x", "--delay", "5m", "--key", "shown")
    row = _json(cli("pending", "--topic", "looks", "--limit", "1", "--json"))
    assert row["key"] == "shown"
    assert "shown" in cli("pending", "--topic", "looks")[1]
    assert sum(minute["due"] for minute in _json(cli("forecast", "--topic", "looks", "--json"))) == 1
    assert "█" in cli("forecast", "--topic", "looks")[1]
    cli("send", "sizes", "fourteen bytes", "--delay", "30m")
    assert _json(cli("pending", "--topic", "sizes", "--json"))["body_bytes"] == 14
    assert " 14 " in cli("pending", "--topic", "sizes")[1]
    status = _json(cli("status", "--json"))
    assert {"pending", "released", "cancelled"} <= set(status)
    assert {"p50", "p99", "max"} <= set(status["lateness_ms"])
    assert {"runner", "state", "lag_ms", "takeovers"} <= set(status["pipeline"])
    assert "lateness" in cli("status")[1]
    assert "\x1b" not in cli("status")[1]


def test_hold_and_resume(cli) -> None:
    assert cli("hold", "releases") == (
        0,
        "releases held: nothing timed is put into its topic until `tidemill resume releases`\n",
        "",
    )
    assert _json(cli("hold", "absorbing", "--json"))["absorbing_since_ms"] > 0
    cli("send", "held", "x", "--delay", "1s")
    assert cli("advance", "1s")[0] == 0
    said = cli("status")[1]
    assert "releases for 1s" in said and "1 wait: releases are held" in said
    assert cli("receive", "held", "--group", "g", "--wait", "1ms")[1] == ""
    assert cli("resume", "absorbing")[:2] == (0, "absorbing resumed\n")
    assert _json(cli("resume", "releases", "--json")) == {
        "releases_since_ms": None,
        "absorbing_since_ms": None,
    }
    assert _json(cli("receive", "held", "--group", "g", "--count", "1"))["body"] == "x"
    code, out, err = cli("hold", "sends")
    assert (code, out) == (2, "")
    assert err == "tidemill: 'sends' cannot be held or resumed; use releases or absorbing\n"


def test_topics_and_groups(cli) -> None:
    assert cli("topics", "create", "made", "--type", "delay", "--queues", "3")[0] == 0
    listed = [json.loads(line) for line in cli("topics", "list", "--json")[1].splitlines()]
    assert ("made", "delay", 3) in [(t["name"], t["type"], t["queues"]) for t in listed]
    for words in (("pause",), ("resume",)):
        assert cli("topics", *words, "made")[0] == 0
        assert _json(cli("topics", *words, "made", "--json"))["is_paused"] == (words == ("pause",))
    assert _json(cli("topics", "limit", "made", "7", "--json"))["release_rate_max"] == 7
    cli("send", "made", "x", "--delay", "1h")
    code, _, err = cli("topics", "delete", "made")
    assert code == 1 and "--force" in err
    assert _json(cli("topics", "delete", "made", "--force", "--json")) == {"name": "made", "cancelled": 1}
    assert cli("groups", "set", "workers", "--max-attempts", "3", "--fifo", "--start", "last")[0] == 0
    listed = [json.loads(line) for line in cli("groups", "list", "--json")[1].splitlines()]
    (group,) = [known for known in listed if known["name"] == "workers"]
    assert (group["max_attempts"], group["is_fifo"]) == (3, True)
    cli("send", "seen", "x")
    assert cli("groups", "reset", "workers", "seen", "--to", "now")[0] == 0
    reset = _json(cli("groups", "reset", "workers", "seen", "--to", "1800000000", "--json"))
    assert reset == {"group": "workers", "topic": "seen", "to_ms": 1_800_000_000_000, "is_new": False}
    assert "workers" in cli("groups", "list")[1]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("send", "orders"), 2),
        (("send", "orders", "x", "--delay", "1s", "--level", "3"), 2),
        (("send", "orders", "x", "--delay", "soon"), 2),
        (("send", "orders", "x", "--prop", "novalue"), 2),
        (("cancel", "orders"), 2),
        (("cancel", "orders", "--from", "now"), 2),
        (("cancel", "orders", "nonsense"), 2),
        (("reschedule", "orders", "--key", "k"), 2),
        (("reschedule", "orders", "--key", "k", "--by=-9999d"), 2),
        (("pending", "--from", "+1h", "--to", "now"), 2),
        (("topics",), 2),
        (("send", "orders", "x", "--prop", "=b"), 2),
        (("receive", "orders", "--group", ""), 2),
        (("forecast", "--horizon", "9999d"), 2),
        (("serve", "--data", "d", "--retention", "0s"), 2),
        (("receive", "nowhere", "--group", "g"), 1),
        (("advance", "tomorrow"), 2),
        (("groups", "set", "g", "--start", "middle"), 2),
        (("status", "--endpoint", "127.0.0.1:1"), 1),
        (("status", "--endpoint", "no endpoint"), 2),
        (("forecast", "--horizon", "0s"), 2),
        (("backup", "/proc/nowhere"), 2),
        (("serve", "--data", "d", "--port", "99999"), 2),
        (("serve", "--data", "d", "--flight-port", "-2"), 2),
        (("serve", "--data", "d", "--config", "nowhere.toml"), 2),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(cli, arguments, code) -> None:
    found, out, err = cli(*arguments)
    assert (found, out) == (code, "")
    assert err.startswith("tidemill: ") and err.count("\n") == 1
    assert "Errno" not in err and "answered 500" not in err


def test_errors_speak_of_what_stands_on_the_command_line(cli) -> None:
    assert "--by: '-9999d' is longer" in cli("reschedule", "orders", "--key", "k", "--by=-9999d")[2]
    assert " is after end " in cli("pending", "--from", "+1h", "--to", "now")[2]
    assert "--prop '=b' is not" in cli("send", "orders", "x", "--prop", "=b")[2]
    assert (
        "--lease 0s is not possible; use 1ms to 3650d"
        in cli("receive", "orders", "--group", "g", "--lease", "0s")[2]
    )
    assert "`tidemill topics list` shows" in cli("topics", "delete", "no-such-topic")[2]
    assert "not a handle: 'None'" in cli("cancel", "orders", "None")[2]
    assert "--group is empty" in cli("receive", "orders", "--group", "")[2]
    assert "use at most 62d" in cli("forecast", "--horizon", "9999d")[2]
    assert "retention (retention_ms) 0 is not possible" in cli("serve", "--data", "d", "--retention", "0s")[2]
    cli("send", "seen", "x")
    assert cli("groups", "reset", "typo", "seen", "--to", "now")[1].startswith(
        "typo, a new group: reads seen"
    )
    assert cli("groups", "reset", "typo", "seen", "--to", "now")[1].startswith("typo: reads seen")


def test_what_is_not_read_any_more_is_returned(served, cli, monkeypatch) -> None:
    """As in `tidemill receive … | head -2`."""
    lines: list[str] = []

    def print_two(line: str, **_: object) -> None:
        if len(lines) == 2:
            raise BrokenPipeError
        lines.append(line)

    for number in range(5):
        cli("send", "piped", str(number))
    monkeypatch.setattr(receive, "print", print_two, raising=False)
    monkeypatch.setattr(main, "_drop_stdout", lambda: None)
    assert cli("receive", "piped", "--group", "g")[0] == 0
    with tidemill.Client(served.endpoint) as client:
        rest = client.receive_batch("piped", "g")
    assert len({json.loads(line)["message_id"] for line in lines} | {message.id for message in rest}) == 5
    assert [message.attempt for message in rest] == [1, 1, 1]


def test_it_says_its_version(cli) -> None:
    assert cli("--version") == (0, f"tidemill {version('tidemill')}\n", "")


@pytest.mark.parametrize("token", ["secret\nX-Other: 1", "secret\udcff"])
def test_a_token_that_fits_no_header_is_refused_and_not_shown(cli, monkeypatch, token: str) -> None:
    monkeypatch.setenv("TIDEMILL_TOKEN", token)
    code, _, err = cli("status")
    assert code == 2 and "the token contains" in err and "secret" not in err


def test_a_config_file_names_the_endpoint(served, cli, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("TIDEMILL_ENDPOINT")
    config = tmp_path / "config.toml"
    monkeypatch.setenv("TIDEMILL_CONFIG", str(config))
    config.write_text(f'endpoint = "{served.endpoint}"\n')
    assert cli("status", "--json")[0] == 0
    for wrong in (b"endpont = 1\n", b"endpoint = 5\n", b"endpoint = [\n", b"\xff\xfe\x00"):
        config.write_bytes(wrong)
        code, _, err = cli("status")
        assert code == 2 and str(config) in err and err.count("\n") == 1


def test_a_certificate_in_the_config_file_may_be_at_home(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("TIDEMILL_CA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TIDEMILL_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text('ca = "~/ca.pem"\n')
    assert connecting.broker_of(None).ca == str(tmp_path / "ca.pem")


def _mqadmin(words: list[str]) -> int:
    return main.run(["mqadmin", *words])


def test_mqadmin_takes_rocketmq_flags(served, capsys, monkeypatch) -> None:
    monkeypatch.setenv("TIDEMILL_ENDPOINT", served.endpoint)
    words = "updateTopic -n ns:9876 -c DefaultCluster -t fromrmq -r 8 -w 8 -a +message.type=DELAY"
    assert _mqadmin(words.split()) == 0
    out, err = capsys.readouterr()
    assert "success" in out and "writeQueueNums=8" in out
    assert f"-n ns:9876 is a name server, and Tidemill has none: this goes to {served.endpoint};" in err
    assert _mqadmin(["topicList", "-n", "ns:9876"]) == 0
    assert "fromrmq" in capsys.readouterr().out.split()
    assert _mqadmin(["updateSubGroup", "-b", "broker:10911", "-g", "rmqgroup", "-r", "4", "-o", "true"]) == 0
    assert "retryMaxTimes=4" in capsys.readouterr().out
    assert _mqadmin(["consumerProgress", "-g", "rmqgroup"]) == 0
    assert _mqadmin(["consumerProgress", "-g", "nobody"]) == 1
    assert _mqadmin(["updateTopic", "-t", "x", "-a", "+message.type=ODD"]) == 1
    assert _mqadmin(["updateTopic", "-t", "fromrmq"]) == 0  # stays what it is
    assert "+message.type=DELAY" in capsys.readouterr().out
    assert _mqadmin(["updateTopic", "-t", "fromrmq", "-w", "2"]) == 1
    assert "has 8 queues, not 2, and their number stays" in capsys.readouterr().err
    assert _mqadmin(["fly"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "mqadmin -h" in err


def test_mqadmin_lists_the_broker_and_how_far_groups_are_behind(served, capsys, monkeypatch) -> None:
    monkeypatch.setenv("TIDEMILL_ENDPOINT", served.endpoint)
    with tidemill.Client(served.endpoint) as client:
        client.send("rmq-stats", "1")
        client.send("rmq-stats", "2")
        client.topics.create("rmq-unused")
        client.receive_batch("rmq-stats", group="rmq-readers", count=1)
    assert _mqadmin(["clusterList", "-n", "ns:9876"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["#Cluster", "Name", "#Broker", "Name"] and head.split()[-1] == "#ACTIVATED"
    assert line.split()[2:4] == ["0", served.endpoint] and line.split()[-1] == "true"
    assert _mqadmin(["statsAll"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["rmq-stats", "rmq-readers", "1", "-", "-", "-", "-"] in rows
    assert ["rmq-unused", "0", "-", "-", "NO_CONSUMER"] in rows
    assert _mqadmin(["statsAll", "-a", "-t", "rmq-unused"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize("name", ["topiclist", "TOPICLIST", "clusterlist", "StatsAll", "CONSUMERPROGRESS"])
def test_mqadmin_takes_command_names_in_any_case(served, monkeypatch, name: str) -> None:
    monkeypatch.setenv("TIDEMILL_ENDPOINT", served.endpoint)
    assert _mqadmin([name]) == 0
    assert _mqadmin(["help", name]) == 0


def test_mqadmin_makes_as_many_queues_as_rocketmq(served, capsys, monkeypatch) -> None:
    monkeypatch.setenv("TIDEMILL_ENDPOINT", served.endpoint)
    for name, flags, queues in (
        ("rmq-default", [], 8),
        ("rmq-read", ["-r", "3"], 3),
        ("rmq-both", ["-r", "3", "-w", "5"], 5),
        ("rmq-both", [], 5),  # stays what it is
        ("rmq-both", ["-w", "5"], 5),
    ):
        assert _mqadmin(["updateTopic", "-t", name, *flags]) == 0
        out, err = capsys.readouterr()
        assert f"readQueueNums={queues}, writeQueueNums={queues}," in out
        assert ("-r 3 and -w 5 differ" in err) == (len(flags) == 4)
    assert _mqadmin(["updateTopic", "-t", "rmq-none", "-w", "0"]) == 1
    assert "queues" in capsys.readouterr().err


def test_mqadmin_takes_the_address_after_n_for_the_brokers(served, capsys, monkeypatch) -> None:
    monkeypatch.setenv("TIDEMILL_ENDPOINT", "127.0.0.1:1")
    for address in (served.endpoint, f"{served.endpoint};127.0.0.1:1"):
        assert _mqadmin(["topicList", "-n", address]) == 0
        assert capsys.readouterr().err == ""
    assert _mqadmin(["topicList", "-n", "ns:9876", "--endpoint", served.endpoint]) == 0
    assert capsys.readouterr().err == ""
    assert _mqadmin(["topicList", "-n", "127.0.0.1:9876"]) == 1  # that of the environment, where none is
    assert "this goes to 127.0.0.1:1;" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "updateTopic --namesrvAddr ns:9876 --clusterName C --topic rmqlong --readQueueNums 4 "
        "--writeQueueNums 4 --perm 6 --order false --unit false --hasUnitSub false "
        "--attributes +message.type=NORMAL",
        "updateTopic -n ns:9876 -b broker:10911 -t rmqlong -p 6 -u false -s false",
        "updateSubGroup --namesrvAddr ns:9876 --clusterName C --groupName rmqlong --consumeEnable true "
        "--consumeFromMinEnable false --consumeBroadcastEnable false --consumeMessageOrderly false "
        "--retryQueueNums 1 --retryMaxTimes 16 --brokerId 0 --whichBrokerWhenConsumeSlowly 1 "
        "--notifyConsumerIdsChanged true --attributes +a=b",
        "updateSubGroup -n ns:9876 -c C -g rmqlong -s true -m false -d false -q 1 -i 0 -w 1 -a true",
        "topicList --namesrvAddr ns:9876 --clusterModel",
        "topicList -n ns:9876 -c",
        "consumerProgress --namesrvAddr ns:9876 --groupName rmqlong --topicName rmqlong --showClientIP true",
        "consumerProgress -n ns:9876 -g rmqlong -t rmqlong -s true -c C",
        "clusterList --namesrvAddr ns:9876 --moreStats --interval 1 --clusterName C",
        "clusterList -n ns:9876 -m -i 1 -c C",
        "statsAll --namesrvAddr ns:9876 --activeTopic --topic rmqlong",
        "help updateTopic",
        "help",
    ],
)
def test_mqadmin_takes_every_option_of_rocketmq(served, capsys, monkeypatch, words: str) -> None:
    monkeypatch.setenv("TIDEMILL_ENDPOINT", served.endpoint)
    with tidemill.Client(served.endpoint) as client:
        client.groups.set("rmqlong")
    assert _mqadmin(words.split()) == 0
    err = capsys.readouterr().err
    assert words.startswith("help") or "ignored" in err or "name server" in err


def test_a_killed_broker_loses_no_answered_send_of_our_client(tmp_path) -> None:
    served = Served(tmp_path / "data").start()
    try:
        stop, sent = threading.Event(), []
        with tidemill.Client(served.endpoint, retry_for="60s") as client:

            def send() -> None:
                while not stop.is_set():
                    sent.append(client.send("orders", b"x", delay="1h").id)

            threads = [threading.Thread(target=send) for _ in range(8)]
            for thread in threads:
                thread.start()
            for _ in range(2):
                goal = len(sent) + 300
                while len(sent) < goal:
                    stop.wait(0.005)
                served.kill_broker()
            goal = len(sent) + 100
            while len(sent) < goal:
                stop.wait(0.005)
            stop.set()
            for thread in threads:
                thread.join()
            waiting = [message.id for message in client.pending("orders", limit=10_000)]
        assert sorted(waiting) == sorted(sent)
    finally:
        served.stop()


# -- output that goes nowhere ---------------------------------------------------------------------


def _run_in_shell(served, words: str) -> subprocess.CompletedProcess[str]:
    """A command with its redirection, its output buffered as usual."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        ["sh", "-c", f'"$0" -m tidemill {words}', sys.executable],
        env=environment | {"TIDEMILL_ENDPOINT": served.endpoint},
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("redirection", "said"), [(">&-", "standard output is closed"), (">/dev/full", "No space left")]
)
def test_what_cannot_be_printed_is_not_acknowledged(cli, served, redirection: str, said: str) -> None:
    topic = f"unseen-{said.split()[0]}"
    cli("send", topic, "x")
    result = _run_in_shell(served, f"receive {topic} --group g --count 1 --wait 5s {redirection}")
    assert result.returncode == 1
    assert said in one_line_on_stderr(result)
    assert _json(cli("receive", topic, "--group", "g", "--count", "1"))["attempt"] == 1


def test_a_full_disk_behind_the_output_is_reported(served) -> None:
    result = _run_in_shell(served, "status --json >/dev/full")
    assert result.returncode == 1
    assert "No space left" in one_line_on_stderr(result)

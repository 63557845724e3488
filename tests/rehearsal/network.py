"""A network of hosts on this machine: network namespaces on one bridge, a name
server (dnsmasq) and a load balancer (HAProxy).

A host is held by a process that ends with its standard input, so that nothing is
left of a test that was killed. Needs root. For the main thread: what it starts
ends with the thread that started it.
"""

import contextlib
import csv
import ctypes
import io
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from processes import PATIENCE, await_that, fetch  # noqa: E402

CLONE_NEWNET = 0x40000000
SUBNET = "10.77.0"
OURS = f"{SUBNET}.1"
ZONE = "baton.test"


class NotPossible(Exception):
    """This machine does not allow it, or lacks a program."""


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True,
                          timeout=PATIENCE, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr.strip()}")


def need(*programs):
    missing = [one for one in programs if not shutil.which(one)]
    if missing:
        raise NotPossible(f"no {', '.join(missing)}")


def enter_private_network():
    """This process moves to a network of its own, with the bridge."""
    need("ip", "nsenter", "unshare", "setpriv", "dnsmasq", "haproxy")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        raise NotPossible(
            f"no network namespaces: {os.strerror(ctypes.get_errno())}")
    try:
        run("ip", "link", "set", "lo", "up")
        # An address of its own: left to itself it takes the lowest of its ports',
        # and when that host goes, nobody reaches this process for as long as they
        # remember the old one.
        run("ip", "link", "add", "rack", "address", "02:00:00:00:00:01", "type",
            "bridge")
        run("ip", "addr", "add", f"{OURS}/24", "dev", "rack")
        run("ip", "link", "set", "rack", "up")
    except AssertionError as error:
        raise NotPossible(f"no bridge: {error}") from error


class Host:
    """One with an address of its own. `number`: the last of the four."""

    def __init__(self, number):
        self.address = f"{SUBNET}.{number}"
        self.port = f"port{number}"
        self.holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; read line"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            # It is in its namespace once it says something.
            if not self.holder.stdout.readline():
                raise AssertionError("no network namespace for a host")
            run("ip", "link", "add", self.port, "type", "veth", "peer", "name",
                "eth0", "netns", str(self.holder.pid))
            run("ip", "link", "set", self.port, "master", "rack", "up")
            for command in (["link", "set", "lo", "up"],
                            ["addr", "add", f"{self.address}/24", "dev", "eth0"],
                            ["link", "set", "eth0", "up"]):
                run(*self.inside(["ip", *command]))
            # The kernel says so a little later.
            await_that(self.is_up, f"the link of {self.address}")
        except BaseException:
            self.remove()
            raise

    def inside(self, command):
        """The command that runs it there; its process id is the program's."""
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", "--",
                *command]

    def is_up(self):
        shown = subprocess.run(
            self.inside(["ip", "-br", "link", "show", "dev", "eth0"]),
            capture_output=True, text=True, timeout=PATIENCE, check=True)
        return shown.stdout.split()[1] == "UP"

    def start(self, command, log):
        """A program there, which ends with this process."""
        with open(log, "ab") as file:
            return subprocess.Popen(
                self.inside(["setpriv", "--pdeathsig", "KILL", *command]),
                stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    def set(self, parameter, value):
        """One of the kernel's, of this host's network."""
        file = "/proc/sys/" + parameter.replace(".", "/")
        run(*self.inside(["sh", "-c", f"echo {value} > {file}"]))

    def unplug(self):
        """From now on nothing leaves it, and nothing arrives."""
        run("ip", "link", "set", self.port, "down")

    def remove(self):
        """The namespace goes with its last process."""
        self.holder.stdin.close()
        self.holder.wait(PATIENCE)
        self.holder.stdout.close()
        with contextlib.suppress(AssertionError):
            run("ip", "link", "delete", self.port)


def stop(process):
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def answers_questions(address):
    """Whether a DNS server there says anything about ZONE (RFC 1035, 4.1)."""
    header = struct.pack("!6H", 1, 0, 1, 0, 0, 0)  # one question
    labels = b"".join(bytes([len(label)]) + label.encode()
                      for label in ZONE.split("."))
    question = labels + struct.pack("!B2H", 0, 1, 1)  # its addresses
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(1)
        try:
            client.connect((address, 53))
            client.send(header + question)
            return client.recv(512)[:2] == header[:2]
        except OSError:
            return False


class NameServer:
    """dnsmasq with the addresses of some names of ZONE."""

    def __init__(self, number, folder):
        self.table = {}
        self.file = pathlib.Path(folder) / "hosts"
        self.log = pathlib.Path(folder) / "dnsmasq.log"
        self.file.write_text("")
        self.host = Host(number)
        self.address = f"{self.host.address}:53"
        self.process = self.host.start(
            ["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null",
             "--no-resolv", "--no-hosts", f"--addn-hosts={self.file}",
             f"--local=/{ZONE}/", "--local-ttl=1", "--pid-file=", "--user=root",
             "--log-facility=-"], self.log)
        # SIGHUP, by which it reads its table again, ends it until it has said
        # what is to be done with it.
        try:
            await_that(self.serves, "the name server answers")
        except BaseException:
            self.stop()
            raise

    def serves(self):
        self._check()
        return answers_questions(self.host.address)

    def _check(self):
        if self.process.poll() is not None:
            raise AssertionError(
                f"the name server has ended with {self.process.returncode}: "
                f"{self.log.read_text(errors='replace')}")

    def add(self, name, address):
        self.table.setdefault(name, []).append(address)
        self._write()

    def remove(self, name, address):
        self.table[name].remove(address)
        self._write()

    def _write(self):
        new = self.file.with_suffix(".new")
        new.write_text("".join(f"{address} {name}.{ZONE}\n"
                               for name, addresses in self.table.items()
                               for address in addresses))
        new.rename(self.file)
        self._check()
        self.process.send_signal(signal.SIGHUP)

    def stop(self):
        stop(self.process)
        self.host.remove()


class LoadBalancer:
    """HAProxy as deploy/haproxy has it."""

    def __init__(self, number, folder, names):
        self.host = Host(number)
        self.http = f"{self.host.address}:8000"
        self.grpc = f"{self.host.address}:8600"
        self.stats = f"{self.host.address}:8404"
        # As haproxy.cfg says.
        self.host.set("net.ipv4.tcp_retries2", 5)
        self.process = self.host.start(
            ["env", f"BATON_DNS={names}", f"BATON_ROUTERS=router.{ZONE}",
             f"BATON_HTTP_BIND={self.http}", f"BATON_GRPC_BIND={self.grpc}",
             f"BATON_STATS_BIND={self.stats}",
             "haproxy", "-db", "-f",
             str(ROOT / "deploy" / "haproxy" / "haproxy.cfg")],
            pathlib.Path(folder) / "haproxy.log")

    def uses(self, address):
        """Whether new requests may go to the router there."""
        rows = csv.DictReader(
            io.StringIO(fetch(self.stats, "/stats;csv", patience=5)))
        return any((row["addr"] or "").startswith(f"{address}:") and
                   row["status"].startswith("UP") for row in rows)

    def serves(self):
        try:
            return "data" in fetch(self.http, "/v1/models", patience=5)
        except OSError:
            return False

    def await_serving(self):
        await_that(self.serves, "the load balancer has a router")

    def stop(self):
        stop(self.process)
        self.host.remove()

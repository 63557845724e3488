"""Programs that a test starts, asks and ends. Every wait has a deadline."""

import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

PATIENCE = 60  # seconds; a test that passes does not wait that long


def await_that(condition, what, patience=PATIENCE):
    """Asks again and again; the last answer that was not falsy."""
    end = time.monotonic() + patience
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"not within {patience} s: {what}")
        time.sleep(0.05)


class Process:
    """A program that writes one line of JSON when it is ready."""

    def __init__(self, command, log):
        self.log = open(log, "wb")
        reader, writer = os.pipe()
        try:
            self.child = subprocess.Popen(
                [*command, "--ready-fd", str(writer)], pass_fds=[writer],
                stdin=subprocess.DEVNULL, stdout=self.log,
                stderr=subprocess.STDOUT)
        finally:
            os.close(writer)
        self.reader = reader

    def ready(self):
        """What the line says."""
        text, end = b"", time.monotonic() + PATIENCE
        while not text.endswith(b"\n"):
            left = end - time.monotonic()
            if left < 0 or not select.select([self.reader], [], [], left)[0]:
                raise AssertionError(f"{self.log.name}: not ready")
            piece = os.read(self.reader, 65536)
            if not piece:
                raise AssertionError(
                    pathlib.Path(self.log.name).read_text(errors="replace"))
            text += piece
        return json.loads(text)

    def kill(self):
        self.child.kill()
        self.child.wait()

    def terminate(self):
        """SIGTERM, and its exit status."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        return self.child.wait(PATIENCE)

    def stop(self):
        try:
            self.terminate()
        except subprocess.TimeoutExpired:
            self.kill()
        self.close()

    def close(self):
        """What is left of one that has ended."""
        os.close(self.reader)
        self.log.close()


# Straight, whatever proxy the environment names.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(address, path, patience=PATIENCE, **query):
    url = f"http://{address}{path}"
    if query:
        url += "?" + urllib.parse.urlencode(query)
    try:
        with _opener.open(url, timeout=patience) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


def samples(text, name):
    """{labels as they stand: value} of a metric on a page of metrics."""
    found = {}
    for line in text.splitlines():
        if line.startswith((name + "{", name + " ")):
            labels, value = line[len(name):].rsplit(" ", 1)
            found[labels] = float(value)
    return found


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]

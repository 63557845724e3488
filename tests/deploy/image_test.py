"""The image of deploy/docker/Dockerfile, made in a folder and run.

    image_test.py BIN_DIR CACHE_DIR

Its stage `build` is replaced by the programs of BIN_DIR: compiling everything
once more would take ten minutes. Exits with 77 (skipped) where the folder
cannot be made: not root, no debootstrap, no mirror.
"""

import json
import pathlib
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
ROOTFS = SOURCE / "deploy/docker/rootfs"
SKIPPED = 77
CANNOT = 69

root = None


def in_image(script, **environment):
    """Runs a bash script as the image's user; its output."""
    pairs = [f"--env={name}={value}" for name, value in environment.items()]
    return subprocess.run(
        [str(ROOTFS), "run", *pairs, str(root), "--", "bash", "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=300, check=False)


# As compose.yaml has it, on one loopback. Ends with 0 when an answer came and
# all three stopped in peace.
CLUSTER = r"""
set -u
model=/usr/share/baton/models/stories
baton-prefill --model $model --listen 127.0.0.1:8701 \
  --metrics 127.0.0.1:9601 --kv-memory 16MiB --threads 1 \
  --transport $TRANSPORT 2>/tmp/prefill.log & prefill=$!
baton-decode --model $model --listen 127.0.0.1:8702 --data-port 8703 \
  --metrics 127.0.0.1:9602 --kv-memory 16MiB --threads 1 \
  --transport $TRANSPORT 2>/tmp/decode.log & decode=$!
baton-router --model $model --listen 127.0.0.1:8600 --http 127.0.0.1:8000 \
  --prefill 127.0.0.1:8701 --decode 127.0.0.1:8702 2>/tmp/router.log & router=$!
failed() { echo "FAILED: $1"; tail -n 20 /tmp/*.log; exit 1; }
# The image's own health check says when the cluster can serve; with the decode
# worker alone it could, too.
for i in $(seq 600); do
  ready="$(baton-probe 2>/dev/null)" && [[ $ready = *'"prefill_workers":1,'* ]] &&
    break
  for process in $prefill $decode $router; do
    kill -0 $process || failed "one of them ended"
  done
  [ "$i" = 600 ] && failed "never ready: $ready"
  sleep 0.1
done
echo "$ready"
# On a busy machine two seconds may be too few for an answer.
answers() {
  for i in 1 2 3 4 5 6 7 8 9 10; do baton-probe $1 && return; done
  failed "no good answer of $1"
}
for port in 9601 9602; do
  answers 127.0.0.1:$port/readyz
  answers 127.0.0.1:$port/healthz
done
baton generate "Once upon a time" --address 127.0.0.1:8600 --seed 3 \
  --max-tokens 40 --echo --timeout 60 || failed generate
kill -TERM $router; wait $router || failed "router's end: $?"
kill -TERM $prefill $decode
wait $prefill || failed "prefill worker's end: $?"
wait $decode || failed "decode worker's end: $?"
"""


class ImageTest(unittest.TestCase):

    def check(self, script, **environment):
        done = in_image(script, **environment)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_an_answer_by_shared_memory(self):
        said = self.check(CLUSTER, TRANSPORT="local")
        self.assertIn("Once upon a time, there was", said)
        self.assertIn('"prefill_workers":1,"decode_workers":1', said)

    def test_an_answer_over_each_network_transport(self):
        for transport in ("tcp", "ucx"):
            said = self.check(CLUSTER, TRANSPORT=transport)
            self.assertIn("Once upon a time, there was", said)

    def test_who_it_is_and_what_it_may_write(self):
        said = self.check(
            "id -u; id -g; cd /; for at in / /etc /usr/local/bin /var /home; do"
            " ( : >$at/x ) 2>/dev/null && echo wrote $at; done;"
            " : >/tmp/x && echo tmp; find / -xdev -perm /6000 -type f"
            " -newer /etc/passwd 2>/dev/null; true")
        self.assertEqual(said.split(), ["10001", "10001", "tmp"])

    def test_all_libraries_are_there(self):
        said = self.check("for p in baton baton-router baton-prefill "
                          "baton-decode baton-worker; do ldd /usr/local/bin/$p; done")
        self.assertNotIn("not found", said)

    def test_the_probe_fails_where_nobody_answers(self):
        done = in_image("baton-probe 127.0.0.1:8000/readyz")
        self.assertNotEqual(done.returncode, 0)

    def test_nothing_of_the_build_is_in_it(self):
        said = self.check("ls /src /tmp /root /var/lib/apt/lists "
                          "/usr/share/doc 2>&1; command -v gcc cmake; true")
        self.assertNotIn("gcc", said)
        self.assertNotIn("CMakeLists", said)
        # Stripped: the sections of debugging are gone.
        for program in ("baton", "baton-router"):
            sections = subprocess.run(
                ["readelf", "-S", str(root / "usr/local/bin" / program)],
                stdout=subprocess.PIPE, text=True, check=True).stdout
            self.assertNotIn(".debug_info", sections)

    def test_its_settings(self):
        config = json.loads((root.parent / (root.name + ".json")).read_text())
        self.assertEqual((config["user"], config["group"]), (10001, 10001))
        self.assertEqual(config["stop_signal"], "SIGTERM")
        self.assertEqual(config["healthcheck"]["cmd"], ["baton-probe"])
        self.assertIn("org.opencontainers.image.title", config["labels"])


def main():
    global root
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    programs, cache = (pathlib.Path(a).resolve() for a in sys.argv[1:])
    cache.mkdir(parents=True, exist_ok=True)
    root = cache / "root"
    built = subprocess.run(
        [str(ROOTFS), "build", "--programs", str(programs), "--cache",
         str(cache), str(root)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False)
    if built.returncode == CANNOT:
        print("skipped:", built.stdout)
        sys.exit(SKIPPED)
    if built.returncode != 0:
        sys.exit(built.stdout)
    unittest.main(argv=sys.argv[:1])


if __name__ == "__main__":
    main()

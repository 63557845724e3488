"""What images are made from, against the programs of a build and each other.

    image_files_test.py BIN_DIR
"""

import importlib.machinery
import importlib.util
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
DOCKER = SOURCE / "deploy/docker"

programs = None


def load_rootfs():
    loader = importlib.machinery.SourceFileLoader("rootfs",
                                                  str(DOCKER / "rootfs"))
    spec = importlib.util.spec_from_loader("rootfs", loader)
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


rootfs = load_rootfs()


def listed(path):
    return [line.split("#")[0].strip() for line in path.read_text().splitlines()
            if line.split("#")[0].strip()]


class ImageFilesTest(unittest.TestCase):

    @unittest.skipUnless(shutil.which("dpkg-query"), "not Debian")
    def test_the_packages_are_those_of_the_programs(self):
        """Not one too few: programs would not start; and not one too many."""
        with tempfile.TemporaryDirectory() as out:
            subprocess.run([str(DOCKER / "build_programs"), "--from",
                            str(programs), out], check=True)
            needed = listed(pathlib.Path(out) / "packages-runtime.txt")
        self.assertGreater(len(needed), 5)
        self.assertEqual(sorted(listed(DOCKER / "packages-runtime.txt")),
                         needed)

    def test_dockerfiles_can_be_read_and_agree(self):
        settings = []
        for name in ("Dockerfile", "Dockerfile.cuda"):
            stages = rootfs.parse_dockerfile(DOCKER / name)
            self.assertEqual([stage.name for stage in stages], ["build", ""])
            config = {"env": {}, "labels": {}, "ports": []}
            for instruction, rest in stages[-1].steps:
                if not rootfs.apply_setting(config, instruction, rest):
                    self.assertIn(instruction, ("COPY", "RUN"))
            self.assertEqual((config["user"], config["group"]), (10001, 10001))
            del config["labels"]
            config["env"] = {"BATON_PROBE": config["env"]["BATON_PROBE"]}
            settings.append(config)
        self.assertEqual(settings[0], settings[1])

    def test_the_user_is_the_one_that_is_made(self):
        script = (DOCKER / "install_runtime").read_text()
        self.assertIn("baton:x:10001:10001:", script)

    def test_the_context_has_what_is_copied_and_what_cmake_wants(self):
        allowed = rootfs.context_files()
        for path in allowed:
            self.assertTrue((SOURCE / path).exists(), path)
        top = (SOURCE / "CMakeLists.txt").read_text()
        for line in top.splitlines():
            if line.startswith("add_subdirectory("):
                folder = line[len("add_subdirectory("):-1]
                self.assertIn(folder, allowed)
        for name in ("Dockerfile", "Dockerfile.cuda"):
            for stage in rootfs.parse_dockerfile(DOCKER / name):
                for instruction, rest in stage.steps:
                    if instruction == "COPY" and "--from" not in rest:
                        rootfs.copy_sources(rest, {})

    def test_what_is_not_known_is_refused(self):
        def parse(text):
            with tempfile.NamedTemporaryFile("w") as file:
                file.write(text)
                file.flush()
                return rootfs.parse_dockerfile(pathlib.Path(file.name))

        for text in ("", "RUN true\n", "FROM a b\n", "FROM a \\\n"):
            with self.assertRaises(rootfs.Failure, msg=text):
                parse(text)
        stage = parse("FROM a\nVOLUME /x\n")[0]
        self.assertFalse(rootfs.apply_setting({}, *stage.steps[0]))
        with self.assertRaises(rootfs.Failure):
            rootfs.copy_sources("docs /x", {})
        with self.assertRaises(rootfs.Failure):
            rootfs.copy_sources("--from=nobody a /x", {})

    def test_compose_names_flags_and_files_that_there_are(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("no YAML for Python (Debian: python3-yaml)")
        compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
        for name, service in compose["services"].items():
            command = service.get("command", [])
            text = command[2] if command[:1] == ["bash"] else " ".join(command)
            if name in ("router", "prefill", "decode"):
                program = f"baton-{name}"
                self.assertIn(program, text)
                known = subprocess.run([str(programs / program), "--help"],
                                       stdout=subprocess.PIPE, text=True,
                                       check=True).stdout
                for word in text.split():
                    if word.startswith("--"):
                        self.assertIn(word.split("=")[0] + " ", known)
                self.assertTrue(service["read_only"])
                self.assertEqual(service["cap_drop"], ["ALL"])
                self.assertEqual(service["user"], "10001:10001")
            for volume in service.get("volumes", []):
                if volume.startswith(".."):
                    path = volume.split(":")[0]
                    self.assertTrue((DOCKER / path).exists(), path)
            for port in service.get("ports", []):
                self.assertTrue(port.startswith("127.0.0.1:"), port)
        drain = compose["services"]["decode"]["command"][2]
        seconds = int(drain.split("--drain-seconds=")[1].split()[0])
        grace = compose["services"]["decode"]["stop_grace_period"]
        self.assertGreaterEqual(int(grace.rstrip("s")), seconds + 2)


if __name__ == "__main__":
    programs = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()

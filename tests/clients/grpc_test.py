"""The gRPC package for Python, with stubs made from our protos.

Addresses and folders come from the environment (see run).
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

STUBS = tempfile.TemporaryDirectory()
subprocess.run(
    ["protoc", "--proto_path", os.environ["BATON_PROTO_DIR"],
     "--python_out", STUBS.name, "--grpc_out", STUBS.name,
     "--plugin=protoc-gen-grpc=/usr/bin/grpc_python_plugin",
     "baton/v1/inference.proto"], check=True)
sys.path.insert(0, STUBS.name)

import grpc  # noqa: E402
from baton.v1 import inference_pb2 as pb  # noqa: E402
from baton.v1 import inference_pb2_grpc as services  # noqa: E402


class GrpcTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        ready, writer = os.pipe()
        cls.cluster = subprocess.Popen(
            [os.path.join(os.environ["BATON_BIN_DIR"], "baton"), "up",
             "--model", os.environ["BATON_MODEL_DIR"],
             "--listen", "127.0.0.1:0", "--threads", "1",
             "--kv-memory", "64MiB", "--die-with-parent",
             "--ready-fd", str(writer)], pass_fds=[writer])
        os.close(writer)
        with os.fdopen(ready) as line:
            address = json.loads(line.readline())["grpc"]
        cls.channel = grpc.insecure_channel(address)
        cls.stub = services.InferenceStub(cls.channel)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.cluster.terminate()
        assert cls.cluster.wait(timeout=60) == 0

    def request(self, **fields):
        return pb.GenerateRequest(
            text="Once upon a time", max_tokens=12,
            sampling=pb.SamplingParams(temperature=0), **fields)

    def test_streams_tokens(self):
        request = self.request()
        # Tokens that wait for a slow client come together; not so many.
        request.max_tokens = 200
        request.ignore_eos = True
        responses = list(self.stub.Generate(request, timeout=60))
        tokens = [t for r in responses for t in r.token_ids]
        self.assertEqual(len(tokens), 200)
        self.assertGreater(len(responses), 3)
        self.assertEqual(responses[-1].finish_reason,
                         pb.FINISH_REASON_LENGTH)
        self.assertEqual(responses[-1].usage.output_tokens, 200)

    def test_stop_strings_and_logprobs(self):
        whole = "".join(
            r.text for r in self.stub.Generate(self.request(), timeout=60))
        stop = whole.split()[3]
        request = self.request(stop=[stop], top_logprobs=2)
        responses = list(self.stub.Generate(request, timeout=60))
        text = "".join(r.text for r in responses)
        self.assertEqual(text, whole[:whole.index(stop)])
        self.assertEqual(responses[-1].stop, stop)
        tops = [len(entry.top) for r in responses for entry in r.logprobs]
        self.assertEqual(set(tops), {2})

    def test_chats(self):
        request = pb.GenerateRequest(max_tokens=4, chat=pb.ChatPrompt(
            messages=json.dumps([{"role": "user", "content": "Hello"}])))
        responses = list(self.stub.Generate(request, timeout=60))
        self.assertEqual(responses[-1].usage.output_tokens, 4)

    def test_errors_name_the_field(self):
        with self.assertRaises(grpc.RpcError) as caught:
            list(self.stub.Generate(self.request(top_logprobs=99), timeout=60))
        self.assertEqual(caught.exception.code(),
                         grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("top_logprobs", caught.exception.details())

    def test_cancels(self):
        request = self.request(ignore_eos=True)
        request.max_tokens = 480
        call = self.stub.Generate(request, timeout=60)
        next(call)
        call.cancel()
        with self.assertRaises(grpc.RpcError):
            list(call)

    def test_deadline(self):
        request = self.request(ignore_eos=True)
        request.max_tokens = 500
        with self.assertRaises(grpc.RpcError) as caught:
            list(self.stub.Generate(request, timeout=0.001))
        self.assertEqual(caught.exception.code(),
                         grpc.StatusCode.DEADLINE_EXCEEDED)


if __name__ == "__main__":
    unittest.main()

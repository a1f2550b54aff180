"""Online: an HTTP server with a ResNet on the card, that tells its latencies. Needs PyTorch, and nothing else.

    python serve.py                                             then, in another terminal: python ask.py
    aliquot run --class online --memory 8 -- python serve.py    takes the card from offline work

    GET /predict    images (made up here; the weights are random too) go through the network: the class, and the time
    GET /healthz    ok

Every five seconds it says how many requests it answered, and how long the card took for them.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

try:
    import torch
    from torch import nn
except ModuleNotFoundError:
    sys.exit("serve.py: needs PyTorch, which is not installed here: pip install torch")


class Block(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        around = [nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)]
        self.around = nn.Sequential(*around) if before != after or stride != 1 else nn.Identity()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(image) + self.around(image))


def resnet18() -> nn.Module:
    """As published, by hand: torchvision is not needed."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    before = 64
    for after, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(before, after, stride), Block(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class Predictor:
    """The network on its device. One request at a time: the card is one."""

    def __init__(self, device: torch.device, batch: int) -> None:
        self.half = torch.float16 if device.type == "cuda" else torch.float32
        self.device = device
        self.model = resnet18().eval().to(device, self.half)
        self.image = torch.randn(batch, 3, 224, 224, device=device, dtype=self.half)
        self.lock = threading.Lock()
        self.seconds: list[float] = []
        for _ in range(3):
            self.predict()
        self.seconds.clear()

    def predict(self) -> tuple[int, float]:
        """The class of the first image, and how long it took."""
        with self.lock, torch.inference_mode():
            began = time.perf_counter()
            winner = int(self.model(self.image)[0].argmax())  # waits for the card
            took = time.perf_counter() - began
            self.seconds.append(took)
            return winner, took

    def told(self) -> str:
        """What came since the last call."""
        with self.lock:
            seconds, self.seconds = sorted(self.seconds), []
        if not seconds:
            return "no requests"
        p50, p99 = (1000 * seconds[int(part * (len(seconds) - 1))] for part in (0.5, 0.99))
        return f"{len(seconds)} requests, p50 {p50:.2f} ms, p99 {p99:.2f} ms"


def handler(predictor: Predictor) -> type[BaseHTTPRequestHandler]:
    """The two paths."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body leave together: apart, the second waits 40 ms for the client's receipt

        def do_GET(self) -> None:
            if self.path == "/healthz":
                self.answer(200, b"ok\n", "text/plain")
            elif self.path == "/predict":
                winner, took = predictor.predict()
                body = json.dumps({"class": winner, "milliseconds": round(1000 * took, 3)}).encode() + b"\n"
                self.answer(200, body, "application/json")
            else:
                self.answer(404, b"GET /predict or /healthz\n", "text/plain")

        def answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            """Not a line per request: they are summed up."""

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="127.0.0.1", help="default: 127.0.0.1; 0.0.0.0 in a Pod")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000; 0: any that is free")
    parser.add_argument("--batch", type=int, default=8, help="images of one request (default: 8)")
    parser.add_argument("--device", default="cuda", help="cpu: to try it without a GPU, slowly (default: cuda)")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("serve.py: PyTorch sees no CUDA device here; --device cpu tries it without one")
    predictor = Predictor(torch.device(options.device), options.batch)
    server = ThreadingHTTPServer((options.address, options.port), handler(predictor))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"ready: http://{options.address}:{server.server_address[1]}/predict", flush=True)
    try:
        while True:
            time.sleep(5.0)
            print(predictor.told(), flush=True)
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()

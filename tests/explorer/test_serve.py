"""The server around the page: port, browser, settings, end; with a stand-in that answers when asked for its health."""

import os
import signal
import socket
import subprocess
import sys
import time
from urllib.parse import parse_qsl

import pytest

from kvpager.errors import BadInput
from kvpager.explorer import serve as server
from kvpager.explorer.choices import Choices

STAND_IN = """
import http.server, sys
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""

SERVING = f"""
import importlib.util, sys
from kvpager.explorer import serve as server
from kvpager.explorer.choices import Choices
importlib.util.find_spec = lambda name: True
server._command = lambda choices, port: [sys.executable, "-c", {STAND_IN!r}, str(port)]
server.serve(Choices(), port=0, browser=False, say=lambda line: print(line, flush=True))
print("ended")
"""


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(server.importlib.util, "find_spec", lambda name: True)


def test_a_port_in_use_is_named_with_a_remedy():
    with socket.socket() as taken:
        taken.bind((server.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=rf"port {port} .*--port {port + 1}.*--port 0"):
            server.free_port(port)


def test_port_0_is_any_free_one():
    port = server.free_port(0)
    assert 1024 <= port <= 65535
    assert server.free_port(port) == port


def test_it_listens_on_this_machine_alone_and_tells_nobody():
    command = server._command(Choices(users=3, trace="a b.zarr"), 8600)
    assert {
        "--server.address=127.0.0.1",
        "--server.port=8600",
        "--server.headless=true",
        "--server.fileWatcherType=none",
        "--browser.gatherUsageStats=false",
    } <= set(command)
    assert command[-2] == "--"
    assert dict(parse_qsl(command[-1])) == {"users": "3", "trace": "a b.zarr"}


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="there is always a window there")
def test_without_a_screen_no_browser_is_opened(monkeypatch):
    opened = []
    monkeypatch.setattr(server.webbrowser, "open", lambda address: opened.append(address) or True)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert server.open_browser("http://127.0.0.1:1") is False
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    assert server.open_browser("http://127.0.0.1:1") is True
    assert opened == ["http://127.0.0.1:1"]


def test_streamlit_is_missed_by_its_name(monkeypatch):
    monkeypatch.setattr(server.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError) as missing:
        server.serve(Choices(), port=0)
    assert missing.value.name == "streamlit"


def test_a_server_that_does_not_start_is_told(monkeypatch, installed):
    monkeypatch.setattr(server, "_command", lambda choices, port: [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(BadInput, match="status 3"):
        server.serve(Choices(), port=0, browser=False)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_cleanly_and_leaves_no_process(how):
    running = subprocess.Popen([sys.executable, "-c", SERVING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = running.stdout.readline()
    assert "http://127.0.0.1:" in line, running.stderr.read()
    port = int(line.split("127.0.0.1:")[1].split(";")[0])
    os.kill(running.pid, how)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (0, "ended\n", "")
    for _ in range(50):
        try:
            assert server.free_port(port) == port
            break
        except BadInput:
            time.sleep(0.1)
    else:
        pytest.fail("the server still listens")

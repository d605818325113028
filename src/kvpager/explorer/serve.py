"""The page's server: Streamlit on this machine alone, without network, from start to Ctrl-C."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvpager.errors import BadInput
from kvpager.explorer.choices import Choices
from kvpager.explorer.opening import to_text

__all__ = ["HOST", "PORT", "free_port", "open_browser", "serve"]

HOST, PORT = "127.0.0.1", 8501

_PATIENCE_S = 120.0

_SETTINGS = {
    "server.headless": "true",
    "server.address": HOST,
    "server.fileWatcherType": "none",
    "browser.gatherUsageStats": "false",
    "browser.serverAddress": HOST,
    "client.toolbarMode": "minimal",
    "global.developmentMode": "false",
    "logger.level": "warning",
    "runner.magicEnabled": "false",
}


def free_port(port: int = PORT) -> int:
    """Return `port` if nothing listens there; any free one for 0.

    Raises
    ------
    BadInput
        If it is in use, or not to be had.
    """
    with socket.socket() as place:
        if os.name == "posix":  # else a port whose last connection is still being forgotten would count as in use
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            place.bind((HOST, port))
        except OSError as error:
            raise BadInput(
                f"port {port} of {HOST} cannot be used ({error.strerror}): "
                f"name another, such as --port {port + 1}, or --port 0 for any"
            ) from error
        return int(place.getsockname()[1])


def open_browser(address: str) -> bool:
    """Open `address` in a browser with a window; return whether there is one."""
    windows = sys.platform in ("win32", "darwin") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return windows and webbrowser.open(address)


def serve(choices: Choices, *, port: int = PORT, browser: bool = True, say: Callable[[str], object] = print) -> None:
    """Serve the page until it is interrupted.

    Parameters
    ----------
    choices : Choices
        What the page begins with; look at them first (`opening.check`).
    port : int
        Where to listen, on this machine alone; 0 for any free port.
    browser : bool
        Open one; without, or where there is none, the address is said only.
    say : callable
        Takes lines for the terminal.

    Raises
    ------
    BadInput
        If the port is in use, or the server ends by itself.
    ModuleNotFoundError
        If Streamlit is not installed.
    """
    if importlib.util.find_spec("streamlit") is None:
        raise ModuleNotFoundError("No module named 'streamlit'", name="streamlit")
    address = f"http://{HOST}:{(port := free_port(port))}"
    with _running(_command(choices, port)) as server:
        _await(server, address)
        opened = browser and open_browser(address)
        say(f"The explorer is at {address}{' and open in the browser' if opened else ''}; Ctrl-C ends it.")
        code = server.wait()
        raise BadInput(f"the explorer's server ended by itself with status {code}: what it said stands above")


def _command(choices: Choices, port: int) -> list[str]:
    settings = {**_SETTINGS, "server.port": str(port)}
    options = [f"--{name}={value}" for name, value in settings.items()]
    page = Path(__file__).with_name("page.py")
    return [sys.executable, "-m", "streamlit", "run", str(page), *options, "--", to_text(choices)]


@contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server meanwhile; it ends with us, however we end."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield server
    except KeyboardInterrupt:
        return
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        server.terminate()
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _await(server: subprocess.Popen[bytes], address: str) -> None:
    """Wait until the server answers."""
    ours = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    last = time.monotonic() + _PATIENCE_S
    while time.monotonic() < last:
        if server.poll() is not None:
            raise BadInput(f"the explorer's server ended with status {server.returncode} as it began: what it said stands above")
        try:
            with ours.open(f"{address}/_stcore/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise BadInput(f"the explorer's server at {address} does not answer after {_PATIENCE_S:g} s: try another port, or again")

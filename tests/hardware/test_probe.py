"""The probe on tiny sizes: what it reports, what it refuses, and that it leaves nothing behind."""

import errno
import os
import shutil
import tomllib
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvpager.errors import BadInput, PhysicalBoundError, StorageFull
from kvpager.evidence import Evidence, Quantity
from kvpager.hardware import disk, gpu, load
from kvpager.hardware.bus import bus_limit_bytes_per_s
from kvpager.hardware.disk import PIECE_BYTES, Scratch
from kvpager.hardware.probe import probe, write_profile
from kvpager.hardware.samples import Samples, bounded

TINY = {"seconds": 0.05, "max_bytes": 2 * PIECE_BYTES, "memory_bytes": 1 << 20, "sizes": (4096, 65536), "depths": (1, 2)}
LIMIT = Quantity(1e9, "B/s", name="a slow link")


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    """The machine that runs the tests may have one; what these tests say must not depend on it."""
    monkeypatch.setattr(gpu, "_DEVICE_FILES", ())


def samples(rate, limit=LIMIT):
    return Samples("a read", 4096, 1, (rate, rate, rate), 1e-6, limit)


def test_a_profile_is_a_catalogue_file_labelled_measured(tmp_path):
    steps = []
    profile = probe(tmp_path, progress=lambda *step: steps.append(step), **TINY)
    write_profile(profile, tmp_path / "this.toml")
    catalogue = load([tmp_path / "this.toml"])
    for name in ("this-dram", "this-disk"):
        entry = catalogue.tiers[name]
        assert entry.read_bytes_per_s.evidence is entry.write_bytes_per_s.evidence is Evidence.MEASURED
        low, high = entry.read_bytes_per_s.ends
        assert 0 < low <= entry.read_bytes_per_s.value <= high
        for word in ("kvpager probe", "CPUs", "Python", "numpy", "command"):
            assert word in entry.read_bytes_per_s.source
    assert [rate.size_bytes for rate in catalogue.tiers["this-disk"].read_by_size] == [4096, 65536]
    assert catalogue.tiers["this-disk"].latency_s.value > 0
    assert profile["about"]["gpu"] == "no GPU driver on this machine"
    assert {row["depth"] for row in profile["measurements"] if "read of" in row["what"]} == {1, 2}
    assert all(row["limit"] for row in profile["measurements"]), "a limit, or unknown; never silence"
    assert steps[0][1] == 0
    assert steps[-1] == ("done", steps[-1][2], steps[-1][2])
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)
    assert os.listdir(tmp_path) == ["this.toml"], "the scratch file is gone"


def test_what_was_measured_is_the_scratch_file_and_no_more(tmp_path):
    with Scratch(tmp_path, 2 * PIECE_BYTES) as scratch:
        scratch.fill(until=float("inf"))
        (path,) = tmp_path.rglob("scratch")
        assert path.stat().st_size == scratch.size_bytes == 2 * PIECE_BYTES
        read = scratch.measure(65536, 2, 0.01, write=False)
        assert path.stat().st_size == scratch.size_bytes
    assert read.size_bytes == 65536
    assert min(read.rates) > 0
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_direct_transfers_is_labelled_page_cache(tmp_path, monkeypatch):
    real = os.open

    def refuse(path, flags, *rest, **named):
        if flags & getattr(os, "O_DIRECT", 0):
            raise OSError(errno.EINVAL, "Invalid argument", str(path))
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(disk.os, "open", refuse)
    profile = probe(tmp_path, **TINY)
    entry = profile["tiers"]["this-disk"]
    assert entry["kind"] == "page-cache"
    assert "not its disk" in entry["title"]
    assert "page cache" in profile["about"]["disk_transfers"]
    assert any("(page cache)" in row["what"] for row in profile["measurements"])
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="this system has no O_DIRECT")
def test_another_refusal_to_open_is_no_page_cache(tmp_path, monkeypatch):
    real = os.open

    def refuse(path, flags, *rest, **named):
        if flags & os.O_DIRECT:
            raise OSError(errno.EDQUOT, "Disk quota exceeded", str(path))
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(disk, "file_system", lambda directory: "ext4")
    monkeypatch.setattr(disk.os, "open", refuse)
    with pytest.raises(StorageFull, match="ran full"), Scratch(tmp_path, PIECE_BYTES):
        pass
    assert not list(tmp_path.iterdir())


def test_a_disk_faster_than_its_link_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "file_system", lambda directory: "ext4")
    monkeypatch.setattr(disk, "disk_limit", lambda directory: Quantity(1.0, "B/s", name="a stone"))
    if not direct_transfers(tmp_path):
        assert probe(tmp_path, **TINY)["tiers"]["this-disk"]["kind"] == "page-cache", "no link binds a page cache"
        return
    with pytest.raises(PhysicalBoundError, match=r"read of .* measured twice .* more than the 1 B/s of a stone"):
        probe(tmp_path, **TINY)
    assert not list(tmp_path.iterdir())


def direct_transfers(directory):
    with Scratch(directory, PIECE_BYTES) as scratch:
        return scratch.direct


def test_memory_posing_as_a_disk_is_labelled_page_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "file_system", lambda directory: "tmpfs")
    with Scratch(tmp_path, PIECE_BYTES) as scratch:
        assert not scratch.direct
        assert scratch.limit is None


def test_a_disk_that_runs_full_is_one_clear_error(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk.os, "pwritev", full)
    with pytest.raises(StorageFull, match=r"ran full while it was probed; nothing was left behind"):
        probe(tmp_path, **TINY)
    assert not list(tmp_path.iterdir())


def test_a_disk_with_too_little_room_is_not_touched(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: SimpleNamespace(total=1, used=1, free=PIECE_BYTES))
    monkeypatch.setattr(disk.tempfile, "mkdtemp", lambda **_: pytest.fail("wrote to it"))
    with pytest.raises(StorageFull, match=r"has 4 MiB free, the probe wants twice 8 MiB"):
        probe(tmp_path, **TINY)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path, monkeypatch, code):
    def refuse(**_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(disk.tempfile, "mkdtemp", refuse)
    with pytest.raises(BadInput, match=r"cannot be used \(.*\): name one that can be written to"):
        probe(tmp_path, **TINY)


def test_a_failed_read_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.os, "preadv", lambda *_: 0)
    with pytest.raises(BadInput, match=r"only 0 of 4096 bytes were moved"):
        probe(tmp_path, **TINY)
    assert not list(tmp_path.iterdir())


def test_an_interrupt_leaves_nothing_behind(tmp_path):
    def stop(what, done, total):
        if "reads" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe(tmp_path, progress=stop, **TINY)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seconds": 0}, r"probe time 0 s must be above zero"),
        ({"sizes": (1000,)}, r"give multiples of 4096 bytes"),
        ({"sizes": ()}, r"give multiples of 4096 bytes"),
        ({"depths": (0,)}, r"depths from 1"),
        ({"max_bytes": 4096}, r"smaller than one transfer: give at least"),
    ],
)
def test_settings_that_cannot_be_measured_are_refused(tmp_path, wrong, message):
    with pytest.raises(BadInput, match=message):
        probe(tmp_path, **(TINY | wrong))


def test_a_directory_that_is_none_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"nowhere' is no directory"):
        probe(tmp_path / "nowhere", **TINY)


def test_a_possible_rate_is_measured_once():
    calls = iter([samples(0.9e9)])
    assert bounded(partial(next, calls)).median == 0.9e9


def test_an_impossible_rate_is_measured_again_before_it_is_refused():
    calls = iter([samples(2e9), samples(0.9e9)])
    assert bounded(partial(next, calls)).median == 0.9e9
    with pytest.raises(PhysicalBoundError, match=r"a read: measured twice 3 GB/s, more than the 1 GB/s of a slow link"):
        bounded(partial(next, iter([samples(2e9), samples(3e9)])))


def test_without_a_known_limit_any_rate_stands_and_says_so():
    free = bounded(partial(next, iter([samples(1e15, None)])))
    assert free.row()["limit"] == "unknown"
    assert samples(0.5e9).row()["limit"] == "1 GB/s, a slow link"


def test_the_link_of_a_device_is_read_from_sysfs(tmp_path):
    device = tmp_path / "0000:04:00.0" / "nvme" / "nvme0" / "nvme0n1"
    device.mkdir(parents=True)
    assert disk.link_limit(device) is None
    (tmp_path / "0000:04:00.0" / "max_link_speed").write_text("32.0 GT/s PCIe\n")
    (tmp_path / "0000:04:00.0" / "max_link_width").write_text("4\n")
    assert disk.link_limit(device) == bus_limit_bytes_per_s("pcie-5", 4)
    (tmp_path / "0000:04:00.0" / "max_link_speed").write_text("Unknown\n")
    assert disk.link_limit(device) is None


def test_the_file_system_of_a_directory_is_known():
    expected = "proc" if Path("/proc/self/mounts").exists() else "unknown"
    assert disk.file_system(Path("/proc/self")) == expected


class FakeCuda:
    """Enough of PyTorch to copy with: shapes and devices, no arithmetic."""

    def __init__(self):
        self.__version__ = "0"
        self.uint8 = "uint8"
        self.version = SimpleNamespace(cuda="0.0", hip=None)
        properties = SimpleNamespace(name="Fake GPU", total_memory=1 << 30, pci_domain_id=0, pci_bus_id=0xFFFF, pci_device_id=0)
        self.cuda = SimpleNamespace(get_device_properties=lambda index: properties, synchronize=lambda: None)
        self.copied = []

    def empty(self, size, dtype, device):
        buffer = SimpleNamespace(is_cuda=device == "cuda", pinned=False)
        buffer.pin_memory = lambda: SimpleNamespace(is_cuda=False, copy_=buffer.copy_, pinned=True)
        buffer.copy_ = lambda source, non_blocking: self.copied.append((device, source.is_cuda or source.pinned))
        return buffer


def test_gpu_copies_become_links(tmp_path, monkeypatch):
    torch = FakeCuda()
    monkeypatch.setattr("kvpager.hardware.probe.find_gpu", lambda: gpu.Gpu(torch))
    profile = probe(tmp_path, **TINY)
    write_profile(profile, tmp_path / "this.toml")
    catalogue = load([tmp_path / "this.toml"])
    link = catalogue.links["this-gpu-host-to-device"]
    assert link.reached_bytes_per_s().value == link.bandwidth_bytes_per_s.value > 0
    assert [rate.size_bytes for rate in link.by_size] == list(gpu.SIZES)
    assert catalogue.tiers["this-hbm"].capacity_bytes.value == 1 << 30
    assert {device for device, _ in torch.copied} == {"cpu", "cuda"}
    assert all(fast for _, fast in torch.copied), "host memory is pinned"
    assert "Fake GPU" in profile["about"]["gpu"]


def test_copies_to_a_gpu_are_held_to_its_link_and_copies_inside_it_are_not(monkeypatch):
    monkeypatch.setattr(gpu, "link_limit", lambda device: LIMIT)
    card = gpu.Gpu(FakeCuda())
    assert card.measure("host to device", 4096, 0.001).limit == LIMIT
    assert card.measure("device to host", 4096, 0.001).limit == LIMIT
    assert card.measure("device to device", 4096, 0.001).limit is None


def test_a_profile_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"cannot be written .*name another file"):
        write_profile({"about": {}}, tmp_path / "nowhere" / "this.toml")


def test_texts_survive_the_file(tmp_path):
    title = 'a "quoted" title, µs and \\ in it'
    write_profile({"about": {"title": title, "yes": True}}, tmp_path / "t.toml")
    assert tomllib.loads((tmp_path / "t.toml").read_text(encoding="utf-8")) == {"about": {"title": title, "yes": True}}


def test_room_is_asked_of_the_real_disk(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(StorageFull), Scratch(tmp_path, free):
        pass

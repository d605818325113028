"""The console entry as a user meets it: what it prints where, its exit code, and what it leaves on disk."""

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest
from tests.stored import save_recording

from kvpager import cli
from kvpager.testing.recordings import synthetic_recording

PROGRESS = re.compile(r"[a-z0-9 ]+: \d+/\d+")


@dataclass
class Answer:
    """What one call of the command line did."""

    code: int
    out: str
    err: str

    @property
    def complaints(self):
        """Lines of stderr that are no progress."""
        return [line for line in self.err.splitlines() if not PROGRESS.fullmatch(line)]

    @property
    def document(self):
        """The JSON document that stdout is, and nothing else."""
        return orjson.loads(self.out)


def snapshot(folder):
    """Everything under `folder`, by content."""
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def entry():
    """How to start the console entry as a process of its own."""
    return [sys.executable, "-c", "from kvpager.cli import main; main()"]


@pytest.fixture
def kvpager(monkeypatch, capfd):
    """Run ``kvpager ARGUMENTS`` in this process."""

    def run(*arguments):
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["kvpager", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        out, err = capfd.readouterr()
        return Answer(code, out, err)

    return run


@pytest.fixture
def well(kvpager):
    """Run a command that must succeed in silence but for progress."""

    def run(*arguments):
        answer = kvpager(*arguments)
        assert (answer.code, answer.complaints) == (0, []), answer.err
        return answer

    return run


@pytest.fixture
def refused(kvpager, here):
    """Run a command that must be refused: exit 2, one line that says all of `words`, nothing on stdout, nothing on disk."""

    def run(*arguments, words):
        before = snapshot(here)
        answer = kvpager(*arguments)
        assert answer.code == 2, answer.err
        assert answer.out == ""
        assert len(answer.complaints) == 1, answer.err
        line = answer.complaints[0]
        assert line.startswith("kvpager: ")
        missing = [word for word in words if word not in line]
        assert not missing, f"{line!r} does not say {missing}"
        assert snapshot(here) == before
        return line

    return run


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """A small recording on disk: 2 layers × 2 KV heads × 42 blocks, 32 steps."""
    return save_recording(synthetic_recording(context_tokens=640, steps=32), tmp_path_factory.mktemp("recorded") / "t.zarr")


@pytest.fixture
def save():
    """How to write a recording that is in memory."""
    return save_recording


@pytest.fixture
def store(here, recorded):
    """A copy of the recording as ``t.zarr``, free to be damaged."""
    return Path(shutil.copytree(recorded, here / "t.zarr"))


def save_tiny_model(folder):
    """A random Llama of 4 layers × 2 KV heads with a tokenizer of words, as a directory that can be loaded."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 6, "head_dim": 16}
    config = AutoConfig.for_model("llama", **sizes, num_key_value_heads=2, vocab_size=99, max_position_embeddings=8192)
    tokenizer = Tokenizer(WordLevel({"?": 3, "one": 4, "two": 5, "three": 6}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Directory of a tiny random model; not to be changed."""
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def words(here):
    """A text of 450 tokens."""
    path = here / "words.txt"
    path.write_text("one two three " * 150, encoding="utf-8")
    return path

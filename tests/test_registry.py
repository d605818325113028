"""The one door for plug-ins: found because it is there, and a typo is met with the near names."""

import sys
from importlib.metadata import EntryPoint

import pytest

from kvpager.errors import BadInput, InvariantError, UnknownName
from kvpager.policies import POLICIES
from kvpager.prefetch import PREFETCHERS
from kvpager.registry import Registry, configure
from kvpager.selectors import SELECTORS


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A package `shelf` on disk; yields a function that puts a plug-in file into it."""
    package = tmp_path / "shelf"
    package.mkdir()
    (package / "__init__.py").write_text("from kvpager.registry import Registry\nSHELF = Registry('tools', 'shelf')\n")
    monkeypatch.syspath_prepend(tmp_path)

    def put(name, text):
        (package / f"{name}.py").write_text(f"from shelf import SHELF\n{text}\n")

    yield put
    for module in [name for name in sys.modules if name.split(".")[0] == "shelf"]:
        del sys.modules[module]


def shelf():
    from shelf import SHELF

    return SHELF


def test_a_file_is_found_because_it_is_there(folder):
    folder("hammer", "@SHELF.register('hammer')\nclass Hammer: ...")
    folder("saws", "@SHELF.register('saw')\nclass Saw: ...\n@SHELF.register('jigsaw')\nclass Jigsaw: ...")
    assert list(shelf()) == ["hammer", "jigsaw", "saw"]
    assert shelf()["hammer"].__name__ == "Hammer"
    assert "saw" in shelf()
    assert "plane" not in shelf()


def test_a_typo_lists_the_near_names_first(folder):
    folder("hammer", "@SHELF.register('hammer')\nclass Hammer: ...\n@SHELF.register('spirit-level')\nclass Level: ...")
    with pytest.raises(UnknownName, match=r"unknown name 'hamer' among tools: did you mean hammer\?"):
        shelf()["hamer"]


def test_a_name_like_none_lists_them_all(folder):
    folder("hammer", "@SHELF.register('hammer')\nclass Hammer: ...\n@SHELF.register('plane')\nclass Plane: ...")
    with pytest.raises(UnknownName, match=r"did you mean hammer, plane\?"):
        shelf()["zzzzzzzz"]


def test_two_plug_ins_of_one_name_are_refused(folder):
    folder("a", "@SHELF.register('hammer')\nclass Hammer: ...")
    folder("b", "@SHELF.register('hammer')\nclass Mallet: ...")
    with pytest.raises(InvariantError, match="'hammer' is registered by"):
        list(shelf())


def test_a_broken_file_never_leaves_half_a_registry(folder):
    folder("a", "@SHELF.register('a')\nclass A: ...")
    folder("b", "raise OSError('no such device')")
    for _ in range(2):  # the second look must fail too
        with pytest.raises(OSError, match="no such device"):
            shelf()["c"]
    assert shelf()["a"].__name__ == "A"  # its own file is whole


def test_a_name_that_is_a_files_name_imports_that_file_only(folder):
    folder("hammer", "@SHELF.register('hammer')\nclass Hammer: ...")
    folder("saw", "@SHELF.register('jigsaw')\nclass Jigsaw: ...")
    assert shelf()["hammer"].__name__ == "Hammer"
    assert "shelf.saw" not in sys.modules
    assert "saw" not in shelf()
    assert list(shelf()) == ["hammer", "jigsaw"]


def test_a_third_party_comes_in_by_its_entry_point_and_replaces_nothing(monkeypatch):
    found = {"kvpager.tools": [EntryPoint("ordered", "collections:OrderedDict", "kvpager.tools")]}
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found.get(group, []))
    tools = Registry("tools", "json")
    assert tools["ordered"].__name__ == "OrderedDict"
    mine = Registry("tools", "json")
    mine.register("ordered")(dict)
    assert mine["ordered"] is dict


@pytest.mark.parametrize("registry", [POLICIES, SELECTORS, PREFETCHERS], ids=lambda registry: registry.kind)
def test_the_shipped_registries_hold_callables_by_lower_case_name(registry):
    names = list(registry)
    assert names, f"no {registry.kind} found"
    for name in names:
        assert name == name.lower()
        assert callable(registry[name])


def test_a_plug_in_is_built_from_its_written_form():
    assert configure(POLICIES, "ema").alpha == 0.2
    assert configure(POLICIES, "ema:alpha=0.5,persist_scores=false") == POLICIES["ema"](alpha=0.5, persist_scores=False)
    placement = configure(POLICIES, "placement:cuts=[0.2,0.4],scale=max")
    assert (placement.scale, list(placement.cuts)) == ("max", [0.2, 0.4])
    assert configure(POLICIES, "placement-rank:alpha=1").scale == "rank"


@pytest.mark.parametrize(
    "text", ["ema:alfa=0.5", "ema:alpha", "ema:alpha=high", "ema:alpha=[0.1]", "ema:alpha=null", "placement-rank:rank=1"]
)
def test_a_setting_that_is_not_taken_is_refused_with_those_that_are(text):
    with pytest.raises(BadInput, match=r"does not take .*: it takes .*alpha=0\.2"):
        configure(POLICIES, text)


def test_a_misspelt_policy_with_settings_is_still_a_misspelt_policy():
    with pytest.raises(UnknownName, match="did you mean ema"):
        configure(POLICIES, "emma:alpha=0.5")

"""What keeps the house in order: arrows one way, budgets, light imports, one vocabulary, the public surface."""

import ast
import functools
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvpager import errors
from kvpager.evaluate import TASKS
from kvpager.live.summaries import SUMMARIES
from kvpager.policies import POLICIES
from kvpager.policies.requests.base import REQUEST_POLICIES
from kvpager.policies.requests.prefix.base import PREFIX_POLICIES
from kvpager.prefetch import PREFETCHERS
from kvpager.selectors import SELECTORS
from kvpager.store.eviction.base import EVICTIONS
from kvpager.tiers.base import TIERS
from kvpager.traces.formats import FORMATS

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "kvpager"
MODULES = sorted(SOURCE.rglob("*.py"))

NOUNS = {"core", "units", "evidence", "errors", "registry"}
STEP = {"policies", "selectors", "prefetch"}
DATA = NOUNS | {"models", "hardware", "traces"}

ARROWS: dict[str, set[str]] = {
    # The table is the data flow: a part may import the parts to its left in the design's picture, and itself.
    "errors": set(),
    "units": {"errors"},
    "evidence": {"errors", "units"},
    "core": {"errors"},
    "registry": {"errors"},
    "models": NOUNS,
    "hardware": NOUNS,
    "traces": NOUNS | {"models"},
    "pool": NOUNS,
    "policies": NOUNS | {"pool"},
    "selectors": NOUNS,
    "prefetch": NOUNS | {"pool", "policies"},
    "pagetable": NOUNS | {"pool"},
    "pager": NOUNS | {"pool", "pagetable", "policies", "prefetch"},
    "slab": NOUNS,
    "tiers": NOUNS | {"hardware", "slab"},
    "driver": NOUNS | {"pool", "pagetable", "pager", "policies", "prefetch", "tiers"},
    "runlog": NOUNS | {"pool", "pagetable", "pager", "policies", "prefetch", "tiers", "driver", "models", "traces"},
    "store": NOUNS | {"tiers", "slab", "analysis"},
    "replay": DATA | STEP | {"pool", "pager", "tiers", "driver", "runlog"},
    "live": DATA | STEP | {"pool", "pager", "slab", "tiers", "driver", "runlog", "store"},
    "evaluate": DATA | STEP | {"live"},
    "connect": NOUNS | {"store"},
    "analysis": DATA | {"replay"},
    "plan": DATA | {"replay", "analysis"},
    "serving": DATA | {"replay", "analysis", "plan", "tiers"},
    "claims": DATA | STEP | {"replay", "analysis", "plan"},
    "report": DATA | {"replay", "analysis", "plan", "claims"},
    "demo": DATA | STEP | {"pool", "tiers", "replay", "live", "evaluate", "analysis", "plan", "claims", "report"},
    "explorer": DATA | STEP | {"replay", "analysis", "plan", "claims", "report"},
    "testing": DATA | STEP | {"pool", "pager", "slab", "tiers", "store", "replay", "live", "analysis"},
}
ARROWS["cli"] = set(ARROWS)
ARROWS["__init__"] = set(NOUNS)

PLUG_IN_FOLDERS = (
    "policies",
    "policies/wrappers",
    "policies/requests",
    "policies/requests/prefix",
    "selectors",
    "prefetch",
    "models",
    "tiers",
    "live/summaries",
    "evaluate/tasks",
    "traces/formats",
    "store/eviction",
)
HEAVY = {
    "torch",
    "numba",
    "transformers",
    "zarr",
    "altair",
    "vl_convert",
    "jinja2",
    "gguf",
    "safetensors",
    "pandas",
    "streamlit",
    "pyarrow",
    "triton",
    "vllm",
}
ELSEWHERE = {
    # What a module needs that is not installed beside the tests: PyTorch's builds for a GPU bring triton, engines have venvs.
    "triton": {"kvpager.live.kernels.device", "kvpager.live.kernels.spans"},
    "vllm": {f"kvpager.connect.{name}" for name in ("vllm", "vllm_cpu", "vllm_names", "vllm_policy")},
}
LIGHT = [
    "kvpager",
    "kvpager.pager",
    "kvpager.policies",
    "kvpager.selectors",
    "kvpager.prefetch",
    "kvpager.replay",
    "kvpager.hardware",
    "kvpager.cli",
    "kvpager.models",
    "kvpager.plan.single",
    "kvpager.plan.comparison",
    "kvpager.plan.economics",
    "kvpager.plan.sweeping",
    "kvpager.claims.check",
    "kvpager.report.planning",
    "kvpager.traces.requests",
    "kvpager.traces.formats",
    "kvpager.testing.requests",
]
NEEDLESS: dict[str, set[str]] = {
    # A command answers in under half a second because it leaves these alone; what none needs stands in the test.
    "--version": {"numpy", "rich", "kvpager.core", "kvpager.models", "kvpager.hardware"},
    "--help": {"numpy", "kvpager.core", "kvpager.models", "kvpager.hardware"},
    "plan --help": {"numpy", "kvpager.core", "kvpager.models", "kvpager.hardware"},
    "model llama-3.1-70b": {"rich", "kvpager.models.jamba", "kvpager.hardware", "kvpager.plan"},
    "plan --model llama-3.1-70b --system b200-hbm": {
        "rich",
        "kvpager.models.jamba",
        "kvpager.plan.sweeping",
        "kvpager.plan.economics",
    },
    "plan --model llama-3.1-70b --system b200-hbm --json": {"rich", "kvpager.report", "kvpager.plan.comparison"},
    "compare b200-hbm b200-host-cxl --model llama-3.1-70b": {"rich", "kvpager.models.jamba", "kvpager.plan.economics"},
    "breakeven --model llama-3.1-70b --accelerator b200": {
        "rich",
        "kvpager.models.jamba",
        "kvpager.plan.step",
        "kvpager.plan.single",
    },
    "claims": {"rich", "kvpager.core", "kvpager.models", "kvpager.hardware", "kvpager.plan"},
    "claims --uncalibrated": {"rich", "numpy", "kvpager.models", "kvpager.hardware", "kvpager.plan"},
}
REGISTRIES = [POLICIES, REQUEST_POLICIES, PREFIX_POLICIES, SELECTORS, PREFETCHERS, SUMMARIES, TASKS, TIERS, FORMATS, EVICTIONS]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(tree: ast.AST) -> set[str]:
    """Top-level parts of kvpager that a module imports, wherever in it the import stands."""
    dotted: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            dotted += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            module = node.module or ""
            dotted += [f"kvpager.{alias.name}" for alias in node.names] if module == "kvpager" else [module]
    parts = {name.split(".")[1] if "." in name else "__init__" for name in dotted if name.split(".")[0] == "kvpager"}
    known = {part_of(path) for path in MODULES}
    return {part if part in known else "__init__" for part in parts}  # `from kvpager import Quantity` is the root


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_arrows_go_one_way(path):
    part = part_of(path)
    assert part in ARROWS, (
        f"{part} is a new part: give it a row in ARROWS, where the data flow puts it, and in docs/architecture.md"
    )
    allowed = ARROWS[part] | {part} | (set() if part in NOUNS else {"__init__"})  # the root re-exports nouns only
    wrong = imported_parts(parse(path)) - allowed
    assert not wrong, f"{name_of(path)} imports {sorted(wrong)}, which its place in the data flow does not allow"


def test_the_arrows_have_no_cycle():
    left, order = dict(ARROWS), []
    while left:
        free = [part for part, needs in left.items() if not needs & set(left) - {part}]
        assert free, f"cycle among {sorted(left)}"
        order += free
        left = {part: needs for part, needs in left.items() if part not in free}
    assert len(order) == len(ARROWS)


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Physical lines of a function, its docstring and decorators left out."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or 0) - first.lineno + 1
    return lines


SCRIPTS = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("examples/*.py"), *ROOT.glob("docs/*.py")])


@pytest.mark.parametrize("path", MODULES + SCRIPTS, ids=name_of)
def test_files_and_functions_stay_within_budget(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    plug_in = path.is_relative_to(SOURCE) and str(path.parent.relative_to(SOURCE)) in PLUG_IN_FOLDERS and path.name != "base.py"
    most = 150 if plug_in else 60 if path.parent.name == "examples" else 400
    assert lines <= most, f"{name_of(path)} has {lines} lines; its budget is {most}: split it by what it knows"
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert body_lines(node) <= 60, f"{name_of(path)}: {node.name} has {body_lines(node)} lines; the budget is 60"


def test_importing_the_light_parts_loads_nothing_heavy():
    code = (
        f"import importlib, sys\nfor name in {LIGHT!r}: importlib.import_module(name)\n"
        "from kvpager.policies import POLICIES\nfrom kvpager.selectors import SELECTORS\n"
        "from kvpager.prefetch import PREFETCHERS\nfrom kvpager.traces.formats import FORMATS\n"
        "for registry in (POLICIES, SELECTORS, PREFETCHERS, FORMATS): list(registry)\n"
        f"print(sorted({HEAVY!r} & {{name.split('.')[0] for name in sys.modules}}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]", f"a light import loads {done.stdout.strip()}: import it in the function that uses it"


@pytest.mark.parametrize(("line", "needless"), NEEDLESS.items(), ids=NEEDLESS)
def test_a_planner_command_imports_only_what_it_needs(line, needless):
    needless = HEAVY | {"pydantic", "rich.progress", "importlib.metadata", "joblib", "kvpager.live", "kvpager.replay"} | needless
    code = (
        "import sys\nfrom kvpager.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        f"print(sorted({needless!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *line.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr.strip() == "[]", f"'kvpager {line}' imports what it does not need: {done.stderr.strip()}"


def assigned(tree: ast.Module) -> set[str]:
    """Every name that a module binds at its top level."""
    bound: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        else:
            leaves = [*ast.walk(node)]  # of `if TYPE_CHECKING:`, the imports too
            bound |= {leaf.id for leaf in leaves if isinstance(leaf, ast.Name) and isinstance(leaf.ctx, ast.Store)}
            bound |= {leaf.name for leaf in leaves if isinstance(leaf, ast.alias)}
    return bound


def is_command(node: ast.AST) -> bool:
    """Whether a function is a command of the CLI, public by its name on the command line only."""
    return any(".command(" in text or ".callback(" in text for text in map(ast.unparse, getattr(node, "decorator_list", [])))


@pytest.mark.parametrize(
    "path", [path for path in MODULES if not path.name.startswith("_") or path.name == "__init__.py"], ids=name_of
)
def test_all_is_sorted_and_complete(path):
    tree = parse(path)
    listed = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]
    ]
    public = {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_") and not is_command(node)
    }
    if not listed:
        assert not public, f"{name_of(path)} defines {sorted(public)} but has no __all__"
        return
    names = listed[0]
    assert list(names) == sorted(set(names), key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert public <= set(names), f"{name_of(path)}: public but not in __all__: {sorted(public - set(names))}"
    assert set(names) <= assigned(tree), f"{name_of(path)}: in __all__ but not there: {sorted(set(names) - assigned(tree))}"


@pytest.mark.parametrize("path", [path for path in MODULES if part_of(path) != "testing"], ids=name_of)
def test_no_assert_outside_the_contract_suites(path):
    lines = [node.lineno for node in ast.walk(parse(path)) if isinstance(node, ast.Assert)]
    assert not lines, f"{name_of(path)}:{lines}: assert vanishes under python -O; raise an error of kvpager.errors"


def committed() -> list[Path]:
    """Files under version control, or, outside a checkout, every file of the folders that are."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode == 0 and listing.stdout:
        return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    folders = ("src", "tests", "docs", "benchmarks", "examples", ".ci")
    found = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    return found + [path for path in ROOT.iterdir() if path.is_file()]


def texts() -> list[tuple[Path, str]]:
    found = []
    for path in committed():
        try:
            found.append((path, path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue  # a picture
    return found


def test_no_bare_hit_rate():
    """A hit ratio says what it counts. Only the notes' own words may say otherwise, in claims/ or in quotes."""
    word = re.compile(r"(?<![`“\"'])\bhit[ _-]rates?\b(?![`”\"'])", re.IGNORECASE)
    wrong = [
        f"{name_of(path)}:{number}"
        for path, text in texts()
        if path.is_relative_to(ROOT / "src") or path.is_relative_to(ROOT / "docs") or path.suffix == ".md"
        if part_of_claims(path) is False
        for number, line in enumerate(text.splitlines(), 1)
        if word.search(line)
    ]
    assert not wrong, f"say which ratio (block_hit_ratio, byte_hit_ratio, mass_hit_ratio, …): {wrong}"


def part_of_claims(path: Path) -> bool:
    return path.is_relative_to(SOURCE / "claims")


def test_no_file_knows_one_machine():
    """No home folders, no package-index addresses; PyTorch's public CPU index is named in README and Makefile."""
    places = re.compile(r"(?<![\w.~:/\-])/(?:home|root|work|workspace|opt|Users|mnt|tmp)/\w")
    hosts = re.compile(
        r"https?://[\w.-]*(?:pypi|pythonhosted|conda|anaconda|artifactory|nexus)[\w.-]*/(?:simple|packages|api)|file://"
    )
    wrong = [
        f"{name_of(path)}:{number}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if places.search(line) or hosts.search(line)
        if path != Path(__file__)
    ]
    assert not wrong, wrong


def test_the_error_tree_is_drawn_as_it_is():
    drawn, parents = [], []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ([│├└─ ]*)([A-Z]\w+)(?: \((\w+)\))?(?: {2,}(.*))?$", line)
        if not match or (not match[1] and match[2] != "KVPagerError"):
            continue
        depth = len(match[1]) // 4
        parents[depth:] = [match[2]]
        drawn.append((match[2], parents[depth - 1] if depth else "Exception", match[3]))
        assert not depth or match[4], f"{match[2]}: say in the tree when it is raised"
    real = []

    def walk(kind):
        others = [base.__name__ for base in kind.__bases__[1:]]
        real.append((kind.__name__, kind.__bases__[0].__name__, others[0] if others else None))
        for child in kind.__subclasses__():
            if child.__module__ == errors.__name__:
                walk(child)

    walk(errors.KVPagerError)
    assert drawn == real
    assert sorted(name for name, _, _ in real) == list(errors.__all__)


@pytest.mark.parametrize("path", [path for path in MODULES if path.name != "errors.py"], ids=name_of)
def test_every_error_is_in_the_one_tree(path):
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):  # private ones never reach a caller
            bases = {ast.unparse(base).split(".")[-1] for base in node.bases}
            assert not bases & {"Exception", "RuntimeError", "ValueError", "OSError", *errors.__all__}, (
                f"{name_of(path)}: {node.name} belongs into errors.py"
            )


PLUG_INS = [(registry.kind, name, registry[name]) for registry in REGISTRIES for name in registry]


@pytest.mark.parametrize(("kind", "name", "plugin"), PLUG_INS, ids=[f"{kind}/{name}" for kind, name, _ in PLUG_INS])
def test_every_plug_in_says_where_it_comes_from(kind, name, plugin):
    made = plugin.func if isinstance(plugin, functools.partial) else plugin
    doc = made.__doc__  # its own: an inherited docstring would name the wrong source
    assert doc, f"{kind}/{name} has no docstring of its own"
    assert re.search(r"\b(Source|Based on)\b", doc), f"{kind}/{name}: end its docstring with 'Source: …' or 'Based on …'"


def arguments(function: ast.FunctionDef) -> set[str]:
    args = function.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
    return {arg.arg for arg in every} - {"self", "cls"}


def taken(node: ast.ClassDef | ast.FunctionDef) -> set[str]:
    """What a function takes; what a class takes, by its ``__init__`` or as a dataclass by its fields."""
    if isinstance(node, ast.FunctionDef):
        return arguments(node)
    fields = set()
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            return arguments(part)
        if (
            isinstance(part, ast.AnnAssign)
            and isinstance(part.target, ast.Name)
            and "ClassVar" not in ast.unparse(part.annotation)
        ):
            fields.add(part.target.id)
    return fields


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_parameters_section_lists_what_is_taken(path):
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            section = re.search(
                r"^Parameters\n-+\n(.*?)(?=\n\n\w+\n-+\n|\Z)", ast.get_docstring(node) or "", re.DOTALL | re.MULTILINE
            )
            if section:
                lines = re.findall(r"^(\S.*?) :", section[1], re.MULTILINE)
                listed = {name.lstrip("*") for line in lines for name in line.split(", ")}
                assert listed == taken(node), (
                    f"{name_of(path)}: {node.name} documents {sorted(listed)}, takes {sorted(taken(node))}"
                )


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_file_opens_by_saying_what_it_is(path):
    assert ast.get_docstring(parse(path)), f"{name_of(path)} has no docstring"


def test_every_module_of_the_package_can_be_imported():
    for path in MODULES:
        dotted = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        try:
            importlib.import_module(dotted)
        except (ModuleNotFoundError, errors.BadInput) as missing:
            cause = missing if isinstance(missing, ModuleNotFoundError) else missing.__cause__
            if dotted not in ELSEWHERE.get(getattr(cause, "name", None) or "", ()):
                raise

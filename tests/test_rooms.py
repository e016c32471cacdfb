"""The rooms of the package: arrows point down, private names stay at home, one guess finds any thing."""

import ast
import importlib
import sys
from functools import reduce
from pathlib import Path

import pytest

import rookery as rk
from tests.helpers.imports import House, renames

ROOT = Path(__file__).parent.parent
FLOORS = (
    ("cli",),
    ("reproduction",),
    ("report",),
    ("catalogue",),
    ("experiment",),
    ("tasks",),
    ("api",),
    ("tuning",),
    ("solving",),
    ("engines",),
    ("algorithms",),
    ("algorithm",),
    ("aggregation",),
    ("problem",),
    ("models", "datasets"),
    ("processes",),
    ("names", "files", "fingerprint", "modules", "devices", "stopping", "typing", "_importing"),
)
"""A room imports from those below it only."""
LONGEST = 450
"""Lines of a module. One that needs more has two jobs."""


def modules():
    found = {}
    for path in sorted((ROOT / "rookery").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


HOUSE = House("rookery", modules(), FLOORS)


def none_of(found):
    assert not found, "\n" + "\n".join(found)


def test_every_module_has_a_room():
    none_of(HOUSE.without_a_room())


def test_imports_point_down():
    none_of(HOUSE.upward())


def test_private_names_stay_in_their_room():
    none_of(HOUSE.private())


def test_no_modules_of_a_room_import_each_other():
    none_of(HOUSE.cycles())


def test_what_is_imported_or_started_by_name_exists():
    """Also in the benchmarks, the docs and the project's file."""
    outside = [ROOT / "pyproject.toml", ROOT / "Makefile", ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    texts = [(path, path.read_text()) for path in [*outside, *(ROOT / "benchmarks").rglob("*.py")]]
    named = [f"{path.relative_to(ROOT)} names {each}" for path, text in texts for each in HOUSE.missing_in(text)]
    none_of(HOUSE.missing() + named)


def test_no_public_name_hides_a_module():
    """``import rookery.a.b as b`` gives the module, whatever the packages on the way export."""
    hidden = []
    for name in HOUSE.sources:
        if name.endswith("__main__"):
            continue
        importlib.import_module(name)
        if reduce(getattr, name.split(".")[1:], rk) is not sys.modules[name]:
            hidden.append(f"{name} is hidden by another thing of that name")
    none_of(hidden)


def test_no_module_is_long():
    lengths = {name: len(source.splitlines()) for name, source in HOUSE.sources.items()}
    none_of([f"{name} has {length} lines" for name, length in lengths.items() if length > LONGEST])


def test_every_module_says_what_it_is():
    none_of([name for name, tree in HOUSE.trees.items() if not ast.get_docstring(tree)])


def test_one_module_alone_puts_files_in_place():
    """A file that is written whole or not at all is ``rookery.files``' business."""
    trees = {name: tree for name, tree in HOUSE.trees.items() if name != "rookery.files"}
    none_of([f"{name}:{line}" for name, tree in trees.items() for line in renames(tree)])


def test_each_folder_of_tests_is_a_rooms():
    """Or that of a package inside a room; what is about all rooms lies beside this file, what tests share in helpers."""
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    rooms = {Path(*name.split(".")[1:]) for name in HOUSE.packages} | {Path("helpers")}
    none_of(sorted(str(folder) for folder in folders - rooms))


# --- that the reading notices -----------------------------------------------------------------------------------------


def made_up(**sources):
    """A package ``p`` of two floors, above and below."""
    files = {"p": "", "p.above": "", "p.below": ""} | {
        f"p.{name.replace('__', '.')}": text for name, text in sources.items()
    }
    return House("p", files, (("above",), ("below",), ("ground",)))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("from p.above.a import x", 1),
        ("import p.above.a as a", 1),
        ("def f():\n    from p.above import a", 2),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.above.a import X", 3),
        ("from ..above import a", 1),
        ("from p import above", 1),
        ("import p", 1),
        ("from p import something", 1),
    ],
)
def test_an_import_upwards_is_noticed(text, line):
    (found,) = made_up(above__a="x = 1", below__b=text).upward()
    assert found.startswith(f"p.below.b:{line} imports p")
    assert not made_up(above__a="from p.below.b import x", below__b="from p.below import c").upward()


@pytest.mark.parametrize(
    "text",
    [
        "from p.below.b import _x",
        "from p.below import b\nb._x",
        "import p.below.b as c\nc._x()",
        "import p.below.b\np.below.b._x",
    ],
)
def test_a_private_name_of_another_room_is_noticed(text):
    (found,) = made_up(above__a=text, below__b="").private()
    assert found.endswith("uses p.below.b._x")
    assert not made_up(above__a="", below__b="", below__c=text).private(), "in the same room it is fine"


def test_a_cycle_is_noticed():
    ring = made_up(
        below__a="from p.below.b import x", below__b="def f():\n    from p.below import c", below__c="import p.below.a"
    )
    assert ring.cycles() == ["p.below.a -> p.below.b -> p.below.c -> p.below.a"]


def test_a_module_that_is_not_there_is_noticed():
    house = made_up(above__a='run(["-m", "p.below.gone"])\n"-m p.above.gone x"\n"p.gone:main"\n"p.above.a:main"')
    gone = {1: "p.below.gone", 2: "p.above.gone", 3: "p.gone"}
    assert sorted(house.missing()) == [f"p.above.a:{line} names {name}" for line, name in gone.items()]
    assert made_up(above__a="import p.gone").missing() == ["p.above.a:1 imports p.gone"]


def test_a_module_of_no_room_is_noticed():
    assert made_up(elsewhere="").without_a_room() == ["elsewhere"]


def test_a_file_put_in_place_is_noticed():
    moved = ["os.replace(a, b)", "path.replace(target)", "path.rename(b)", "shutil.move(a, b)"]
    other = ['"a".replace("b", "c")', "replace(rule, k=1)", "dataclasses.replace(rule, k=1)"]
    assert renames(ast.parse("\n".join(moved + other))) == [1, 2, 3, 4]

"""Settings are read back from their own TOML, whatever they are."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

import rookery as rk
from rookery.experiment.settings import resolve, write_toml
from rookery.tasks import RECIPES
from tests.helpers.fuzzing import examples

counts = st.integers(1, 10**6)
sizes = counts | st.just("all")


@st.composite
def runs(draw):
    recipe = RECIPES[draw(st.sampled_from(sorted(RECIPES)))]
    low = draw(st.integers(1, 100))
    optional = {
        "dataset": st.sampled_from(sorted(recipe.defaults)),
        "algorithm": st.sampled_from(sorted(rk.registry)),
        "clients": counts,
        "participants": counts | st.floats(0, 1, exclude_min=True) | st.just("all"),
        "local_steps": st.integers(1, 100) | st.integers(low, 200).map(lambda high: [low, high]),
        "batch_size": sizes | st.tuples(sizes, sizes).map(list),
        "rounds": counts,
        "every": counts,
        "seed": st.integers(0, 2**31),
        "seeds": st.integers(1, 100),
        "held_out": st.booleans(),
        "clients_at_once": counts,
    }
    return {"task": recipe.name, **draw(st.fixed_dictionaries({}, optional=optional))}


@examples(150, 10_000)
@given(runs())
def test_settings_come_back_from_their_tables_and_from_toml(tmp_path_factory, run):
    made = resolve(run)
    tables = made.tables()
    again = resolve(tables["run"], tables["task"], tables["algorithm"])
    path = tmp_path_factory.getbasetemp() / "settings.toml"
    write_toml(path, tables)
    read = tomllib.loads(path.read_text())
    for other in (again, resolve(read["run"], read["task"], read["algorithm"])):
        assert other.tables() == tables
        assert other.make_algorithm() == made.make_algorithm()
        for name in ("task", "dataset", "clients", "participants", "local_steps", "batch_size", "rounds", "every", "seed",
                     "seeds", "held_out", "clients_at_once"):  # fmt: skip
            assert getattr(other, name) == getattr(made, name), name
        assert {k: v for k, v in other.options.items() if v is not None} == {
            k: v for k, v in made.options.items() if v is not None
        }

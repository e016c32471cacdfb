"""What a client function may take and return."""

import pytest

import rookery as rk


@pytest.mark.parametrize(
    "client",
    [lambda local, keep: {}, lambda local: {}, lambda local, down, more: {}, lambda keep, carry: {}],
    ids=["down missing", "one", "another", "none"],
)
def test_a_client_function_must_take_what_it_is_given(client):
    with pytest.raises(TypeError, match=r"client must be a function of \(local, down\)"):
        rk.Exchange(lambda server: server, client, lambda ctx, server, mean: server)


def test_a_client_function_may_have_defaults_of_its_own():
    exchange = rk.Exchange(lambda server: server, lambda local, down, rate=2, **_: {"x": rate * down}, None)
    assert exchange.work(None, 3, None, None) == ({"x": 6}, None, None)

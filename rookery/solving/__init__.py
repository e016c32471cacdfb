"""``rk.solve`` and ``rk.solve_many``: checks, rounds, history."""

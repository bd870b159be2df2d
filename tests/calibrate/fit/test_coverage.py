"""The benchmark of how many figures of simulated servers lie within their intervals."""

import numpy as np

from calibrate.fit.terms import COMPUTE_TERMS, EXPECTED_COMPUTE, TERMS
from replay.simulation.uncertainty import ServerSpread
from tests.calibrate.fit.known_server import DEPLOYED, VALUES
from workshop.coverage import Size, drawn_kind, drawn_server, simulated_inside

COMPUTE = [TERMS.place(name) for name in COMPUTE_TERMS]


def test_kinds_of_servers_are_as_expected_of_an_unknown_server() -> None:
    generator = np.random.default_rng(1)
    kinds = np.array([drawn_kind(generator) for _ in range(500)])
    assert (kinds >= TERMS.least_values()).all()
    sums = kinds[:, COMPUTE].sum(axis=1)
    assert abs(sums.mean() - EXPECTED_COMPUTE.mean) < 0.02
    assert abs(sums.std() - EXPECTED_COMPUTE.spread) < 0.01


def test_servers_of_a_kind_differ_in_arithmetic_and_in_speed() -> None:
    generator = np.random.default_rng(1)
    servers = [drawn_server(VALUES, ServerSpread(speed=0.01, arithmetic=0.03), generator) for _ in range(500)]
    assert abs(np.std([speed for _, speed in servers]) - 0.01) < 0.001
    shares = np.array([values / VALUES for values, _ in servers])
    assert abs(shares[:, COMPUTE].std() - 0.03) < 0.003
    assert shares[:, TERMS.place("kv")].std() == 0


def test_each_figure_of_a_predicted_server_is_judged() -> None:
    inside = simulated_inside(DEPLOYED, Size(3, 60, 4), np.random.default_rng(1))
    assert len(inside) == 12

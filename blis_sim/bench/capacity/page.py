"""A plan as one page: the question, the cheapest deployment, all answers, its tests, and the command lines."""

from html import escape

from blis_sim.bench.capacity.answer import Answer
from blis_sim.bench.capacity.report import answer_table, price_line, question_lines, winner_lines
from blis_sim.bench.capacity.serving import pools_of
from blis_sim.options.provenance import Provenance
from blis_sim.options.text_table import counted
from blis_sim.pictures.page import figures_html, page, table_html
from blis_sim.pictures.panels import Target, bar_panel
from blis_sim.pictures.style import Panel


def plan_page(found: Answer, origin: Provenance) -> str:
    """Return the page of a plan."""
    winner = found.winner
    lines = list(winner_lines(found))
    commands = (
        [] if winner is None else [f"{pool.count} x {pool.command}" for pool in pools_of(winner.trial, found.model)]
    )
    remarks = [line.strip() for line in lines if line.strip() not in commands]
    parts = ["<h2>The cheapest of each GPU type and shape</h2>", table_html(answer_table(found))]
    parts += [f'<p class="origin">{escape(price_line(found))}</p>']
    if found.winner is not None:
        parts += ["<h2>Pictures</h2>", figures_html(plan_panels(found))]
        parts += [f"<h2>Command lines</h2><pre>{escape(chr(10).join(commands))}</pre>"]
    return page(f"Plan for {found.model}", origin, remarks, parts, question_lines(found))


def plan_panels(found: Answer) -> list[Panel]:
    """Return the costs of all answers, and the load that the winner keeps up against the one asked for."""
    best = {f"{gpu} {shape}": each for (gpu, shape), each in found.best.items() if each is not None}
    ranked = dict(sorted(best.items(), key=lambda each: each[1][0].cost_per_hour))
    costs = {name: trial.cost_per_hour for name, (trial, _) in ranked.items()}
    words = {
        name: f"${trial.cost_per_hour:,.2f}, {counted(trial.candidate.num_gpus(trial.counts), 'GPU')}"
        for name, (trial, _) in ranked.items()
    }
    panels = [bar_panel("Cost of the cheapest deployments", "$ per hour", costs, words)]
    winner = found.winner
    if winner is not None:
        limits = found.question.targets.limits_ms
        shares = {
            f"{name.split('_')[0].upper()} {name.split('_')[1]}": 100 * (winner.outcome.figures[name] or 0.0) / limit
            for name, limit in limits.items()
        }
        texts = {name: f"{share:.0f} %" for name, share in shares.items()}
        panels.append(
            bar_panel(
                "Latencies of the cheapest against their targets",
                "% of the target",
                shares,
                texts,
                Target(100, "target"),
            )
        )
    return panels

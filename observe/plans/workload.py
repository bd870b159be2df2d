"""The workload of a run, once the server has been queried."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from observe.dispatch import Prepared
from observe.http.request import SEND_TIME_HEADER, Server, post_bytes_of, post_head
from observe.options import ObserveOptions
from observe.plans.resume import Agenda
from observe.requests.body import RequestStyle
from observe.requests.prompts import PromptBook
from observe.requests.schedule import Planned, mean_rate
from traces import SloTargets


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything about a run that is fixed before the first request."""

    options: ObserveOptions
    agenda: Agenda
    style: RequestStyle
    prompts: PromptBook
    rtt_ms: float | None

    @property
    def asked_per_s(self) -> float:
        """The request rate that is asked for."""
        return self.options.rate or mean_rate(self.agenda.plan)

    @property
    def slo_targets(self) -> Mapping[str, SloTargets]:
        """SLO targets for goodput: those of the options, else those of the workload."""
        return self.options.slo_targets or self.agenda.goodput_slo_targets


def preparer(server: Server, workload: Workload) -> Callable[[int, Planned], Prepared]:
    """Return a function from a position in the agenda to the bytes of that request."""
    headers = {name: text for name, text in workload.options.headers.items() if name != "x-request-id"}
    style = workload.style
    request_ids = workload.agenda.request_ids

    @lru_cache(maxsize=256)
    def head(slo_class: str, tenant_id: str) -> bytes:
        return post_head(server, style.path, {**SEND_TIME_HEADER, **_labels(slo_class, tenant_id), **headers})

    def prepare(place: int, planned: Planned) -> Prepared:
        # Those that follow others have numbers behind the plan.
        request_id = request_ids[place] if place < len(request_ids) else place
        prompt = planned.prompt or workload.prompts.text(
            request_id,
            input_tokens=planned.turn_tokens if planned.earlier else planned.input_tokens,
            prefix_group="" if planned.earlier else planned.prefix_group,
            prefix_tokens=planned.prefix_tokens,
        )
        x_request_id = str(uuid.uuid4())
        body = style.body(prompt, planned.output_tokens, planned.model, planned.earlier)
        return Prepared(
            request_id=request_id,
            planned=planned,
            x_request_id=x_request_id,
            request=post_bytes_of(head(planned.slo_class, planned.tenant_id), x_request_id, body),
            streaming=style.streaming,
            turn=prompt,
        )

    return prepare


def _labels(slo_class: str, tenant_id: str) -> dict[str, str]:
    """Return headers that describe a request to inference gateways."""
    labels = {
        "x-gateway-inference-objective": slo_class,
        "x-gateway-inference-fairness-id": tenant_id,
    }
    return {name: text for name, text in labels.items() if text and text.isascii() and text.isprintable()}

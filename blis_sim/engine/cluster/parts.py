"""What is told of a cluster in which one request can be two: only what concerns the requests themselves."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from blis_sim.engine.events import Event, Finished, Preempted, Scheduled, StepDone


def without_parts(events: Iterable[Event]) -> Iterator[Event]:
    """The events without those of parts, which are nobody's business."""
    for event in events:
        if isinstance(event, Scheduled | Preempted | Finished):
            if not event.sequence.is_part:
                yield event
        elif isinstance(event, StepDone) and any(sequence.is_part for sequence in event.emitted):
            yield replace(event, emitted=[sequence for sequence in event.emitted if not sequence.is_part])
        else:
            yield event

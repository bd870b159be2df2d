"""Specs of version 1 in the words of version 2."""

from dataclasses import replace

from traces.workload.spec import Client, WorkloadSpec

NEW_CLASS_NAMES = {"realtime": "critical", "interactive": "standard"}


def upgraded(spec: WorkloadSpec) -> WorkloadSpec:
    """The spec as version 2, with a note for each service class of its clients that has another name now.

    Specs without a version are of version 1; all but 1 stay as they are.
    """
    if spec.version not in ("", "1"):
        return spec
    clients = tuple(map(_renamed, spec.clients))
    old = dict.fromkeys(client.slo_class for client in spec.clients if client.slo_class in NEW_CLASS_NAMES)
    notes = tuple(f"the service class {name} of version 1 is taken as {NEW_CLASS_NAMES[name]}" for name in old)
    return replace(spec, version="2", clients=clients, notes=spec.notes + notes)


def _renamed(client: Client) -> Client:
    return replace(client, slo_class=NEW_CLASS_NAMES.get(client.slo_class, client.slo_class))
